package importer

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// descriptor is what Envoy sends for a request: keys with values that are
// fixed or taken from the request.
type descriptor struct {
	entries []entry
	scope          // the requests for which Envoy sends it
	cost    uint64 // 0 = 1
	at      place
}

// entry is one key with its value: a part of the request, or a fixed text.
type entry struct {
	key   string
	part  *part
	value string
}

// keys names the descriptor.
func (d *descriptor) keys() string {
	names := make([]string, len(d.entries))
	for i, e := range d.entries {
		names[i] = named(e.key, e.value)
	}
	return strings.Join(names, ".")
}

// rules makes a rule for each leaf with a limit. The leaves come in the order of the limiter's
// search, and a request belongs to the first whose values it has. A value beside a bare key is
// an override of the bare key's rule, if that has the same window.
func (d *descriptor) rules(leaves []leaf, in *reader) (list []rule) {
	if n := countLimited(leaves); n > policy.MaxRules { // each is compared with each other
		in.fail(leaves[0].at, d.keys()+" has more than "+strconv.Itoa(policy.MaxRules)+" values with a limit: import fewer")
		return nil
	}
	leaves = in.reachable(leaves)
	holder := holders(leaves)
	for i := range leaves {
		l := &leaves[i]
		if l.quota == nil || holder[i] != nil {
			continue
		}
		m := newMaker(in, d, l)
		for j := range leaves[:i] {
			if !leaves[j].apart(l) {
				m.leaveOut(&leaves[j], holder[j] == l)
			}
		}
		list = append(list, m.finish())
	}
	slices.SortStableFunc(list, func(a, b rule) int { return cmp.Compare(a.order, b.order) })
	if len(list) == 0 {
		for _, why := range d.whyOff {
			in.note(d.at, why+" There is no limit for it.")
		}
	}
	return list
}

// holders says for each leaf whose rule has it as an override; nil for those with a rule of their
// own, and for those without a limit.
func holders(leaves []leaf) []*leaf {
	list := make([]*leaf, len(leaves))
	for i := len(leaves) - 1; i >= 0; i-- {
		if leaves[i].quota == nil || list[i] != nil {
			continue
		}
		for j := range leaves[:i] {
			if leaves[j].quota != nil && list[j] == nil && leaves[j].canOverride(&leaves[i]) {
				list[j] = &leaves[i]
			}
		}
	}
	return list
}

// maker makes the rule of a leaf.
type maker struct {
	*reader
	leaf   *leaf
	rule   rule
	keyed  []int // values of the leaf whose parts are in the rule's key
	listed []int // those of them that no match can select, so that overrides do
}

func newMaker(in *reader, d *descriptor, l *leaf) *maker {
	m := &maker{reader: in, leaf: l}
	m.rule = rule{
		Name: clip(l.name, 100), quota: l.quota, order: l.order, Match: d.match, Exempt: slices.Clone(d.exempt),
		Cost: d.cost, CountDenied: d.cost > 0 && l.quota.algorithm == "",
	}
	for i, v := range l.values {
		m.put(i, v)
	}
	for _, text := range slices.Concat(d.notes, l.quota.notes) {
		m.comment(text)
	}
	for _, why := range slices.Concat(d.whyOff, l.quota.whyOff) {
		m.cannot(why)
	}
	return m
}

// comment adds a comment to the rule, and a note.
func (m *maker) comment(text string) {
	m.rule.comments = append(m.rule.comments, text)
	m.add(note{m.leaf.at.problem(m.rule.Name + ": " + text), true})
}

// cannot says what the rule cannot, and switches it off.
func (m *maker) cannot(why string) {
	m.rule.off = true
	m.rule.comments = append(m.rule.comments, "Off: "+why)
	m.add(note{m.leaf.at.problem(m.rule.Name + " is off: " + why), true})
}

// put puts a value of the leaf into the match, into the key, or into both.
func (m *maker) put(i int, v value) {
	var matched bool
	m.rule.Match, matched = v.restrict(m.rule.Match, v.pattern)
	switch {
	case matched && (v.shared || v.pattern.kind == exactly):
	case v.shared:
		m.cannot("The values of " + v.String() + " that fit " + v.pattern.text + " share one counter there, and no match " +
			"can select them.")
	default:
		m.keyed = append(m.keyed, i)
		m.rule.Key = append(m.rule.Key, *v.part)
		if !matched {
			m.listed = append(m.listed, i)
		}
	}
}

// leaveOut takes the requests of an earlier leaf out of the rule: they are unlimited in it, or
// have the leaf's limit if that is an override of the rule.
func (m *maker) leaveOut(before *leaf, isOverride bool) {
	for i, v := range m.leaf.values {
		if !slices.Contains(m.keyed, i) && !v.pattern.within(before.values[i].pattern) {
			m.cannot("The values of " + v.String() + " that fit " + v.pattern.text + " share one counter there, apart from " +
				before.name + ". A rule cannot say that.")
			return
		}
	}
	if why := before.unsayable(); why != "" {
		m.cannot("It should leave out the requests of " + before.name + ". " + why)
		return
	}
	o := override{patterns: m.patterns(before, m.keyed)}
	if isOverride {
		o.quota = before.quota
	}
	m.rule.Overrides = append(m.rule.Overrides, o)
}

// patterns are those of a leaf in some of its values, as an override of the rule has them, and * in
// the other parts of its key.
func (m *maker) patterns(l *leaf, in []int) (list []string) {
	for _, i := range m.keyed {
		text := "*"
		if slices.Contains(in, i) {
			text, _ = l.values[i].override(l.values[i].pattern)
		}
		list = append(list, text)
	}
	return list
}

// finish is the rule, with what no match can say of its own values said by overrides.
func (m *maker) finish() rule {
	if why := m.leaf.unsayable(); why != "" {
		m.cannot(why)
	} else if len(m.listed) > 0 {
		m.rule.Overrides = append(m.rule.Overrides, override{m.patterns(m.leaf, m.listed), m.leaf.quota},
			override{m.patterns(m.leaf, nil), nil})
	}
	if n := len(m.rule.Exempt); n > policy.MaxExempt {
		m.rule.Exempt = m.rule.Exempt[:policy.MaxExempt]
		m.cannot("It should exempt " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
	if m.rule.off {
		m.rule.comments = append(m.rule.comments, "Remove mode once you have dealt with that.")
	}
	return m.rule
}

// leaveOutLimited leaves the requests out that a rule limits. It reports whether any are left.
func (d *descriptor) leaveOutLimited(rules []rule) bool {
	own, isUnknown := d.exempt, false
	for i := range rules {
		m, ok := rules[i].limits(own)
		m = m.without(d.match)
		switch {
		case ok && len(m) == 0:
			return false
		case ok:
			d.exempt = append(slices.Clip(d.exempt), m)
		case !isUnknown:
			isUnknown = true
			d.cannotMatch("they are those that no other rule limits")
		}
	}
	return true
}

// limits says which requests a rule limits, of those that an exemption leaves.
// It is not ok where no match can say that, as for a rule that is off.
func (r *rule) limits(exempt []match) (m match, ok bool) {
	isLeft := func(m match) bool { return !slices.ContainsFunc(exempt, m.equal) }
	lets := func(o override) bool { return o.quota == nil }
	if r.off || slices.ContainsFunc(r.Exempt, isLeft) || slices.ContainsFunc(r.Overrides, lets) {
		return nil, false
	}
	m = r.Match
	for _, p := range r.Key {
		switch {
		case p.kind == "header" && m[p.String()] == nil:
			m, _ = m.and(match{p.String(): {present}})
		case p.kind == "query", p.kind == "property":
			return nil, false
		}
	}
	return m, true
}
