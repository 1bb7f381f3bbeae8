package importer

import (
	"reflect"
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
	place   place
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

// cell is one case of a descriptor: the values of its parts, and the quota of
// requests that have them, nil for none. A request is in the first cell of a
// list whose values it has.
type cell struct {
	name   string
	values []value
	quota  *quota
	place  place
}

// value is a part of the request and the pattern that it fits.
type value struct {
	*part
	pattern pattern
	shared  bool // all that fits counts together
}

// holds reports whether a cell can be an override of c's rule: its values are
// all among those of c, but for free parts, which may have any value.
func (c *cell) holds(other *cell, free []bool) bool {
	if other.quota == nil || !other.quota.isOfClass(c.quota) || len(other.quota.notes) > 0 ||
		len(other.quota.unknown)+len(c.quota.unknown) > 0 {
		return false
	}
	for i := range c.values {
		inner, outer := &other.values[i], &c.values[i]
		if inner.shared || outer.shared || !free[i] && !inner.pattern.within(outer.pattern) {
			return false
		}
	}
	return other.unsayable() == ""
}

// apart reports whether no request is in both cells by the parts that are not
// free. It may miss some.
func (c *cell) apart(other *cell, free []bool) bool {
	for i := range c.values {
		if !free[i] && c.values[i].pattern.apart(other.values[i].pattern) {
			return true
		}
	}
	return false
}

// unsayable says why no override has a cell's patterns, if none does.
func (c *cell) unsayable() string {
	for _, v := range c.values {
		if _, ok := v.override(v.pattern); !ok {
			return "Paths are compared without the query, and cannot say " + v.pattern.text + "."
		}
	}
	return ""
}

// rules makes rules that give every request the quota of its cell. A cell whose
// values are among those of a later cell with the same window becomes an
// override of that cell's rule.
func (d *descriptor) rules(cells []cell, in *reader) (list []rule) {
	limited := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.quota == nil })
	if len(limited) > policy.MaxRules { // each is compared with each other
		at := cells[0].place
		at.Message = d.keys() + " has more than " + strconv.Itoa(policy.MaxRules) + " values with a limit: import fewer"
		in.problems = append(in.problems, at)
		return nil
	}
	cells = slices.DeleteFunc(slices.Clone(cells), func(c cell) bool {
		at := slices.IndexFunc(c.values, func(v value) bool { return v.never(v.pattern) })
		if at >= 0 {
			in.add(c.place, "no request has the value "+c.values[at].pattern.text+" of "+c.name+", so there is no rule for it")
		}
		return at >= 0
	})
	done := make([]bool, len(cells))
	for at := len(cells) - 1; at >= 0; at-- {
		c := &cells[at]
		if c.quota == nil || done[at] {
			continue
		}
		free, inside := make([]bool, len(c.values)), map[int]bool{} // free: the rule's match cannot have the part
		for i, m := 0, d.match; i < len(free); i++ {
			var matched bool
			m, matched = c.values[i].restrict(m, c.values[i].pattern)
			free[i] = !matched
		}
		for i := range at {
			if !done[i] && c.holds(&cells[i], free) {
				done[i], inside[i] = true, true
			}
		}
		if len(inside) == 0 {
			clear(free) // the rule is for its own values alone
		}
		m := &maker{reader: in, descriptor: d, cell: c}
		if m.make(cells[:at], free, inside) {
			list = append(list, m.rule)
			continue
		}
		for i := range inside { // they have rules of their own then
			done[i] = false
		}
	}
	slices.Reverse(list)
	if len(list) == 0 {
		for _, why := range d.unknown {
			in.add(d.place, why+" There is no limit for it.")
		}
	}
	return list
}

// maker makes the rule of a cell.
type maker struct {
	*reader
	*descriptor
	*cell
	rule   rule
	kept   []int // parts that are in the rule's key
	listed []int // those of them whose pattern only overrides can say
}

// make makes the rule. Earlier cells take their requests first: with their own
// limits where they are inside, else unlimited. It reports whether any are left.
func (m *maker) make(earlier []cell, free []bool, inside map[int]bool) bool {
	m.rule = rule{Name: clip(m.name, 100), quota: m.quota, Match: m.match, Exempt: slices.Clone(m.exempt),
		Cost: m.cost, CountDenied: m.cost > 0 && m.quota.algorithm == ""}
	m.put()
	if why := m.unsayable(); why != "" {
		m.cannot(why)
		return true
	}
	for _, text := range slices.Concat(m.unknown, m.quota.unknown, m.descriptor.notes, m.quota.notes) {
		m.note(text)
	}
	if len(m.unknown)+len(m.quota.unknown) > 0 {
		m.off()
	}
	for i := range earlier {
		if !earlier[i].apart(m.cell, free) && !m.except(&earlier[i], inside[i]) {
			m.add(m.cell.place, m.name+" can never apply: limits before it take all its requests")
			return false
		}
	}
	if len(m.listed) > 0 {
		m.only()
		if len(inside) > 0 {
			m.rule.Name = clip(m.keys(), 100) // it is for several values
		}
	}
	if n := len(m.rule.Exempt); n > policy.MaxExempt {
		m.rule.Exempt = m.rule.Exempt[:policy.MaxExempt]
		m.cannot("It should leave out the requests of " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
	}
	if len(m.rule.Key) == 0 {
		m.rule.Overrides = nil
	}
	return true
}

// note adds a comment to the rule, and a note.
func (m *maker) note(text string) {
	if !slices.Contains(m.rule.comments, text) {
		m.rule.comments = append(m.rule.comments, text)
	}
	m.add(m.cell.place, text)
}

// cannot notes what a rule cannot say, and switches it off.
func (m *maker) cannot(why string) {
	m.note(why)
	m.off()
}

// off switches the rule off, because its requests are not known.
func (m *maker) off() {
	m.rule.off = true
	m.note("The rule is off until you have dealt with that: then remove mode.")
}

// put puts every part into the match, into the key, or into both.
func (m *maker) put() {
	for i, v := range m.values {
		var matched bool
		m.rule.Match, matched = v.restrict(m.rule.Match, v.pattern)
		switch {
		case v.pattern.kind == exactly && matched, v.shared && matched:
		case v.shared:
			m.cannot("Values of " + v.String() + " that fit " + v.pattern.text + " share one counter there. A rule cannot say that.")
		default:
			m.kept = append(m.kept, i)
			m.rule.Key = append(m.rule.Key, *v.part)
			if !matched {
				m.listed = append(m.listed, i)
			}
		}
	}
}

// except takes the requests of an earlier cell out of the rule. It reports
// whether any are left.
func (m *maker) except(c *cell, inside bool) bool {
	var patterns []string
	var beyond match // an exempt, where parts that are not in the key differ
	all, isBeyond, isMore, isUnsaid := true, false, false, false
	for i, v := range c.values {
		if m.values[i].pattern.within(v.pattern) && !slices.Contains(m.listed, i) {
			v.pattern = pattern{}
		}
		isAny := v.pattern.kind == anyValue
		text, ok := v.override(v.pattern)
		var matched bool
		beyond, matched = v.restrict(beyond, v.pattern)
		all = all && isAny
		if slices.Contains(m.kept, i) {
			patterns = append(patterns, text)
			isUnsaid, isMore = isUnsaid || !ok, isMore || !matched
		} else {
			isBeyond, isUnsaid = isBeyond || !isAny, isUnsaid || !matched
		}
	}
	switch {
	case isUnsaid:
		m.cannot("This rule should leave out requests of " + c.name + ", and cannot say so.")
	case isBeyond:
		if isMore {
			m.note("This rule should leave out requests of " + c.name + ", and leaves out more.")
		}
		m.rule.Exempt = append(m.rule.Exempt, beyond)
	case all:
		return false
	case inside:
		m.rule.Overrides = append(m.rule.Overrides, override{patterns, c.quota})
	default:
		m.rule.Overrides = append(m.rule.Overrides, override{patterns, nil})
	}
	return true
}

// only makes keys outside the cell unlimited, where the match could not.
func (m *maker) only() {
	patterns, others := make([]string, len(m.kept)), make([]string, len(m.kept))
	for at, i := range m.kept {
		patterns[at], others[at] = "*", "*"
		if slices.Contains(m.listed, i) {
			patterns[at], _ = m.values[i].override(m.values[i].pattern)
		}
	}
	m.rule.Overrides = append(m.rule.Overrides, override{patterns, m.quota}, override{others, nil})
}

// others limits a descriptor to the requests of its scope that no rule limits.
// It reports whether there are any.
func (d *descriptor) others(rules []rule) bool {
	own := d.exempt
	for i := range rules {
		m, ok := rules[i].limits(own)
		m = m.without(d.match)
		switch {
		case ok && len(m) == 0:
			return false
		case ok:
			d.exempt = append(slices.Clip(d.exempt), m)
		case len(d.unknown) == 0 || d.unknown[len(d.unknown)-1] != othersUnknown:
			d.cannot(othersUnknown)
		}
	}
	return true
}

const othersUnknown = "It is only for requests without a descriptor, and an exempt cannot say which those are."

// limits says which requests a rule limits, of those that an exemption leaves.
// It is not ok where no match can say that, as for a rule that is off.
func (r *rule) limits(exempt []match) (m match, ok bool) {
	m = r.Match
	for _, p := range r.Key {
		switch {
		case p.kind == "header" && m[p.String()] == nil:
			m, _ = m.and(match{p.String(): {"*"}})
		case p.kind == "query", p.kind == "property":
			return nil, false
		}
	}
	beyond := slices.ContainsFunc(r.Exempt, func(m match) bool {
		return !slices.ContainsFunc(exempt, func(o match) bool { return reflect.DeepEqual(m, o) })
	})
	return m, !beyond && !r.off && !slices.ContainsFunc(r.Overrides, func(o override) bool { return o.quota == nil })
}
