package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// leaf is the leaf of the level for a descriptor with these entries. It fits if the entries have
// the keys of the level's pairs, and may have their values.
func (l *Level) leaf(entries []Entry) (end Leaf, fits bool) {
	if len(l.Pairs) != len(entries) {
		return Leaf{}, false
	}
	end = Leaf{level: l, Name: l.Name(), At: l.At, order: l.Order}
	if l.HasLimit() {
		end.Quota = l.Quota
	}
	for i, e := range entries {
		switch has := l.Pairs[i]; {
		case has.Key != e.Key, e.Part == nil && !has.Matches(e.Value):
			return Leaf{}, false
		case e.Part != nil:
			end.values = append(end.values, leafValue{part: e.Part, pattern: has.Pattern, shared: has.Shared})
		}
	}
	return end, true
}

// LeafOfRest is the leaf of the requests that no level takes: those of the descriptor that have the
// pairs begin, and any values behind them. It has no limit.
func LeafOfRest(entries []Entry, begin ...Pair) Leaf {
	l := &Level{Pairs: slices.Clone(begin)}
	for _, e := range entries[len(begin):] {
		l.Pairs = append(l.Pairs, Pair{Key: e.Key})
	}
	end, _ := l.leaf(entries)
	end.level = nil
	return end
}

// ServiceLeaves lists the leaves of a descriptor below levels that have the pairs begin in common, in
// the order in which envoyproxy/ratelimit chooses: first the level with exactly the request's value of
// the key, then the first with a wildcard that fits, then the level for any value. Once it has chosen,
// it does not go back, even if no level below the chosen one fits.
//
// An example: the descriptor has the entries path and user, each with a part of the request.
//
//	levels                          leaves, in their order
//	path = /login, user = alice: 1  path = /login, user = alice       limit 1
//	path = anything, user = bob: 2  path = /login, user = anything    none: it does not go back to bob
//	                                path = anything, user = bob       limit 2
//	                                path = anything, user = anything  none
func ServiceLeaves(levels []*Level, entries []Entry, begin ...Pair) (list []Leaf) {
	depth := len(begin)
	if depth == len(entries) {
		end, _ := levels[0].leaf(entries) // it has exactly these pairs: each level comes before those below it
		return []Leaf{end}
	}
	e := entries[depth]
	groups := Grouped(levels, depth, func(p Pair) (value string, ok bool) { return p.Text, p.Key == e.Key })
	slices.SortStableFunc(groups, func(a, b []*Level) int {
		return rankOf(a[0].Pairs[depth].Pattern) - rankOf(b[0].Pairs[depth].Pattern)
	})
	for _, group := range groups {
		next := group[0].Pairs[depth]
		if e.Part != nil || next.Matches(e.Value) {
			list = append(list, ServiceLeaves(group, entries, append(slices.Clip(begin), next)...)...)
			if e.Part == nil || next.Kind == request.AnyValue {
				return list
			}
		}
	}
	return append(list, LeafOfRest(entries, begin...))
}

// rankOf is a pattern's place in the order in which envoyproxy/ratelimit tries the values of a key.
func rankOf(p request.Pattern) int {
	switch p.Kind {
	case request.Exactly:
		return 0
	case request.WithWildcards:
		return 1
	case request.AnyValue:
	case request.PathOrBelow, request.ByExpression, request.Missing: // no level has these
	}
	return 2
}

// LocalLeaves lists the leaves of a descriptor for Envoy's local filter: levels without an empty value first,
// then the others, each as a whole. With the levels of the example above it goes on to the second one:
//
//	path = /login, user = alice       limit 1
//	path = anything, user = bob       limit 2
//	path = anything, user = anything  none
func LocalLeaves(levels []*Level, entries []Entry) (list []Leaf) {
	isOpen := func(p Pair) bool { return p.Kind == request.AnyValue }
	for _, open := range []bool{false, true} {
		for _, l := range levels {
			if end, fits := l.leaf(entries); fits && open == slices.ContainsFunc(l.Pairs, isOpen) {
				list = append(list, end)
			}
		}
	}
	return append(list, LeafOfRest(entries))
}
