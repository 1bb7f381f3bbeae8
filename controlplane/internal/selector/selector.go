// Package selector says which proxies a policy is for, and whether two policies could be
// for the same one.
//
// Its invariant: two selectors between which Both finds no example never match one proxy.
// It must import nothing of the control plane.
package selector

import (
	"cmp"
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
	begin, rest, hasStar := strings.Cut(pattern, "*")
	text, fits := strings.CutPrefix(text, begin)
	for hasStar && fits {
		begin, rest, hasStar = strings.Cut(rest, "*")
		if !hasStar {
			return strings.HasSuffix(text, begin)
		}
		_, text, fits = strings.Cut(text, begin)
	}
	return fits && text == ""
}

// Both describes a proxy that both selectors match, false if there is none.
func Both(a, b *Selector) (example string, ok bool) {
	asked := [][3]string{{"node", a.Node, b.Node}, {"cluster", a.Cluster, b.Cluster}, {"san", a.SAN, b.SAN}}
	names := map[string]string{}
	maps.Copy(names, a.Metadata)
	maps.Copy(names, b.Metadata)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		asked = append(asked, [3]string{"metadata " + name, a.Metadata[name], b.Metadata[name]})
	}
	var parts []string
	for _, of := range asked {
		if of[1] == "" && of[2] == "" {
			continue
		}
		text, ok := meet(cmp.Or(of[1], "*"), cmp.Or(of[2], "*"))
		if !ok {
			return "", false
		}
		parts = append(parts, fmt.Sprintf("%s %q", of[0], text))
	}
	return strings.Join(parts, ", "), true
}

// meet finds a text that fits both patterns. Where both have a *, there is one if one's
// beginning begins the other's, and one's end ends the other's: all else can stand in a row
// between them. A "1" for a * reads as somebody's name.
func meet(a, b string) (text string, ok bool) {
	firstA, firstB := strings.IndexByte(a, '*'), strings.IndexByte(b, '*')
	if firstA < 0 {
		return a, match(b, a)
	}
	if firstB < 0 {
		return b, match(a, b)
	}
	lastA, lastB := strings.LastIndexByte(a, '*'), strings.LastIndexByte(b, '*')
	begin, end := a[:firstA], a[lastA+1:]
	if firstB > firstA {
		begin = b[:firstB]
	}
	if len(b)-lastB > len(a)-lastA {
		end = b[lastB+1:]
	}
	for shared := min(len(begin), len(end)); shared > 0; shared-- {
		text = begin + end[shared:]
		if match(a, text) && match(b, text) {
			return text, true
		}
	}
	text = begin + "1"
	for part := range strings.SplitSeq(a[firstA:lastA+1]+b[firstB:lastB+1], "*") {
		if part != "" {
			text += part + "1"
		}
	}
	text += end
	return text, match(a, text) && match(b, text)
}
