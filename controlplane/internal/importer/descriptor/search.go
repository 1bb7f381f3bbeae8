package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// serviceLeaves lists the leaves of a descriptor in the order in which envoyproxy/ratelimit chooses: first the level
// with exactly the request's value of the key, then the first with a wildcard that fits, then the level for any value.
// Once it has chosen, it does not go back, even if no level below the chosen one fits.
//
// An example: the descriptor has the entries path and user, each with a part of the request.
//
//	levels                          leaves, in their order
//	path = /login, user = alice: 1  path = /login, user = alice       limit 1
//	path = anything, user = bob: 2  path = /login, user = anything    none: it does not go back to bob
//	                                path = anything, user = bob       limit 2
//	                                path = anything, user = anything  none
func serviceLeaves(levels []*Level, entries []Entry) []*leaf {
	return leavesBelow(levels, entries, nil)
}

// leavesBelow lists the leaves of the requests that have the pairs begin. All the levels begin with these pairs.
func leavesBelow(levels []*Level, entries []Entry, begin []Pair) (list []*leaf) {
	depth := len(begin)
	if depth == len(entries) {
		for _, l := range levels {
			if end, fits := l.leafOf(entries); fits {
				return []*leaf{end}
			}
		}
		return []*leaf{leafOfRest(entries, begin)}
	}
	e := entries[depth]
	groups := Grouped(levels, depth, func(p Pair) (value string, ok bool) { return p.Text(), p.Key == e.Key })
	slices.SortStableFunc(groups, func(a, b []*Level) int {
		return ranks[a[0].Pairs[depth].Kind()] - ranks[b[0].Pairs[depth].Kind()]
	})
	for _, group := range groups {
		next := group[0].Pairs[depth]
		if !e.isFixed() || next.Matches(e.Value) {
			list = append(list, leavesBelow(group, entries, append(slices.Clip(begin), next))...)
			if e.isFixed() || next.Kind() == request.AnyValue {
				return list
			}
		}
	}
	return append(list, leafOfRest(entries, begin))
}

// ranks are the order in which envoyproxy/ratelimit tries the values of a key. Its levels have no other patterns.
var ranks = map[request.PatternKind]int{request.Exactly: 0, request.WithWildcards: 1, request.AnyValue: 2}

// localLeaves lists the leaves of a descriptor for Envoy's local filter: levels without an empty value first,
// then the others, each as a whole. With the levels of the example above it goes on to the second one:
//
//	path = /login, user = alice       limit 1
//	path = anything, user = bob       limit 2
//	path = anything, user = anything  none
func localLeaves(levels []*Level, entries []Entry) (list []*leaf) {
	isOpen := func(p Pair) bool { return p.Kind() == request.AnyValue }
	for _, open := range []bool{false, true} {
		for _, l := range levels {
			if end, fits := l.leafOf(entries); fits && open == slices.ContainsFunc(l.Pairs, isOpen) {
				list = append(list, end)
			}
		}
	}
	return append(list, leafOfRest(entries, nil))
}
