package request

import (
	"maps"
	"slices"
)

// Match is a rule's match, or one exemption: patterns of parts. Each of the parts must fit one of its patterns. The
// parts are hosts, methods, paths, headers and client addresses: a policy matches no others, and TryRequire refuses
// them. Hosts, methods and addresses have texts alone (Exact). Those of hosts and addresses stand for what they name:
// see partID.within. A header has one pattern, as a policy has one for each. A match is not changed once it is made.
type Match map[partID][]Pattern

// Matching is the match in which the part must fit one of the patterns.
func (p Part) Matching(patterns ...Pattern) Match { return Match{p.id(): slices.Clone(patterns)} }

// Of are the patterns that a part must fit one of; none if there is no condition on it.
func (m Match) Of(p Part) []Pattern { return m[p.id()] }

// MarshalYAML writes the match on a line.
func (m Match) MarshalYAML() (any, error) {
	headers := map[string]string{}
	for id, values := range m {
		if id.kind == KindHeader {
			headers[id.name] = values[0].notation(Part{Kind: id.kind, Name: id.name})
		}
	}
	var paths []string
	for _, p := range m.Of(FullPath) {
		paths = append(paths, p.notation(FullPath))
	}
	return Flow(struct {
		Hosts     []string          `yaml:"hosts,omitempty"`
		Methods   []string          `yaml:"methods,omitempty"`
		Paths     []string          `yaml:"paths,omitempty"`
		Headers   map[string]string `yaml:"headers,omitempty"`
		ClientIPs []string          `yaml:"client_ips,omitempty"`
	}{m.texts(Host), m.texts(Method), paths, headers, m.texts(ClientIP)}), nil
}

// texts are the texts of a part's patterns.
func (m Match) texts(p Part) (list []string) {
	for _, v := range m.Of(p) {
		list = append(list, v.text)
	}
	return list
}

// Equal reports whether two matches have the same conditions.
func (m Match) Equal(other Match) bool { return maps.EqualFunc(m, other, slices.Equal[[]Pattern]) }

// Without is the match without the conditions that another one has too.
func (m Match) Without(other Match) Match {
	left := maps.Clone(m)
	maps.DeleteFunc(left, func(id partID, values []Pattern) bool { return slices.Equal(values, other[id]) })
	return left
}

// TryRequire is the match with the condition that a part fits a pattern. It is not ok if no match can say that: the
// caller has another way to say it. A selection has none, and takes Selection.Require.
func (m Match) TryRequire(p Compared, v Pattern) (narrow Match, ok bool) {
	narrow, _, why := m.narrow(p, v)
	return narrow, why == ""
}

// narrow is the match with the condition that a part fits a pattern, or why no match can say that: see translate.
func (m Match) narrow(p Compared, v Pattern) (narrow Match, comment, why string) {
	if v.kind == AnyValue {
		return m, "", ""
	}
	made := p.translate(v)
	switch {
	case made.why != "":
		return nil, made.comment, made.why
	case !p.canMatch(made.Pattern):
		return nil, made.comment, p.someCondition()
	}
	narrow, why = m.And(p.Matching(made.Pattern))
	return narrow, made.comment, why
}

// canMatch reports whether a match can have the pattern, as translate makes it, of the part.
func (p Part) canMatch(v Pattern) bool {
	switch p.Kind {
	case KindPath, KindHeader:
		return true
	case kindMethod:
		return v.kind == Exactly && HasOnly(v.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
	case KindHost:
		return v.kind == Exactly && IsHost(v.text)
	case KindClientIP:
		return v.kind == Exactly
	case KindQuery, KindCookie, KindProperty:
	}
	return false
}
