package importer

import (
	"slices"
	"strings"
)

// level is what a configuration calls a descriptor: pairs of a key and its values, and the limit
// of the requests that have them.
type level struct {
	pairs []pair // first the pairs of the levels around it
	quota *quota
	at    place
	order int // in its file

	limitName string   // of its limit
	replaces  []string // names of the limits that its limit replaces
}

// pair is a key with the values that it may have.
type pair struct {
	key string
	pattern
	shared bool // all the values count together
}

// named is the name of a key and value in envoyproxy/ratelimit.
func named(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

func (l *level) name() string {
	var names []string
	for _, e := range l.pairs {
		names = append(names, named(e.key, e.text))
	}
	return strings.Join(names, ".")
}

// hasLimit reports whether there is a limit, and not that there is none.
func (l *level) hasLimit() bool { return l.quota != nil && !l.quota.unlimited }

// leaf is the leaf of the level for a descriptor with these entries. It fits if the entries have
// the keys of the level's pairs, and may have their values.
func (l *level) leaf(entries []entry) (end leaf, fits bool) {
	if len(l.pairs) != len(entries) {
		return leaf{}, false
	}
	end = leaf{level: l, name: l.name(), at: l.at, order: l.order}
	if l.hasLimit() {
		end.quota = l.quota
	}
	for i, e := range entries {
		switch has := l.pairs[i]; {
		case has.key != e.key, e.part == nil && !has.matches(e.value):
			return leaf{}, false
		case e.part != nil:
			end.values = append(end.values, leafValue{part: e.part, pattern: has.pattern, shared: has.shared})
		}
	}
	return end, true
}

// leafOfRest is the leaf of the requests that no level takes: those of the descriptor that have the
// pairs begin, and any values behind them. It has no limit.
func leafOfRest(entries []entry, begin ...pair) leaf {
	l := &level{pairs: slices.Clone(begin)}
	for _, e := range entries[len(begin):] {
		l.pairs = append(l.pairs, pair{key: e.key})
	}
	end, _ := l.leaf(entries)
	end.level = nil
	return end
}

// serviceLeaves lists the leaves of a descriptor below levels that have the pairs begin in common, in
// the order in which envoyproxy/ratelimit chooses: first the level with exactly the request's value of
// the key, then the first with a wildcard that fits, then the level for any value. Once it has chosen,
// it does not go back, even if no level below the chosen one fits.
func serviceLeaves(levels []*level, entries []entry, begin ...pair) (list []leaf) {
	depth := len(begin)
	if depth == len(entries) {
		end, _ := levels[0].leaf(entries) // it has exactly these pairs: each level comes before those below it
		return []leaf{end}
	}
	e := entries[depth]
	groups := grouped(levels, depth, func(p pair) (value string, ok bool) { return p.text, p.key == e.key })
	slices.SortStableFunc(groups, func(a, b []*level) int {
		return a[0].pairs[depth].rank() - b[0].pairs[depth].rank()
	})
	for _, group := range groups {
		next := group[0].pairs[depth]
		if e.part != nil || next.matches(e.value) {
			list = append(list, serviceLeaves(group, entries, append(slices.Clip(begin), next)...)...)
			if e.part == nil || next.kind == anyValue {
				return list
			}
		}
	}
	return append(list, leafOfRest(entries, begin...))
}

// rank is the pattern's place in the order in which envoyproxy/ratelimit tries the values of a key.
func (p pattern) rank() int {
	switch p.kind {
	case exactly:
		return 0
	case wildcard:
		return 1
	case anyValue, orBelow, expression, absent: // of these its levels have anyValue alone
	}
	return 2
}

// localLeaves lists the leaves of a descriptor for Envoy's local filter: levels
// without an empty value first, then the others, each as a whole.
func localLeaves(levels []*level, entries []entry) (list []leaf) {
	isOpen := func(p pair) bool { return p.kind == anyValue }
	for _, open := range []bool{false, true} {
		for _, l := range levels {
			if end, fits := l.leaf(entries); fits && open == slices.ContainsFunc(l.pairs, isOpen) {
				list = append(list, end)
			}
		}
	}
	return append(list, leafOfRest(entries))
}

// grouped groups levels by what follows behind a depth, in their order.
func grouped(levels []*level, depth int, by func(pair) (value string, ok bool)) (groups [][]*level) {
	index := map[string]int{}
	for _, l := range levels {
		if len(l.pairs) <= depth {
			continue
		}
		value, ok := by(l.pairs[depth])
		switch i, known := index[value]; {
		case !ok:
		case known:
			groups[i] = append(groups[i], l)
		default:
			index[value] = len(groups)
			groups = append(groups, []*level{l})
		}
	}
	return groups
}

// addLevels adds the levels that the leaves are of.
func addLevels(reached map[*level]bool, leaves []leaf) {
	for i := range leaves {
		reached[leaves[i].level] = true
	}
}

// noteUnreached notes the limits that no descriptor leads to.
func (r *reader) noteUnreached(levels []*level, reached map[*level]bool) {
	for _, l := range levels {
		if l.hasLimit() && !reached[l] {
			r.noteNoRequest(l.at, l.name())
		}
	}
}

// noteNoRequest notes a limit that has no rule, because no request comes to it.
func (r *reader) noteNoRequest(at place, name string) {
	r.note(at, strings.TrimPrefix(name+": no request reaches this limit, so there is no rule for it", ": "))
}

// leaf is where the limiter's search ends for some requests of a descriptor: the values that
// they have, and their limit, nil if there is none. An example:
//
//	entries of the descriptor   pairs of the level   values of the leaf
//	path = the request's path   path = /login        /login for the path
//	kind = api, a fixed text    kind = api           none: it is the same for all requests
//	user = the header x-user    user = anything      anything for the header x-user
type leaf struct {
	level  *level // nil for the requests of no level
	name   string
	values []leafValue // one for each entry of the descriptor that is a part of the request
	quota  *quota
	at     place
	order  int // of its level
}

// leafValue is a part of the request and the pattern that it fits.
type leafValue struct {
	part    *part
	pattern pattern
	shared  bool // all that fits counts together
}

// isImpossible reports whether no request has such a value.
func (v leafValue) isImpossible() bool { return v.part.isNever(v.pattern) }

// sharing begins a sentence about values that have one counter.
func (v leafValue) sharing() string {
	return "The values of " + v.part.String() + " that fit " + v.pattern.text + " share one counter there"
}

// asOverride writes the pattern as overrides have it. It is not ok if no override can say it.
func (v leafValue) asOverride() (text string, ok bool) { return v.part.asOverride(v.pattern) }

// within reports whether every request of the leaf has the values of another one too. Like that of
// patterns it may say false where it is so.
func (l *leaf) within(other *leaf) bool {
	for i := range l.values {
		if !l.values[i].pattern.within(other.values[i].pattern) {
			return false
		}
	}
	return true
}

// isOneText reports whether each value is one text: then no other leaf is within this one.
func (l *leaf) isOneText() bool {
	return !slices.ContainsFunc(l.values, func(v leafValue) bool { return v.pattern.kind != exactly })
}

// apart reports whether no request has the values of both leaves. Like that of patterns it may say false
// where it is so.
func (l *leaf) apart(other *leaf) bool {
	for i := range l.values {
		if l.values[i].pattern.apart(other.values[i].pattern) {
			return true
		}
	}
	return false
}

// canOverride reports whether a leaf can be an override of another one's rule, which takes
// the same window and the same enforcement.
func (l *leaf) canOverride(other *leaf) bool {
	isPlain := func(l *leaf) bool {
		return len(l.quota.notes)+len(l.quota.whyOff) == 0 && l.unsayable() == "" &&
			!slices.ContainsFunc(l.values, func(v leafValue) bool { return v.shared })
	}
	return l.within(other) && l.quota.isOfClass(other.quota) && isPlain(l) && isPlain(other)
}

// unsayable says why no override has a leaf's patterns, if none does.
func (l *leaf) unsayable() string {
	for _, v := range l.values {
		if _, ok := v.asOverride(); !ok {
			return "Paths are compared without the query, and cannot say " + v.pattern.text + "."
		}
	}
	return ""
}

// countLimited counts the leaves with a limit.
func countLimited(leaves []leaf) (n int) {
	for i := range leaves {
		if leaves[i].quota != nil {
			n++
		}
	}
	return n
}

// dropUnreachable returns the leaves that some request may end in, and notes the limits of the others. A
// request ends in the first leaf whose values it has.
func (r *reader) dropUnreachable(leaves []leaf) (list []leaf) {
	for i := range leaves {
		l := &leaves[i]
		isImpossible := slices.ContainsFunc(l.values, leafValue.isImpossible)
		switch {
		case !isImpossible && !l.isWithinAny(list):
			list = append(list, *l)
		case l.quota != nil:
			r.noteNoRequest(l.at, l.name)
		}
	}
	return list
}

func (l *leaf) isWithinAny(list []leaf) bool {
	for i := range list {
		if l.within(&list[i]) {
			return true
		}
	}
	return false
}
