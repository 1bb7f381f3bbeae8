package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// MaxOverrides is how many overrides a rule may have: a key is held against
// one after the other.
const MaxOverrides = 1_000

// overrideFields is one item of "overrides".
var overrideFields = []field[Override]{
	{
		name: "key", shape: listOf("pattern"), required: true,
		doc:  `One pattern for each part of the rule's key: exact ("=" before it takes signs literally), prefix*, *suffix, "~" and an RE2 expression that matches in full, "*" for any.`,
		read: readOverrideKey,
	},
	{
		name: "limits", shape: listOf("limit"),
		doc:  "Windows of the rule with other numbers; one left out is unlimited for these keys.",
		read: readOverrideLimits,
	},
	{
		name: "unlimited", shape: boolean(), def: "false",
		doc:  "Every request with such a key is allowed and none counted; in place of limits.",
		read: func(r *reader, v value, o *Override) { o.Unlimited = r.boolean(v) },
	},
}

func readOverrides(r *reader, v value, rule *Rule) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if count := len(v.node.Items); count > MaxOverrides {
		r.fail(v, "has "+itoa(int64(count))+" overrides, the most is "+itoa(MaxOverrides))
		return
	}
	if len(v.node.Items) > 0 && len(rule.Key) == 0 && !r.rule.anyKey {
		r.fail(v, "the rule has no key whose values could differ: give it a key, or change its limits")
		return
	}
	before := len(r.errs) + r.dropped
	for i := range v.node.Items {
		var o Override
		readOverride(r, v.item(i, objectOf("override")), &o)
		rule.Overrides = append(rule.Overrides, o)
	}
	if len(r.errs)+r.dropped == before {
		r.reachable(v, rule.Overrides)
	}
}

func readOverride(r *reader, v value, o *Override) {
	before := len(r.errs) + r.dropped
	if !readObject(r, v, overrideFields, o) || len(r.errs)+r.dropped > before {
		return
	}
	switch {
	case o.Unlimited && has(v, "limits"):
		r.fail(v, "unlimited keys have no limits: keep one of the two")
	case !o.Unlimited && !has(v, "limits"):
		r.fail(v, "must have limits, or unlimited: true")
	}
}

func readOverrideKey(r *reader, v value, o *Override) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	parts := r.rule.Key
	if count := len(v.node.Items); count != len(parts) && !r.rule.anyKey {
		r.fail(v, "must have as many patterns as the rule's key has parts, "+itoa(int64(len(parts)))+", not "+itoa(int64(count))+`: write "*" for a part that may be anything`)
		return
	}
	for i := range v.node.Items {
		at := v.item(i, shape{form: formText})
		s, ok := r.text(at)
		if !ok {
			continue
		}
		p, err := parseKeyPattern(s, &r.expressions)
		if err != nil {
			r.fail(at, err.Error())
			continue
		}
		if i < len(parts) {
			p.Text = r.asInKeys(at, "", p, &parts[i])
		}
		o.Key = append(o.Key, p)
	}
}

// asInKeys spells the text of a pattern as keys have that part, and warns of
// one that none has. The label is what stands before the part in keys.
func (r *reader) asInKeys(v value, label string, p Pattern, part *KeyPart) string {
	if p.Kind != Exact && p.Kind != Prefix && p.Kind != Suffix {
		return p.Text
	}
	if part.Kind == KeyFirstOf {
		return r.choice(v, p, part)
	}
	r.matchable(v, label, p, part)
	switch {
	case part.Kind == KeyHost && p.Kind == Exact:
		return CanonicalHost(p.Text)
	case part.Kind == KeyHost:
		return strings.ToLower(p.Text)
	case part.Kind == KeyPath:
		return Unescape(p.Text)
	case part.Kind == KeyMethod:
		return strings.ToUpper(p.Text)
	}
	return p.Text
}

// choice is asInKeys for the parts of a first_of, whose texts say which part
// they are.
func (r *reader) choice(v value, p Pattern, part *KeyPart) string {
	if p.Kind == Suffix {
		return p.Text
	}
	var labels []string
	for i := range part.Of {
		of := &part.Of[i]
		label := of.Label() + "="
		text, found := strings.CutPrefix(p.Text, label)
		switch {
		case found:
			return label + r.asInKeys(v, label, Pattern{Kind: p.Kind, Text: text}, of)
		case p.Kind == Prefix && strings.HasPrefix(label, p.Text):
			return p.Text
		}
		labels = append(labels, quote(label))
	}
	r.warn(v, "never matches: a first_of is in keys with what it is, and begins with "+strings.Join(labels, " or "))
	return p.Text
}

// address warns of a text that is not how keys have an address.
func (r *reader) address(v value, label, text string, part *KeyPart) {
	ip, err := netip.ParseAddr(text)
	if network, bad := netip.ParsePrefix(text); bad == nil {
		ip, err = network.Addr(), nil
	}
	if err != nil {
		r.warn(v, "never matches: "+quote(text)+" is no address")
		return
	}
	ip = ip.Unmap().WithZone("")
	bits := part.V6Prefix
	if ip.Is4() {
		bits = part.V4Prefix
	}
	want := ip.String()
	if network, err := ip.Prefix(bits); err == nil && bits < ip.BitLen() {
		want = network.String()
	}
	if want != text {
		r.warn(v, "never matches: the address is in keys as "+quote(label+want))
	}
}

// parseKeyPattern reads the notation of overrides: that of match.headers with
// "*" for any. "!" is kept for parts that are missing.
func parseKeyPattern(s string, set *automaton.Set) (Pattern, error) {
	if strings.HasPrefix(s, "!") {
		return Pattern{}, errors.New(`"!" means nothing here: write "=" before a value to take it literally`)
	}
	p, err := parseHeaderValue(s, set)
	if p.Kind == Present {
		p.Kind = Any
	}
	return p, err
}

// readOverrideLimits gives the windows of the rule the override's numbers.
func readOverrideLimits(r *reader, v value, o *Override) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if len(v.node.Items) == 0 {
		r.fail(v, "must not be empty: write unlimited: true in place of it")
		return
	}
	if count := len(v.node.Items); count > MaxWindows {
		r.fail(v, "has "+itoa(int64(count))+" windows, the most is "+itoa(MaxWindows))
		return
	}
	o.Limits = slices.Clone(r.rule.Limits)
	for i := range o.Limits {
		o.Limits[i].Unlimited = true
	}
	for i := range v.node.Items {
		at := v.item(i, objectOf("limit"))
		before := len(r.errs) + r.dropped
		var l Limit
		readLimit(r, at, &l)
		if len(r.errs)+r.dropped == before && r.rule.limits {
			r.override(at, o.Limits, l)
		}
	}
}

// override puts l in the place of the rule's window that it is.
func (r *reader) override(v value, limits []Limit, l Limit) {
	at := slices.IndexFunc(limits, func(other Limit) bool { return other.Same(l.Window) })
	switch {
	case at < 0 && len(limits) == 0:
		r.fail(v, "is "+windowName(l.Window)+", and the rule has no windows: an override changes only the numbers of the rule's own")
	case at < 0:
		var list []string
		for _, other := range limits {
			list = append(list, windowName(other.Window))
		}
		r.fail(v, "is "+windowName(l.Window)+", and the rule has no such window: an override changes only the numbers of the rule's own, "+join(list))
	case !limits[at].Unlimited:
		r.fail(v, "is the same window as one before it ("+windowName(l.Window)+"): keep one")
	case l.Name != "" && l.Name != limits[at].Name:
		r.fail(fieldAt(v, "name"), "a window has one name for all keys, the one in the rule's limits: remove it here")
	default:
		limits[at].Window = l.Window
	}
}

// maxCompared is how many patterns are compared to find overrides that can
// never match: those of some forty rules with MaxOverrides each.
const maxCompared = 20 << 20

// reachable warns of overrides that an earlier one always stands before.
func (r *reader) reachable(v value, overrides []Override) {
	for i := range overrides {
		for j := range i {
			if r.compared > maxCompared {
				return
			}
			if r.covers(overrides[j].Key, overrides[i].Key) {
				r.warn(v.item(i, shape{}), "can never match: "+v.item(j, shape{}).at.String()+" comes first and matches every key that it does")
				break
			}
		}
	}
}

func (r *reader) covers(wide, narrow []Pattern) bool {
	for i := range wide {
		r.compared++
		if !wide[i].covers(narrow[i]) {
			return false
		}
	}
	return len(wide) == len(narrow)
}

// covers reports whether p surely matches whatever q does. Of a regular
// expression only the same is known to.
func (p Pattern) covers(q Pattern) bool {
	switch p.Kind {
	case Any:
		return true
	case Prefix:
		return (q.Kind == Exact || q.Kind == Prefix) && strings.HasPrefix(q.Text, p.Text)
	case Suffix:
		return (q.Kind == Exact || q.Kind == Suffix) && strings.HasSuffix(q.Text, p.Text)
	default:
		return p == q
	}
}

// Windows are the windows of the override, parallel to the rule's; none where
// it is Unlimited.
func (o *Override) Windows() []limit.Window { return windowsOf(o.Limits) }
