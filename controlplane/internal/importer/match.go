package importer

import (
	"maps"
	"slices"
)

// match is a rule's match, or one exemption: patterns of parts. Each of the parts must fit one of
// its patterns. A match is not changed once it is made.
type match map[partID][]pattern

// matching is the match in which the part must fit one of the patterns.
func (p part) matching(patterns ...pattern) match { return match{p.id(): patterns} }

// of are the patterns that a part must fit one of; none if there is no condition on it.
func (m match) of(p part) []pattern { return m[p.id()] }

// MarshalYAML writes the match on a line.
func (m match) MarshalYAML() (any, error) {
	headers := map[string]string{}
	for id, values := range m {
		if id.kind == kindHeader {
			headers[id.name] = values[0].notation(headerPart(id.name))
		}
	}
	var paths []string
	for _, p := range m.of(fullPath) {
		paths = append(paths, p.notation(fullPath))
	}
	return flow(struct {
		Hosts     []string          `yaml:"hosts,omitempty"`
		Methods   []string          `yaml:"methods,omitempty"`
		Paths     []string          `yaml:"paths,omitempty"`
		Headers   map[string]string `yaml:"headers,omitempty"`
		ClientIPs []string          `yaml:"client_ips,omitempty"`
	}{m.texts(host), m.texts(method), paths, headers, m.texts(clientIP)}), nil
}

// texts are the texts of a part's patterns.
func (m match) texts(p part) (list []string) {
	for _, v := range m.of(p) {
		list = append(list, v.text)
	}
	return list
}

func (m match) equal(other match) bool { return maps.EqualFunc(m, other, slices.Equal[[]pattern]) }

// without is the match without the conditions that another one has too.
func (m match) without(other match) match {
	left := maps.Clone(m)
	maps.DeleteFunc(left, func(id partID, values []pattern) bool { return slices.Equal(values, other[id]) })
	return left
}

// and is the match with the conditions of both. Of two paths it takes the narrower one. If both have
// different conditions on another part, it keeps the condition of m and is not ok.
func (m match) and(other match) (both match, ok bool) {
	both = match{}
	ok = true
	maps.Copy(both, m)
	for id, more := range other {
		has := m[id]
		isPath := id.kind == kindPath && len(has) == 1 && len(more) == 1
		switch {
		case has == nil, isPath && more[0].within(has[0]):
			both[id] = more
		case slices.Equal(has, more), isPath && has[0].within(more[0]):
		default:
			ok = false
		}
	}
	return both, ok
}

// joined has the exemptions by one list, such as paths, in one exemption.
func joined(list []match) (short []match) {
	index := map[partID]int{} // in short, of the exemption by a part
	for _, m := range list {
		for id, values := range m {
			i, isKnown := index[id]
			isList := len(m) == 1 && id.kind != kindHeader
			switch {
			case !isList:
				short = append(short, m)
			case isKnown:
				short[i] = match{id: appendNew(short[i][id], values)}
			default:
				index[id] = len(short)
				short = append(short, m)
			}
			break
		}
	}
	return short
}

// appendNew adds the patterns that the list does not have.
func appendNew(list, more []pattern) []pattern {
	list = slices.Clone(list)
	for _, p := range more {
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}
