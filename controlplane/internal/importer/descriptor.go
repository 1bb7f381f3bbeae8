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
	entries   []entry
	selection        // the requests for which Envoy sends it
	cost      uint64 // 0 = 1
	at        place
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

// rules makes the rules for the leaves with a limit. The leaves come in the order of the limiter's
// search, and a request belongs to the first whose values it has. Each leaf with a limit becomes a
// rule, or an override of the rule of a later leaf. Each rule leaves out the requests of the leaves
// before its own.
//
// An example: alice may make 5 requests a minute, users that begin with "a" 20 an hour, and any
// other user 10 a minute. The descriptor has one entry, user, whose part is the header x-user.
//
//	alice  5/minute   an override of the rule for any user, which has the same window
//	a*     20/hour    a rule that matches x-user: a*, in which alice is unlimited
//	any    10/minute  a rule for any x-user, with the override for alice; in it a* is unlimited
func (d *descriptor) rules(leaves []leaf, r *reader) (list []rule) {
	if n := countLimited(leaves); n > policy.MaxRules { // each is compared with each other
		r.fail(leaves[0].at, d.keys()+" has more than "+strconv.Itoa(policy.MaxRules)+" values with a limit: import fewer")
		return nil
	}
	leaves = r.dropUnreachable(leaves)
	overridden := overriddenBy(leaves)
	for i := range leaves {
		if leaves[i].quota == nil || overridden[i] != nil {
			continue
		}
		m := newMaker(r, d, &leaves[i])
		m.addValues()
		m.addReasons(d.selection)
		m.overrideEarlierLeaves(leaves[:i], overridden)
		list = append(list, m.finish())
	}
	slices.SortStableFunc(list, func(a, b rule) int { return cmp.Compare(a.order, b.order) })
	if len(list) == 0 {
		for _, why := range d.whyOff {
			r.note(d.at, why+" There is no limit for it.")
		}
	}
	return list
}

// overriddenBy finds the leaves that become overrides. Where leaf i becomes an override of the rule
// of another leaf, item i is that leaf. Where leaf i gets a rule of its own or has no limit, item i
// is nil. The last leaf that can have the override gets it, as it is the widest.
func overriddenBy(leaves []leaf) []*leaf {
	list := make([]*leaf, len(leaves))
	for i := len(leaves) - 1; i >= 0; i-- {
		if leaves[i].quota == nil || list[i] != nil || leaves[i].isOneText() {
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

// maker makes the rule of one leaf: newMaker or newMakerOf begins it, finish ends it.
type maker struct {
	*reader
	leaf *leaf
	rule rule

	inKey     []int // indexes of the leaf's values whose parts are in the rule's key, in its order
	unmatched []int // those of inKey that no match can select: finish selects them by overrides
}

// newMaker begins the rule of a leaf: its name, and the requests of the descriptor.
func newMaker(r *reader, d *descriptor, l *leaf) *maker {
	m := &maker{reader: r, leaf: l}
	m.rule = rule{quota: l.quota, order: l.order}
	m.rule.Name = clip(l.name, 100)
	m.rule.Match = d.match
	m.rule.Exempt = slices.Clone(d.exempt)
	m.rule.Cost = d.cost
	m.rule.CountDenied = d.cost > 0 && l.quota.algorithm == ""
	return m
}

// newMakerOf begins the rule of a limit for the requests of a selection. It comes of no level of descriptors:
// its leaf has no values, and is there for the quota and its place. The caller sets the key.
func newMakerOf(r *reader, name string, q *quota, s selection) *maker {
	m := &maker{reader: r, leaf: &leaf{quota: q, at: q.at}}
	m.rule = rule{quota: q}
	m.rule.Name = clip(name, 100)
	m.rule.Match = s.match
	m.rule.Exempt = joined(s.exempt)
	m.addReasons(s)
	return m
}

// addReasons adds what the selection of the requests and the limit say of the rule, and why it is off.
func (m *maker) addReasons(s selection) {
	for _, text := range slices.Concat(s.notes, m.leaf.quota.notes) {
		m.comment(text)
	}
	for _, why := range slices.Concat(s.whyOff, m.leaf.quota.whyOff) {
		m.cannot(why)
	}
}

// addValues adds the values of the leaf to the rule's match and key.
func (m *maker) addValues() {
	for i, v := range m.leaf.values {
		m.addValue(i, v)
	}
}

// overrideEarlierLeaves takes the requests of the earlier leaves out of the rule. Leaves that are apart
// from the rule's own have none of its requests.
func (m *maker) overrideEarlierLeaves(earlier []leaf, overridden []*leaf) {
	for i := range earlier {
		if !earlier[i].apart(m.leaf) {
			isOverride := overridden[i] == m.leaf
			m.overrideEarlierLeaf(&earlier[i], isOverride)
		}
	}
}

// comment adds a comment to the rule, and a note.
func (m *maker) comment(text string) {
	m.rule.comments = append(m.rule.comments, text)
	m.add(note{m.leaf.at.problem(m.rule.Name + ": " + text), true})
}

// cannot switches the rule off, and says why.
func (m *maker) cannot(why string) {
	m.rule.off = true
	m.rule.comments = append(m.rule.comments, "Off: "+why)
	m.add(note{m.leaf.at.problem(m.rule.Name + " is off: " + why), true})
}

// addValue adds a value of the leaf to the match, to the key, or to both. One text, or values that
// count together, need only the match. Values that count apart need the key.
func (m *maker) addValue(i int, v leafValue) {
	var matched bool
	m.rule.Match, matched = v.part.restrict(m.rule.Match, v.pattern)
	switch {
	case matched && (v.shared || v.pattern.kind == exactly):
	case v.shared:
		m.cannot(v.sharing() + ", and no match can select them.")
	default:
		m.inKey = append(m.inKey, i)
		m.rule.Key = append(m.rule.Key, *v.part)
		if !matched {
			m.unmatched = append(m.unmatched, i)
		}
	}
}

// overrideEarlierLeaf adds an override for the requests of an earlier leaf: they are unlimited in this
// rule, or have the leaf's limit if that is an override of the rule.
func (m *maker) overrideEarlierLeaf(before *leaf, isOverride bool) {
	for i, v := range m.leaf.values {
		// This part is not in the key, so no override can tell these requests apart.
		if !slices.Contains(m.inKey, i) && !v.pattern.within(before.values[i].pattern) {
			m.cannot(v.sharing() + ", apart from " + before.name + ". The import does not write such a rule: exempt those " +
				"requests by hand.")
			return
		}
	}
	if why := before.unsayable(); why != "" {
		m.cannot("It should leave out the requests of " + before.name + ". " + why)
		return
	}
	o := override{patterns: m.patterns(before, m.inKey)}
	if isOverride {
		o.quota = before.quota
	}
	m.rule.Overrides = append(m.rule.Overrides, o)
}

// patterns are the patterns of an override of the rule, one for each part of its key: the leaf's
// pattern for the values in the list, and * for the others.
func (m *maker) patterns(l *leaf, in []int) (list []string) {
	for _, i := range m.inKey {
		text := "*"
		if slices.Contains(in, i) {
			text, _ = l.values[i].asOverride()
		}
		list = append(list, text)
	}
	return list
}

// finish completes the rule and returns it. Where no match can select the leaf's values, two overrides
// at the end do: the first gives them the limit, and the second makes all other keys unlimited.
func (m *maker) finish() rule {
	if why := m.leaf.unsayable(); why != "" {
		m.cannot(why)
	} else if len(m.unmatched) > 0 {
		m.rule.Overrides = append(m.rule.Overrides, override{m.patterns(m.leaf, m.unmatched), m.leaf.quota},
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

// exemptLimited exempts the requests that the rules limit from those of the descriptor, and reports whether
// it has any left. Where the requests of a rule are unknown, no match can select what is left.
func (d *descriptor) exemptLimited(rules []rule) (hasAny bool) {
	var limited []match
	isKnown := true
	for i := range rules {
		m, ok := rules[i].limitedRequests(d.exempt)
		m = m.without(d.match) // conditions that all of its requests meet
		switch {
		case !ok:
			isKnown = false
		case len(m) == 0: // the rule limits all of them
			return false
		default:
			limited = append(limited, m)
		}
	}
	d.exempt = slices.Concat(d.exempt, limited)
	if !isKnown {
		d.cannotMatch("they are those that no other rule limits")
	}
	return true
}

// limitedRequests is a match for the requests that the rule limits. Requests that are exempt may be in it. It is
// not ok where no match can say that, as for a rule that is off, or that exempts other requests too.
func (r *rule) limitedRequests(exempt []match) (m match, ok bool) {
	isLeft := func(m match) bool { return !slices.ContainsFunc(exempt, m.equal) }
	lets := func(o override) bool { return o.quota == nil }
	if r.off || slices.ContainsFunc(r.Exempt, isLeft) || slices.ContainsFunc(r.Overrides, lets) {
		return nil, false
	}
	m = r.Match
	for _, p := range r.Key {
		switch {
		case p.kind == kindHeader && m.of(p) == nil:
			m, _ = m.and(p.matching(present))
		case p.kind == kindQuery, p.kind == kindProperty:
			return nil, false
		}
	}
	return m, true
}
