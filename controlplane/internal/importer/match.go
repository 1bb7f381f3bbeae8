package importer

import (
	"maps"
	"slices"
	"strings"
)

// match is a rule's match, or one exemption: by the name of a part, patterns. Each part must fit one of
// its patterns. A match is not changed once it is made.
type match map[string][]pattern

// matching is the match in which the part must fit one of the patterns.
func (p part) matching(patterns ...pattern) match { return match{p.String(): patterns} }

// of are the patterns that a part must fit one of; none if there is no condition on it.
func (m match) of(p part) []pattern { return m[p.String()] }

// MarshalYAML writes the match on a line.
func (m match) MarshalYAML() (any, error) {
	headers := map[string]string{}
	for name, values := range m {
		if header, ok := strings.CutPrefix(name, "header "); ok {
			headers[header] = values[0].notation(headerPart(header))
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
	maps.DeleteFunc(left, func(name string, values []pattern) bool { return slices.Equal(values, other[name]) })
	return left
}

// and is the match with the conditions of both. Of two paths it takes the narrower one. If both have
// different conditions on another part, it keeps the condition of m and is not ok.
func (m match) and(other match) (both match, ok bool) {
	both = match{}
	ok = true
	maps.Copy(both, m)
	for name, more := range other {
		has := m[name]
		isPath := name == fullPath.String() && len(has) == 1 && len(more) == 1
		switch {
		case has == nil, isPath && more[0].within(has[0]):
			both[name] = more
		case slices.Equal(has, more), isPath && has[0].within(more[0]):
		default:
			ok = false
		}
	}
	return both, ok
}

// joined has the exemptions by one list, such as paths, in one exemption.
func joined(list []match) (short []match) {
	at := map[string]int{}
	for _, m := range list {
		for name, values := range m {
			i, isKnown := at[name]
			isList := len(m) == 1 && !strings.HasPrefix(name, "header ")
			switch {
			case !isList:
				short = append(short, m)
			case isKnown:
				short[i] = match{name: appendNew(short[i][name], values)}
			default:
				at[name] = len(short)
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
