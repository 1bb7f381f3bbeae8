package importer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// choose picks the site that has what is wanted, by name where there are
// several; nil if there is none.
func choose(sites []*site, listener string, wants func(s *site) bool) (*site, error) {
	var fits []*site
	seen, ofName := map[string]bool{}, map[string]int{}
	for _, s := range sites {
		if id := s.text(); wants(s) && !seen[id] { // Istio has a chain for TLS and the same for plain text
			seen[id] = true
			ofName[s.name]++
			fits = append(fits, s)
		}
	}
	c := &Choices{Given: listener}
	var chosen []*site
	for _, s := range fits {
		name := s.name
		if ofName[s.name] > 1 && s.routes != "" {
			name += "/" + s.routes
		}
		for n, base := 2, name; slices.Contains(c.Names, name); n++ {
			name = base + "#" + strconv.Itoa(n)
		}
		c.Names = append(c.Names, name)
		if listener == "" || listener == name || listener == s.name && ofName[s.name] == 1 {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(chosen) == 1:
		if s := chosen[0]; s.routing == nil {
			s.in.notes.add(place{}, strings.TrimSpace("The routes "+s.routes)+" of the listener "+s.name+" are not in this file: give them with "+
				"--routes FILE.")
		}
		return chosen[0], nil
	case len(fits) == 0:
		return nil, nil
	}
	return nil, c
}

// text is what a site says, to compare it with others.
func (s *site) text() string {
	b := []byte(s.name)
	for _, c := range s.filters {
		if c.node != nil {
			b = policy.AppendJSON(append(b, c.message...), c.node)
		}
	}
	if s.routing != nil {
		b = policy.AppendJSON(b, s.routing)
	}
	return string(b)
}

// contains reports whether an object in the tree is wanted.
func contains(n *policy.Node, wants func(n *policy.Node) bool) bool {
	return n != nil && (wants(n) ||
		slices.ContainsFunc(n.Items, func(item *policy.Node) bool { return contains(item, wants) }) ||
		slices.ContainsFunc(n.Fields, func(f policy.Field) bool { return contains(f.Value, wants) }))
}
