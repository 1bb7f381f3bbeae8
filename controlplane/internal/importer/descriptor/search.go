package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// leaf is where the limiter's search ends for some requests of a descriptor: the conditions that they meet, and the
// level with their limit, if it has one. An example:
//
//	entries of the descriptor   pairs of the level   conditions of the leaf
//	path = the request's path   path = /login        /login for the path
//	kind = api, a fixed text    kind = api           none: it is the same for all requests
//	user = the header x-user    user = anything      anything for the header x-user
//
// All leaves of a descriptor have conditions on the same values, in the same order.
type leaf struct {
	level      *Level // one without a limit for the requests of no level of the configuration
	conditions []condition
}

// condition is a value of the request, and the pattern that it fits.
type condition struct {
	value  request.Value
	fits   request.Pattern
	shared bool // all the values that fit count together
}

// within reports whether every request that meets the conditions of the leaf meets those of another one of the
// descriptor too. Like that of patterns it may say false where it is so.
//
// Values are compared as texts, also those of hosts and addresses, because these limiters compare texts: the value
// 10.0.0.0/8 is that of a request whose address is masked to it, and not that of 10.1.2.3.
func (l *leaf) within(other *leaf) bool {
	for i, c := range l.conditions {
		if !c.fits.Within(other.conditions[i].fits) {
			return false
		}
	}
	return true
}

// apart reports whether no request meets the conditions of both leaves of a descriptor. Like that of patterns it may
// say false where it is so.
func (l *leaf) apart(other *leaf) bool {
	for i, c := range l.conditions {
		if c.fits.Apart(other.conditions[i].fits) {
			return true
		}
	}
	return false
}

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
			if end, ok := l.leafOf(entries); ok {
				return []*leaf{end}
			}
		}
		return []*leaf{leafOfRest(entries, begin)}
	}
	e := entries[depth]
	groups := Grouped(levels, depth, func(p Pair) (value string, ok bool) { return p.Text(), p.Key == e.key })
	slices.SortStableFunc(groups, func(a, b []*Level) int {
		return ranks[a[0].Pairs[depth].Kind()] - ranks[b[0].Pairs[depth].Kind()]
	})
	for _, group := range groups {
		next := group[0].Pairs[depth]
		if e.mayBe(next) {
			list = append(list, leavesBelow(group, entries, append(slices.Clip(begin), next))...)
			if e.kind != fromRequest || next.Kind() == request.AnyValue {
				return list
			}
		}
	}
	return append(list, leafOfRest(entries, begin))
}

// Grouped groups levels by their pair at a depth, in their order. Levels that have no pair there, or for which
// by is not ok, are in no group. By the values at depth 0, [path = /a], [path = /b, user] and [path = /a, user]
// make two groups: the first and the third, and the second.
func Grouped(levels []*Level, depth int, by func(Pair) (value string, ok bool)) (groups [][]*Level) {
	index := map[string]int{}
	for _, l := range levels {
		if len(l.Pairs) <= depth {
			continue
		}
		value, ok := by(l.Pairs[depth])
		switch i, known := index[value]; {
		case !ok:
		case known:
			groups[i] = append(groups[i], l)
		default:
			index[value] = len(groups)
			groups = append(groups, []*Level{l})
		}
	}
	return groups
}

// ranks are the order in which envoyproxy/ratelimit tries the values of a key. Its levels have no other patterns.
var ranks = map[request.PatternKind]int{request.Exactly: 0, request.WithWildcards: 1, request.AnyValue: 2}

// localLeaves lists the leaves of a descriptor for Envoy's local filter: levels without an empty value first,
// then the others, each as a whole. The second level of this example has one, of the path:
//
//	levels                          leaves, in their order
//	path = /login, user = alice: 1  path = /login, user = alice       limit 1
//	path = anything, user = bob: 2  path = anything, user = bob       limit 2: also of /login
//	                                path = anything, user = anything  none
func localLeaves(levels []*Level, entries []Entry) (list []*leaf) {
	isOpen := func(p Pair) bool { return p.Kind() == request.AnyValue }
	for _, open := range []bool{false, true} {
		for _, l := range levels {
			if end, ok := l.leafOf(entries); ok && open == slices.ContainsFunc(l.Pairs, isOpen) {
				list = append(list, end)
			}
		}
	}
	return append(list, leafOfRest(entries, nil))
}

// leafOfRest is the leaf of the requests that no level takes: those of the descriptor that have the pairs begin, and
// any values behind them. It has no limit.
func leafOfRest(entries []Entry, begin []Pair) *leaf {
	l := &Level{Pairs: slices.Clone(begin)}
	for _, e := range entries[len(begin):] {
		l.Pairs = append(l.Pairs, Pair{Key: e.key, Pattern: request.Anything})
	}
	end, _ := l.leafOf(entries) // it is ok: begin was chosen for these entries, and the rest has their keys and any value
	return end
}

// leafOf is the leaf of the level for a descriptor with these entries. It is ok if the entries have the keys of the
// level's pairs, and may have their values.
func (l *Level) leafOf(entries []Entry) (end *leaf, ok bool) {
	if len(l.Pairs) != len(entries) {
		return nil, false
	}
	end = &leaf{level: l}
	for i, e := range entries {
		has := l.Pairs[i]
		if !e.mayBe(has) {
			return nil, false
		}
		if e.kind == fromRequest {
			end.conditions = append(end.conditions, condition{e.value, has.Pattern, has.Shared})
		}
	}
	return end, true
}
