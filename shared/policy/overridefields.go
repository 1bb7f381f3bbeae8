package policy

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// MaxOverrides is how many overrides a rule may have: a key is held against
// one after the other.
const MaxOverrides = 1_000

// MaxCountedNames is how many names of overrides have metrics in each rule: those of
// the first overrides.
const MaxCountedNames = 16

// OverrideNames are the names of the rule's overrides, each once, in the order of
// the overrides.
func (r *Rule) OverrideNames() (names []string) {
	for i := range r.Overrides {
		if name := r.Overrides[i].Name; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Raises reports whether the override lets more through than its rule. Such an override does not hold
// for a key that is in doubt, and a warning names it if clients can choose it. If requests say the
// rule's limit, they may say 0, so any override is larger.
func (o *Override) Raises(r *Rule) bool {
	for i := range o.Limits {
		w, of := &o.Limits[i].Window, r.Limits[i].Window
		if r.Limits[i].Requested != nil {
			of.Limit = 0
		}
		if w.Unlimited || w.Limit > of.Limit || w.Burst > of.Burst {
			return true
		}
	}
	return o.Unlimited
}

// overrideObject is one item of "overrides".
var overrideObject = newObject("override", []field[Override]{
	{"name", nameShape, "", func(r *reader, v value, o *Override) { o.Name = r.name(v) }},
	{"key", required(listOf(textOf("pattern"), 1, MaxKeyParts)), "", readOverrideKey},
	{"limits", listOf(objectOf("limit"), 1, MaxWindows), "", readOverrideLimits},
	{"unlimited", boolShape, "false", func(r *reader, v value, o *Override) { o.Unlimited = r.boolean(v) }},
})

func readOverrides(r *reader, v value, rule *Rule) {
	if !r.items(v) {
		return
	}
	if len(v.Items) > 0 && len(rule.Key) == 0 && !r.rule.anyKey {
		r.fail(v, OverrideNoKey)
		return
	}
	for i := range v.Items {
		var o Override
		readOverride(r, v.item(i), &o)
		rule.Overrides = append(rule.Overrides, o)
	}
}

func readOverride(r *reader, v value, o *Override) {
	if !readSound(r, v, overrideObject, o) {
		return
	}
	switch limits := v.has("limits"); {
	case o.Unlimited && limits:
		r.fail(v, OverrideBoth)
	case !o.Unlimited && !limits:
		r.fail(v, OverrideNeither)
	}
}

func readOverrideKey(r *reader, v value, o *Override) {
	if !r.isList(v) {
		return
	}
	parts := r.rule.Key
	if len(v.Items) != len(parts) && !r.rule.anyKey {
		r.fail(v, PatternCount, itoa(int64(len(parts))))
		return
	}
	for i := range v.Items {
		at := v.item(i)
		s, ok := r.text(at)
		if !ok {
			continue
		}
		p, ok := r.pattern(at, s, parseKeyPattern, BadPattern)
		if !ok {
			continue
		}
		if i < len(parts) && (p.Kind == Exact || p.Kind == Prefix || p.Kind == Suffix) {
			p.Text = parts[i].spelling(p)
		}
		o.Key = append(o.Key, p)
	}
}

// spelling is the text of a pattern as keys have the part.
func (p *KeyPart) spelling(of Pattern) string {
	switch {
	case p.Kind == KeyHost && of.Kind == Exact:
		return CanonicalHost(of.Text)
	case p.Kind == KeyHost:
		return strings.ToLower(of.Text)
	case p.Kind == KeyPath:
		return Unescape(of.Text)
	case p.Kind == KeyMethod:
		return strings.ToUpper(of.Text)
	case p.Kind == KeyFirstOf && of.Kind != Suffix:
		if label, text, err := p.Cut(of.Text); err == nil {
			return label + "=" + p.Labeled(label).spelling(Pattern{Kind: of.Kind, Text: text})
		}
	}
	return of.Text
}

// readOverrideLimits gives the windows of the rule the override's numbers.
func readOverrideLimits(r *reader, v value, o *Override) {
	if !r.items(v) {
		return
	}
	o.Limits = slices.Clone(r.rule.Limits)
	for i := range o.Limits {
		o.Limits[i].Unlimited, o.Limits[i].Requested = true, nil
	}
	for i := range v.Items {
		at := v.item(i)
		before := r.count()
		var l Limit
		if readLimit(r, at, &l); l.Requested != nil {
			r.fail(at.field("requests"), NumberOfOverride)
		}
		if r.count() == before && r.rule.limits {
			r.override(at, o.Limits, l)
		}
	}
}

// override puts l in the place of the rule's window that it is.
func (r *reader) override(v value, limits []Limit, l Limit) {
	at := slices.IndexFunc(limits, func(other Limit) bool { return other.Same(l.Window) })
	switch {
	case at < 0:
		r.failWindow(v, NotARuleWindow, Place{}, append([]limit.Window{l.Window}, windowsOf(limits)...)...)
	case !limits[at].Unlimited:
		r.failWindow(v, OverriddenTwice, Place{}, l.Window)
	case l.Name != "" && l.Name != limits[at].Name:
		r.fail(v.field("name"), OverrideRenames)
	default:
		limits[at].Window = l.Window
	}
}
