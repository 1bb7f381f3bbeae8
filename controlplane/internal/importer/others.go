package importer

import (
	"reflect"
	"slices"
)

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
