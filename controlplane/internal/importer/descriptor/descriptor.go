// Package descriptor makes rules of the levels of a configuration and of the descriptors that requests send, as
// envoyproxy/ratelimit and Envoy's local filter have them.
//
//   - A level has pairs of a key and the values that it may have, and perhaps a limit (level.go).
//   - A descriptor has entries of a key and the part of the request that is its value (this file).
//   - A leaf is where the limiter's search through the levels ends for some requests of a descriptor.
//     It has values: each a part of the request and the pattern that it fits (search.go, leaf.go).
//   - A rule comes of each leaf with a limit (rule.go, overrides.go).
//
// The calls:
//
//	ServiceLevels, LocalLevels                  levels with the search of the limiter               level.go
//	Levels.Rules                                the rules of some descriptors
//	  serviceLeaves, localLeaves                where the search ends                               search.go
//	  Descriptor.rulesOfLeaves                  a rule, or an override, of each leaf with a limit   rule.go
//	    dropUnreachable, joinOverrides          the leaves that need rules
//	    ruleOfLeaf: leaf.split                  the home of each value: the match, the key or both
//	      overrides.leaveOut, selectUnmatched   what neither can say                                overrides.go
//	Levels.NoteUnreached                        notes the limits without requests
//	Descriptor.ExemptLimited, RuleOfAll         the rule of a limit for what no other rule limits
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
// user, whose part is the header x-user. The search ends in two leaves: one with the values /login
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
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// Descriptor is what Envoy sends for a request: keys with values that are fixed or taken from the request.
type Descriptor struct {
	Entries           []Entry // those of a route have at least one
	request.Selection         // the requests for which Envoy sends it
	Cost              uint64  // 0 = 1
	At                source.Place
}

// Entry is one key with its value: a part of the request, or a fixed text.
type Entry struct {
	Key   string
	Part  request.Compared // without a kind if the value is a fixed text
	Value string           // the fixed text
}

func (e Entry) isFixed() bool { return e.Part.Kind == "" }

// keys names the descriptor.
func (d *Descriptor) keys() string {
	names := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		names[i] = named(e.Key, e.Value)
	}
	return strings.Join(names, ".")
}

// ExemptLimited exempts the requests that the rules limit from those of the descriptor, and reports whether
// it has any left. If it has none, it notes that for the limit of a name. Where the requests of a rule are unknown, no
// match can select what is left.
//
//	a rule with                    the descriptor exempts
//	match: {headers: {x-user: a}}  {headers: {x-user: a}}
//	key: [{header: x-user}]        {headers: {x-user: "*"}}
//	neither                        it has no request left
//	key: [{query: user}]           unknown, so its rules are off
func (d *Descriptor) ExemptLimited(to *draft.Findings, rules []*draft.Rule, name string) (hasAny bool) {
	var limited []request.Match
	isKnown := true
	for _, r := range rules {
		m, ok := r.LimitedRequests(d.Exempt)
		m = m.Without(d.Match) // conditions that all of its requests meet
		switch {
		case !ok:
			isKnown = false
		case len(m) == 0: // the rule limits all of them
			noteNoRequest(to, d.At, name)
			return false
		default:
			limited = append(limited, m)
		}
	}
	d.AddExempt(limited...)
	if !isKnown {
		d.CannotMatch("they are those that no other rule limits")
	}
	return true
}
