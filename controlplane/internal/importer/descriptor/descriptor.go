// Package descriptor makes rules of the levels of a configuration and of the descriptors that requests send, as
// envoyproxy/ratelimit and Envoy's local filter have them.
//
//   - A level has pairs of a key and the values that it may have, and perhaps a limit.
//   - A descriptor has entries of a key and the part of the request that is its value.
//   - A leaf is where the limiter's search through the levels ends for some requests of a descriptor.
//     It has conditions: each a value of the request and the pattern that it fits.
//   - A rule comes of each leaf with a limit.
//
// The calls:
//
//	ServiceLevels, LocalLevels                  levels with the search of the limiter               descriptor.go
//	Levels.Rules                                the rules of some descriptors
//	  serviceLeaves, localLeaves                where the search ends                               search.go
//	  reachable                                 those that some request ends in
//	  Descriptor.rulesOfLeaves                  a rule, or an override, of each leaf with a limit   plan.go
//	    findMixed                               leaves that a policy takes for each other: their rules are off
//	    findOverrides                           leaves that need no rule, but an override of a wider leaf's
//	    makeRule: placeAll                      each condition goes to the match, the key or both   makerule.go
//	      addOverride                           the requests of earlier leaves have another limit, or none
//	      selectUnmatched                       overrides for what no match can say
//	Levels.NoteUnreached                        notes the limits without requests, of all descriptors
//
// These limiters compare texts, also hosts and addresses, and so do the conditions of leaves. A policy compares them by
// what they name. Only findMixed looks at both.
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
	Entries  []Entry           // at least one
	Requests request.Selection // for which Envoy sends it
	Cost     uint64            // 0 = 1
	At       source.Place
}

// Entry is one key with its value: FromRequest, Fixed or Unknown.
type Entry struct {
	kind  entryKind
	key   string
	value request.Value // from the request
	text  string        // fixed; of an unknown entry what the file has for it
}

type entryKind uint8

const (
	fixed entryKind = iota
	fromRequest
	unknown
)

// FromRequest is an entry that has a value of the request.
func FromRequest(key string, v request.Value) Entry {
	return Entry{kind: fromRequest, key: key, value: v}
}

// Fixed is an entry that has the text for each request.
func Fixed(key, text string) Entry { return Entry{kind: fixed, key: key, text: text} }

// Unknown is an entry of which Envoy makes the value in a way that the import does not know, and the key too if it is
// empty. The caller turns off the requests of its descriptor.
func Unknown(key, text string) Entry { return Entry{kind: unknown, key: key, text: text} }

// String is the name of the entry, such as path_/login.
func (e Entry) String() string { return named(e.key, e.text) }

// mayBe reports whether some request has the entry as a pair of a level has it. Of an unknown one it takes the text as
// it is written.
func (e Entry) mayBe(p Pair) bool {
	return e.key == p.Key && (e.kind == fromRequest || p.Matches(e.text))
}

// mayReach reports whether requests may come to a level, by what the import knows of the entries.
func (d *Descriptor) mayReach(l *Level) bool {
	if len(l.Pairs) != len(d.Entries) {
		return false
	}
	for i, e := range d.Entries {
		has := l.Pairs[i]
		isAny := e.kind == unknown && (e.key == "" || e.key == has.Key)
		if !isAny && !e.mayBe(has) {
			return false
		}
	}
	return true
}

// keys names the descriptor.
func (d *Descriptor) keys() string {
	names := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		names[i] = e.String()
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
	List     []*Level
	search   func(entries []Entry) []*leaf
	enforced draft.Enforcement // how the filter enforces their limits
}

// ServiceLevels are searched as envoyproxy/ratelimit does.
func ServiceLevels(list []*Level, enforced draft.Enforcement) *Levels {
	// A descriptor meets only levels with the key of its first entry. To search all of them for each would take long.
	byKey := map[string][]*Level{}
	for _, l := range list {
		key := l.Pairs[0].Key
		byKey[key] = append(byKey[key], l)
	}
	search := func(entries []Entry) []*leaf { return serviceLeaves(byKey[entries[0].key], entries) }
	return &Levels{list, search, enforced}
}

// LocalLevels are searched as Envoy's local filter does.
func LocalLevels(list []*Level, enforced draft.Enforcement) *Levels {
	return &Levels{list, func(entries []Entry) []*leaf { return localLeaves(list, entries) }, enforced}
}

// Reached is what requests that have some descriptors come to.
type Reached struct {
	Rules  []*draft.Rule
	levels map[*Level]bool // some request comes to it
	unsure map[*Level]bool // one may come to it, and there is no rule for that: a descriptor has an unknown entry
}

// AreAll reports whether the rules limit all requests that the levels limit.
func (r *Reached) AreAll() bool { return len(r.unsure) == 0 }

// Rules makes the rules of the levels that requests with these descriptors come to.
func (ls *Levels) Rules(to *draft.Findings, sent []Descriptor) *Reached {
	found := &Reached{levels: map[*Level]bool{}, unsure: map[*Level]bool{}}
	for i := range sent {
		d := &sent[i]
		leaves := ls.search(d.Entries)
		if ends := withLimit(leaves); len(ends) > policy.MaxRules { // each is compared with each other
			to.Fail(ends[0].level.At, d.keys()+" has more than "+strconv.Itoa(policy.MaxRules)+" values with a limit: "+
				"import fewer")
			continue
		}
		leaves = reachable(leaves)
		for _, l := range leaves {
			found.levels[l.level] = true
		}
		for _, l := range ls.unsureOf(d) {
			found.unsure[l] = true
		}
		found.Rules = append(found.Rules, d.rulesOfLeaves(to, leaves, ls.enforced)...)
	}
	return found
}

// unsureOf are the levels with a limit that requests may come to by an unknown entry of a descriptor, which the search
// does not know.
func (ls *Levels) unsureOf(d *Descriptor) (list []*Level) {
	isUnknown := func(e Entry) bool { return e.kind == unknown }
	if !slices.ContainsFunc(d.Entries, isUnknown) {
		return nil
	}
	for _, l := range ls.List {
		if l.Limit != nil && d.mayReach(l) {
			list = append(list, l)
		}
	}
	return list
}

// withLimit are the leaves with a limit. The others may be those of no level of the file.
func withLimit(leaves []*leaf) (list []*leaf) {
	for _, l := range leaves {
		if l.level.Limit != nil {
			list = append(list, l)
		}
	}
	return list
}

// reachable returns the leaves that some request may end in. A request ends in the first leaf whose conditions it
// meets.
func reachable(leaves []*leaf) (list []*leaf) {
	isNever := func(c condition) bool { return c.value.IsNever(c.fits) }
	for _, l := range leaves {
		if !slices.ContainsFunc(l.conditions, isNever) && !slices.ContainsFunc(list, l.within) {
			list = append(list, l)
		}
	}
	return list
}

// NoteUnreached notes the limits that no request comes to. It takes what Rules returned, for all descriptors.
func (ls *Levels) NoteUnreached(to *draft.Findings, all ...*Reached) {
	for _, l := range ls.List {
		isReached := func(of *Reached) bool { return of.levels[l] }
		isUnsure := func(of *Reached) bool { return of.unsure[l] }
		switch {
		case l.Limit == nil, slices.ContainsFunc(all, isReached):
		case slices.ContainsFunc(all, isUnsure):
			to.Note(l.At, l.Name()+": the import does not know whether a request reaches this limit, and makes no rule for it")
		default:
			to.NoteNoRequest(l.At, l.Name())
		}
	}
}
