package request

import (
	"cmp"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Match is a rule's match, or one exemption: patterns of parts. Each of the parts must fit one of its patterns.
// Value.Fitting makes matches. A header has one pattern, as a policy has one for each. A match is not changed once it
// is made.
type Match map[partID][]Pattern

// takes reports whether a match may have a pattern of the part. It is one that translate has made.
func (p Part) takes(v Pattern) bool {
	switch p.Kind {
	case KindPath, KindHeader:
		return v != Pattern{}
	case KindMethod:
		return v.kind == Exactly && HasOnly(v.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
	case KindHost:
		hosts, ok := HostPattern(v.text)
		return ok && v == hosts
	case KindClientIP:
		return v.kind == Exactly
	case KindQuery, KindCookie, KindProperty:
	}
	return false
}

// Equal reports whether two matches have the same conditions.
func (m Match) Equal(other Match) bool { return maps.EqualFunc(m, other, slices.Equal[[]Pattern]) }

// WithoutConditionsOf is the match without the conditions that another one has too.
func (m Match) WithoutConditionsOf(other Match) Match {
	left := maps.Clone(m)
	maps.DeleteFunc(left, func(id partID, values []Pattern) bool { return slices.Equal(values, other[id]) })
	return left
}

// joined is the match with the conditions of both. Of two conditions on one part it takes the values that fit both: of
// /a* and /a/b the path /a/b, of the hosts *.example and a.example the host a.example. Where there are none, or no list
// of patterns says which, it leaves out that of the other match: why names the first such part.
func (m Match) joined(other Match) (both Match, why WhyOff) {
	both = Match{}
	maps.Copy(both, m)
	byName := func(a, b partID) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) }
	for _, id := range slices.SortedFunc(maps.Keys(other), byName) {
		values, inBoth := m[id]
		if !inBoth {
			both[id] = other[id]
			continue
		}
		common, isKnown := id.commonValues(values, other[id])
		switch {
		case isKnown && len(common) > 0:
			both[id] = common
		case why == "":
			why = NoMatch("they have two conditions on " + id.part().String())
		}
	}
	return both, why
}

// commonValues are the patterns for the values of the part that fit one of each list. They are not known if no list of
// patterns says that.
func (id partID) commonValues(a, b []Pattern) (common []Pattern, isKnown bool) {
	for _, p := range a {
		for _, q := range b {
			switch {
			case id.within(p, q):
				common = appendNew(common, p)
			case id.within(q, p):
				common = appendNew(common, q)
			case !id.apart(p, q):
				return nil, false
			}
		}
	}
	return common, true
}

// Joined has the exemptions by one list in one exemption, where the first of them is: those of the paths /a and of the
// paths /b make one of the paths /a and /b.
func Joined(list []Match) (short []Match) {
	type condition struct {
		of partID
		Pattern
	}
	isThere := map[condition]bool{}
	index := map[partID]int{} // in short, of the exemption by a part
	for _, m := range list {
		id, isList := m.onlyList()
		if !isList {
			short = append(short, m)
			continue
		}
		if _, hasOne := index[id]; !hasOne {
			index[id] = len(short)
			short = append(short, Match{})
		}
		one := short[index[id]]
		for _, v := range m[id] {
			if c := (condition{id, v}); !isThere[c] {
				isThere[c] = true
				one[id] = append(one[id], v)
			}
		}
	}
	return short
}

// onlyList is the part of the match's only condition, if there is one, on a part of which a match has a list.
func (m Match) onlyList() (id partID, ok bool) {
	parts := slices.Collect(maps.Keys(m))
	if len(parts) != 1 || parts[0].kind == KindHeader {
		return partID{}, false
	}
	return parts[0], true
}

// appendNew adds a pattern, if the list does not have it.
func appendNew(list []Pattern, p Pattern) []Pattern {
	if slices.Contains(list, p) {
		return list
	}
	return append(list, p)
}

// MarshalYAML writes the match on a line.
func (m Match) MarshalYAML() (any, error) {
	headers := map[string]string{}
	for id, values := range m {
		if id.kind == KindHeader {
			headers[id.name] = values[0].notation(id.part())
		}
	}
	var paths []string
	for _, p := range m[FullPath.id()] {
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
	for _, v := range m[p.id()] {
		list = append(list, v.text)
	}
	return list
}

// Encoded is a value as YAML. Package draft writes rules by it too.
func Encoded(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return n
}

// Flow is a value as YAML on one line.
func Flow(v any) *yaml.Node {
	n := Encoded(v)
	n.Style |= yaml.FlowStyle
	return n
}
