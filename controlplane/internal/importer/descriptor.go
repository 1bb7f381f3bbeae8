package importer

import (
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

// parts are the parts of the request that the entries have as values.
func (d *descriptor) parts() []part {
	var list []part
	for _, e := range d.entries {
		if e.part != nil {
			list = append(list, *e.part)
		}
	}
	return list
}

// keys names the descriptor.
func (d *descriptor) keys() string {
	names := make([]string, len(d.entries))
	for i, e := range d.entries {
		names[i] = named(e.key, e.value)
	}
	return strings.Join(names, ".")
}

// cell is one case of a descriptor: a pattern for each of its parts, and the
// quota of requests that fit, nil for none. A request is in the first cell of a
// list whose patterns it fits.
type cell struct {
	name     string
	patterns []pattern
	shared   []bool // values of this part count together
	quota    *quota
	place    place
}

// holds reports whether a cell can be an override of c's rule: its values are
// all among those of c, but for free parts, which may have any value.
func (c *cell) holds(other *cell, free []bool) bool {
	if other.quota == nil || !other.quota.isOfClass(c.quota) || len(other.quota.notes) > 0 ||
		len(other.quota.unknown)+len(c.quota.unknown) > 0 {
		return false
	}
	for i := range c.patterns {
		if c.shared[i] || other.shared[i] || !free[i] && !other.patterns[i].within(c.patterns[i]) {
			return false
		}
	}
	return true
}

// unmatched reports which parts are free: no match can restrict them to a
// cell's patterns, so the overrides of its rule have to.
func (d *descriptor) unmatched(c *cell) []bool {
	list, m := make([]bool, len(c.patterns)), d.match
	for i, p := range d.parts() {
		var matched bool
		m, matched = p.restrict(m, c.patterns[i])
		list[i] = !matched
	}
	return list
}

// apart reports whether no request is in both cells by the parts that are not
// free. It may miss some.
func (c *cell) apart(other *cell, free []bool) bool {
	for i := range c.patterns {
		if !free[i] && c.patterns[i].apart(other.patterns[i]) {
			return true
		}
	}
	return false
}

// rules makes rules that give every request the quota of its cell. A cell whose
// values are among those of a later cell with the same window becomes an
// override of that cell's rule.
func (d *descriptor) rules(cells []cell, r *reader) []rule {
	var list []rule
	limited := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.quota == nil })
	if len(limited) > policy.MaxRules { // each is compared with each other
		at := cells[0].place
		at.Message = d.keys() + " has more than " + strconv.Itoa(policy.MaxRules) + " values with a limit: import fewer"
		r.problems = append(r.problems, at)
		return nil
	}
	cells = d.possible(cells, r)
	done := make([]bool, len(cells))
	for at := len(cells) - 1; at >= 0; at-- {
		if cells[at].quota == nil || done[at] {
			continue
		}
		free, inside := d.unmatched(&cells[at]), map[int]bool{}
		for i := range at {
			if !done[i] && cells[at].holds(&cells[i], free) && d.unsayable(&cells[i]) == "" {
				done[i], inside[i] = true, true
			}
		}
		if len(inside) == 0 {
			clear(free) // the rule is for its own values alone
		}
		var before []int
		for i := range at {
			if !cells[i].apart(&cells[at], free) {
				before = append(before, i)
			}
		}
		if r, ok := d.rule(cells, at, before, inside, r); ok {
			list = append(list, r)
			continue
		}
		for i := range inside { // they have rules of their own then
			done[i] = false
		}
	}
	slices.Reverse(list)
	if len(list) == 0 {
		for _, why := range d.unknown {
			r.add(d.place, why+" There is no limit for it.")
		}
	}
	return list
}

// unsayable says why no override has a cell's patterns, if none does.
func (d *descriptor) unsayable(c *cell) string {
	for i, p := range d.parts() {
		if _, ok := p.override(c.patterns[i]); !ok {
			return "Paths are compared without the query, and cannot say " + c.patterns[i].text + "."
		}
	}
	return ""
}

// possible leaves out cells with a value that no request has.
func (d *descriptor) possible(cells []cell, r *reader) []cell {
	parts := d.parts()
	return slices.DeleteFunc(slices.Clone(cells), func(c cell) bool {
		for i, v := range c.patterns {
			if parts[i].never(v) {
				r.add(c.place, "no request has the value "+v.text+" of "+c.name+", so there is no rule for it")
				return true
			}
		}
		return false
	})
}

// rule makes the rule of the cell at an index. The cells of before take their
// requests first: with their own limits where they are inside, else unlimited.
func (d *descriptor) rule(cells []cell, at int, before []int, inside map[int]bool, r *reader) (rule, bool) {
	c := &cells[at]
	m := &maker{descriptor: d, cell: c, reader: r, parts: d.parts()}
	m.rule = rule{Name: clip(c.name, 100), quota: c.quota, Match: d.match, Exempt: slices.Clone(d.exempt),
		Cost: d.cost, CountDenied: d.cost > 0 && c.quota.algorithm == ""}
	m.place()
	if why := d.unsayable(c); why != "" {
		m.note(why)
		m.off()
		return m.rule, true
	}
	m.notesOf()
	for _, i := range before {
		if !m.except(&cells[i], inside[i]) {
			r.add(c.place, c.name+" can never apply: limits before it take all its requests")
			return rule{}, false
		}
	}
	if len(m.listed) > 0 {
		m.only()
		if len(inside) > 0 {
			m.rule.Name = clip(d.keys(), 100) // it is for several values
		}
	}
	if n := len(m.rule.Exempt); n > policy.MaxExempt {
		m.rule.Exempt = m.rule.Exempt[:policy.MaxExempt]
		m.note("It should leave out the requests of " + strconv.Itoa(n) + " matches, and a rule has at most " +
			strconv.Itoa(policy.MaxExempt) + ".")
		m.off()
	}
	if len(m.rule.Overrides) > 0 && len(m.rule.Key) == 0 {
		m.rule.Overrides = nil
	}
	return m.rule, true
}

// maker makes one rule.
type maker struct {
	descriptor *descriptor
	cell       *cell
	rule       rule
	*reader
	parts  []part
	kept   []int // parts that are in the rule's key
	listed []int // those of them whose pattern only overrides can say
}

// note adds a comment to the rule, and a note.
func (m *maker) note(text string) {
	if !slices.Contains(m.rule.comments, text) {
		m.rule.comments = append(m.rule.comments, text)
	}
	m.add(m.cell.place, text)
}

func (m *maker) notesOf() {
	for _, text := range slices.Concat(m.descriptor.unknown, m.cell.quota.unknown, m.descriptor.notes, m.cell.quota.notes) {
		m.note(text)
	}
	if len(m.descriptor.unknown)+len(m.cell.quota.unknown) > 0 {
		m.off()
	}
}

// off switches the rule off, because its requests are not known.
func (m *maker) off() {
	m.rule.off = true
	m.note("The rule is off until you have dealt with that: then remove mode.")
}

// place puts every part into the match, into the key, or into both.
func (m *maker) place() {
	for i, p := range m.parts {
		v := m.cell.patterns[i]
		var matched bool
		m.rule.Match, matched = p.restrict(m.rule.Match, v)
		if v.kind == exactly && matched {
			continue
		}
		if m.cell.shared[i] {
			if !matched {
				m.note("Values of " + p.String() + " that fit " + v.text + " share one counter there. A rule cannot say that.")
				m.off()
			}
			continue
		}
		m.kept = append(m.kept, i)
		m.rule.Key = append(m.rule.Key, p)
		if !matched {
			m.listed = append(m.listed, i)
		}
	}
}

// except takes the requests of an earlier cell out of the rule. It reports
// whether any are left.
func (m *maker) except(c *cell, inside bool) bool {
	patterns, all := make([]string, len(m.kept)), true
	for at, i := range m.kept {
		v := c.patterns[i]
		if m.cell.patterns[i].within(v) && !slices.Contains(m.listed, i) {
			v = pattern{}
		}
		text, ok := m.parts[i].override(v)
		if !ok {
			m.note("This rule should leave out requests of " + c.name + ", and cannot say so.")
			m.off()
			return true
		}
		patterns[at] = text
		all = all && v.kind == anyValue
	}
	var beyond match // of parts that are not in the key
	for i, p := range m.parts {
		if !slices.Contains(m.kept, i) && !m.cell.patterns[i].within(c.patterns[i]) {
			var ok bool
			if beyond, ok = p.restrict(beyond, c.patterns[i]); !ok {
				m.note("This rule should leave out requests of " + c.name + ", and cannot say so.")
				m.off()
			}
		}
	}
	switch {
	case len(beyond) > 0:
		for at, i := range m.kept {
			if patterns[at] != "*" {
				var ok bool
				if beyond, ok = m.parts[i].restrict(beyond, c.patterns[i]); !ok {
					m.note("This rule should leave out requests of " + c.name + ", and leaves out more.")
				}
			}
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
			patterns[at], _ = m.parts[i].override(m.cell.patterns[i])
		}
	}
	m.rule.Overrides = append(m.rule.Overrides, override{patterns, m.cell.quota}, override{others, nil})
}
