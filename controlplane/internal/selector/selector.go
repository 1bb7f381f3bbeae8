// Package selector says which proxies a policy is for, and whether two policies could be
// for the same one.
//
// Its invariant: two selectors between which Both finds no example never match one proxy.
// It must import nothing of the control plane.
package selector

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Selector matches proxies for which all holds that is given; see policy.Selector. It is
// kept with each revision.
type Selector struct {
	Node     string            `json:"node,omitempty"`
	Cluster  string            `json:"cluster,omitempty"`
	SAN      string            `json:"san,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Proxy is what a selector may ask about.
type Proxy struct {
	Node     string
	Cluster  string
	SAN      string // the name in its certificate that grants the node id
	Metadata map[string]string
}

// Match says whether the policy is for the proxy.
func (s *Selector) Match(p *Proxy) bool {
	for _, part := range [...][2]string{{s.Node, p.Node}, {s.Cluster, p.Cluster}, {s.SAN, p.SAN}} {
		if part[0] != "" && !match(part[0], part[1]) {
			return false
		}
	}
	for name, pattern := range s.Metadata {
		if text, has := p.Metadata[name]; !has || !match(pattern, text) {
			return false
		}
	}
	return true
}

// Equal says whether two selectors, nil for none, are the same.
func (s *Selector) Equal(o *Selector) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Node == o.Node && s.Cluster == o.Cluster && s.SAN == o.SAN && maps.Equal(s.Metadata, o.Metadata)
}

// match says whether the whole text fits a pattern, in which each * stands for any text.
func match(pattern, text string) bool {
	star, again := -1, 0 // behind the last *, and where its text could grow to
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			p++
			star, again = p, t
		case p < len(pattern) && pattern[p] == text[t]:
			p, t = p+1, t+1
		case star >= 0:
			again++
			p, t = star, again
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Both describes a proxy that both selectors match, false if there is none.
func Both(a, b *Selector) (example string, ok bool) {
	var parts []string
	both := func(what, p, q string) bool {
		if p == "" && q == "" {
			return true
		}
		text, ok := meet(orAny(p), orAny(q))
		if ok {
			parts = append(parts, fmt.Sprintf("%s %q", what, text))
		}
		return ok
	}
	if !both("node", a.Node, b.Node) || !both("cluster", a.Cluster, b.Cluster) || !both("san", a.SAN, b.SAN) {
		return "", false
	}
	names := maps.Clone(a.Metadata)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, b.Metadata)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !both("metadata "+name, a.Metadata[name], b.Metadata[name]) {
			return "", false
		}
	}
	return strings.Join(parts, ", "), true
}

func orAny(pattern string) string {
	if pattern == "" {
		return "*"
	}
	return pattern
}

// step is how a pair of places in two patterns was reached.
type step struct {
	from [2]int
	text string
}

// meet finds a shortest text that fits both patterns, in which a * that meets a * stands for
// one "1": it reads as somebody's name then.
func meet(a, b string) (text string, ok bool) {
	start, end := [2]int{}, [2]int{len(a), len(b)}
	reached := map[[2]int]step{start: {}}
	for queue := [][2]int{start}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at == end {
			return walked(reached, end), true
		}
		for _, next := range nexts(a, b, at) {
			if _, before := reached[next.from]; !before {
				reached[next.from] = step{at, next.text}
				queue = append(queue, next.from)
			}
		}
	}
	return "", false
}

// nexts are the places after a pair of places, each with the text that leads there.
func nexts(a, b string, at [2]int) (list []step) {
	i, j := at[0], at[1]
	inA, inB := i < len(a), j < len(b)
	starA, starB := inA && a[i] == '*', inB && b[j] == '*'
	if starA && starB {
		return []step{{[2]int{i + 1, j + 1}, "1"}, {[2]int{i + 1, j}, ""}, {[2]int{i, j + 1}, ""}}
	}
	if starA {
		list = append(list, step{[2]int{i + 1, j}, ""})
		if inB {
			list = append(list, step{[2]int{i, j + 1}, b[j : j+1]})
		}
	}
	if starB {
		list = append(list, step{[2]int{i, j + 1}, ""})
		if inA {
			list = append(list, step{[2]int{i + 1, j}, a[i : i+1]})
		}
	}
	if !starA && !starB && inA && inB && a[i] == b[j] {
		list = append(list, step{[2]int{i + 1, j + 1}, a[i : i+1]})
	}
	return list
}

// walked is the text on the way to a place.
func walked(reached map[[2]int]step, at [2]int) string {
	var parts []string
	for at != [2]int{} {
		parts = append(parts, reached[at].text)
		at = reached[at].from
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}
