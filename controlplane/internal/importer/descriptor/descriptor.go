// Package descriptor makes rules of the levels of a configuration and of the descriptors that requests send, as
// envoyproxy/ratelimit and Envoy's local filter have them.
//
//   - A level has pairs of a key and the values that it may have, and perhaps a limit.
//   - A descriptor has entries of a key and the part of the request that is its value.
//   - A leaf is where the limiter's search through the levels ends for some requests of a descriptor.
//     It has conditions: each a value of the request and the pattern that it fits.
//   - A rule comes of each leaf with a limit (rule.go).
//
// The calls:
//
//	ServiceLevels, LocalLevels                  levels with the search of the limiter               descriptor.go
//	Levels.Rules                                the rules of some descriptors
//	  serviceLeaves, localLeaves                where the search ends                               descriptor.go
//	  reachable                                 those that some request ends in
//	  Descriptor.rulesOfLeaves                  a rule, or an override, of each leaf with a limit   rule.go
//	    findMixed                               leaves that a policy takes for each other: their rules are off
//	    joinOverrides                           leaves that need no rule, but an override of a wider leaf's
//	    ruleOfLeaf: place                       each condition goes to the match, the key or both
//	      leaveOut, selectUnmatched             overrides for what neither can say
//	Levels.NoteUnreached                        notes the limits without requests
//	Descriptor.ExemptLimited, RuleOfAll         the rule of a limit for what no other rule limits
//
// Leaves are compared as texts, as these limiters compare values (WithinAsText, ApartAsText). A policy compares hosts
// and addresses by what they name, and package request joins matches so. Only findMixed looks at both.
//
// One example from end to end. This configuration of envoyproxy/ratelimit has two levels: path = /login
// without a limit, and below it path = /login with user = anything, which has one:
//
//	descriptors:
//	- key: path
//	  value: /login
//	  descriptors:
//	  - key: user
//	    rate_limit: {unit: minute, requests_per_unit: 5}
//
// A route's actions send a descriptor of two entries: path, whose part is the path of the request, and
// user, whose part is the header x-user. The search ends in two leaves: one with the conditions /login
// for the path and anything for the header, which has the limit, and one for all other requests,
// which has none. The first becomes the rule. One text needs no counter of its own, so it goes to the
// match, and the header goes to the key:
//
//	rules:
//	- name: path_/login.user
//	  match: {paths: [/login]}
//	  key: [{header: x-user}]
//	  limits: [5/minute]
package descriptor

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Descriptor is what Envoy sends for a request: keys with values that are fixed or taken from the request.
type Descriptor struct {
	Entries  []Entry           // those of a route have at least one
	Requests request.Selection // for which Envoy sends it
	Cost     uint64            // 0 = 1
	At       source.Place
}

// Entry is one key with its value: one of the request, or a fixed text.
type Entry struct {
	Key   string
	Value request.Value // of no part if the text is the value
	Text  string
}

func (e Entry) isFixed() bool { return e.Value.Part.Kind == "" }

// keys names the descriptor.
func (d *Descriptor) keys() string {
	names := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		names[i] = named(e.Key, e.Text)
	}
	return strings.Join(names, ".")
}

// Level is what a configuration calls a descriptor: pairs of a key and its values, and the limit
// of the requests that have them.
type Level struct {
	Pairs []Pair       // first the pairs of the levels around it
	Limit *draft.Limit // nil = no limit
	At    source.Place
	Order int // in its file
}

// Pair is a key with the values that it may have.
type Pair struct {
	Key string
	request.Pattern
	Shared bool // all the values count together
}

// named is the name of a key and value in envoyproxy/ratelimit.
func named(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Name has the keys and values of the level, such as path_/login.user.
func (l *Level) Name() string {
	var names []string
	for _, e := range l.Pairs {
		names = append(names, named(e.Key, e.Text()))
	}
	return strings.Join(names, ".")
}

// Levels are those of a configuration, with the search of its limiter through them.
type Levels struct {
	List    []*Level
	search  func(entries []Entry) []*leaf
	reached map[*Level]bool // by some descriptor
}

// ServiceLevels are searched as envoyproxy/ratelimit does.
func ServiceLevels(list []*Level) *Levels {
	// A descriptor meets only levels with the key of its first entry. To search all of them for each would take long.
	byKey := map[string][]*Level{}
	for _, l := range list {
		key := l.Pairs[0].Key
		byKey[key] = append(byKey[key], l)
	}
	search := func(entries []Entry) []*leaf { return serviceLeaves(byKey[entries[0].Key], entries) }
	return &Levels{List: list, search: search, reached: map[*Level]bool{}}
}

// LocalLevels are searched as Envoy's local filter does.
func LocalLevels(list []*Level) *Levels {
	search := func(entries []Entry) []*leaf { return localLeaves(list, entries) }
	return &Levels{List: list, search: search, reached: map[*Level]bool{}}
}

// Rules makes the rules of the levels that requests with these descriptors come to.
func (ls *Levels) Rules(to *draft.Findings, sent []Descriptor) (list []*draft.Rule) {
	for i := range sent {
		d := &sent[i]
		leaves := ls.search(d.Entries)
		if n := countLimited(leaves); n > policy.MaxRules { // each is compared with each other
			to.Fail(leaves[0].level.At, d.keys()+" has more than "+strconv.Itoa(policy.MaxRules)+" values with a limit: "+
				"import fewer")
			continue
		}
		leaves = reachable(leaves)
		for _, l := range leaves {
			ls.reached[l.level] = true
		}
		list = append(list, d.rulesOfLeaves(to, leaves)...)
	}
	return list
}

// countLimited counts the leaves with a limit.
func countLimited(leaves []*leaf) (n int) {
	for _, l := range leaves {
		if l.level.Limit != nil {
			n++
		}
	}
	return n
}

// reachable returns the leaves that some request may end in. A request ends in the first leaf whose conditions it
// meets.
func reachable(leaves []*leaf) (list []*leaf) {
	isNever := func(c condition) bool { return c.value.IsNever(c.pattern) }
	for _, l := range leaves {
		if !slices.ContainsFunc(l.conditions, isNever) && !slices.ContainsFunc(list, l.withinAsText) {
			list = append(list, l)
		}
	}
	return list
}

// NoteUnreached notes the limits of the levels that no request of any descriptor came to.
func (ls *Levels) NoteUnreached(to *draft.Findings) {
	for _, l := range ls.List {
		if l.Limit != nil && !ls.reached[l] {
			NoteNoRequest(to, l.At, l.Name())
		}
	}
}

// NoteNoRequest notes a limit that has no rule, because no request comes to it.
func NoteNoRequest(to *draft.Findings, at source.Place, name string) {
	to.Note(at, strings.TrimPrefix(name+": no request reaches this limit, so there is no rule for it", ": "))
}

// leaf is where the limiter's search ends for some requests of a descriptor: the conditions that they meet, and the
// level with their limit, if it has one. An example:
//
//	entries of the descriptor   pairs of the level   conditions of the leaf
//	path = the request's path   path = /login        /login for the path
//	kind = api, a fixed text    kind = api           none: it is the same for all requests
//	user = the header x-user    user = anything      anything for the header x-user
//
// The leaves of one descriptor have conditions on the same values, in the same order.
type leaf struct {
	level      *Level      // one without a limit for the requests of no level of the configuration
	conditions []condition // one for each entry of the descriptor that is a value of the request
}

// condition is a value of the request and the pattern that it fits.
type condition struct {
	value   request.Value
	pattern request.Pattern
	shared  bool // all that fits counts together
}

// withinAsText reports whether every request of the leaf meets the conditions of another one too. Like that of
// patterns it may say false where it is so.
//
// Values are compared as texts, also those of hosts and addresses, because these limiters compare texts: the value
// 10.0.0.0/8 is that of a request whose address is masked to it, and not that of 10.1.2.3.
func (l *leaf) withinAsText(other *leaf) bool {
	for i := range l.conditions {
		if !l.conditions[i].pattern.WithinAsText(other.conditions[i].pattern) {
			return false
		}
	}
	return true
}

// apartAsText reports whether no request meets the conditions of both leaves. Like that of patterns it may say false
// where it is so.
func (l *leaf) apartAsText(other *leaf) bool {
	for i := range l.conditions {
		if l.conditions[i].pattern.ApartAsText(other.conditions[i].pattern) {
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
		if !e.isFixed() || next.Matches(e.Text) {
			list = append(list, leavesBelow(group, entries, append(slices.Clip(begin), next))...)
			if e.isFixed() || next.Kind() == request.AnyValue {
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

// leafOfRest is the leaf of the requests that no level takes: those of the descriptor that have the pairs begin, and
// any values behind them. It has no limit.
func leafOfRest(entries []Entry, begin []Pair) *leaf { return leafBehind(entries, begin, &Level{}) }

// leafBehind is the leaf of a new level, which has the pairs begin, and any values behind them.
func leafBehind(entries []Entry, begin []Pair, l *Level) *leaf {
	l.Pairs = slices.Clone(begin)
	for _, e := range entries[len(begin):] {
		l.Pairs = append(l.Pairs, Pair{Key: e.Key})
	}
	end, _ := l.leafOf(entries) // fits: begin was chosen for these entries, and the rest has their keys and any value
	return end
}

// leafOf is the leaf of the level for a descriptor with these entries. It fits if the entries have
// the keys of the level's pairs, and may have their values.
func (l *Level) leafOf(entries []Entry) (end *leaf, fits bool) {
	if len(l.Pairs) != len(entries) {
		return nil, false
	}
	end = &leaf{level: l}
	for i, e := range entries {
		switch has := l.Pairs[i]; {
		case has.Key != e.Key, e.isFixed() && !has.Matches(e.Text):
			return nil, false
		case !e.isFixed():
			end.conditions = append(end.conditions, condition{e.Value, has.Pattern, has.Shared})
		}
	}
	return end, true
}

// NoteEachEnvoy notes who counts what envoyproxy/ratelimit counts: its own limits and the global ones of Envoy Gateway.
func NoteEachEnvoy(d *draft.Draft) {
	if !d.Cluster {
		d.NoteImport("envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
			"them admit N times these limits. --scope cluster makes rules that count over all.")
	}
}

// NoteCalendar notes how units differ that have fixed lengths in envoyproxy/ratelimit.
func NoteCalendar(to *draft.Findings, unit string) {
	if unit == "month" || unit == "year" {
		to.NoteImport("envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of " +
			"365. Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}
