// Package descriptor makes rules of the levels of a configuration and of the descriptors that requests send, as
// envoyproxy/ratelimit and Envoy's local filter have them. ServiceLevels and LocalLevels make Levels, and their method
// Rules makes the rules. For a descriptor with a limit of its own there is RuleOfAll.
//
//   - A level has pairs of a key and the values that it may have, and perhaps a limit (level.go).
//   - A descriptor has entries of a key and the part of the request that is its value (this file).
//   - A leaf is where the limiter's search through the levels ends for some requests of a descriptor.
//     It has values: each a part of the request and the pattern that it fits (search.go, leaf.go).
//   - A rule comes of each leaf with a limit (this file and maker.go).
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
	"cmp"
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
	Entries           []Entry // those of a route have at least one
	request.Selection         // the requests for which Envoy sends it
	Cost              uint64  // 0 = 1
	At                source.Place
}

// Entry is one key with its value: a part of the request, or a fixed text.
type Entry struct {
	Key   string
	Part  *request.Part // nil if the value is a fixed text
	Value string        // the fixed text
}

// keys names the descriptor.
func (d *Descriptor) keys() string {
	names := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		names[i] = named(e.Key, e.Value)
	}
	return strings.Join(names, ".")
}

// rules makes the rules for the leaves with a limit. The leaves come in the order of the limiter's
// search, and a request belongs to the first whose values it has. Each leaf with a limit becomes a
// rule, or an override of the rule of a later leaf. Each rule leaves out the requests of the leaves
// before its own.
//
// An example: alice may make 5 requests a minute, users that begin with "a" 20 an hour, and any
// other user 10 a minute. The descriptor has one entry, user, whose part is the header x-user.
//
//	alice  5/minute   an override of the rule for any user, which has the same window
//	a*     20/hour    a rule that matches x-user: a*, in which alice is unlimited
//	any    10/minute  a rule for any x-user, with the override for alice; in it a* is unlimited
func (d *Descriptor) rules(to *draft.Draft, leaves []*leaf) (list []*draft.Rule) {
	if n := countLimited(leaves); n > policy.MaxRules { // each is compared with each other
		text := d.keys() + " has more than " + strconv.Itoa(policy.MaxRules) + " values with a limit: import fewer"
		to.Fail(leaves[0].At, text)
		return nil
	}
	leaves = dropUnreachable(to, leaves)
	wider := joinOverrides(leaves)
	order := map[*draft.Rule]int{} // that of the file
	for i, l := range leaves {
		if l.Limit == nil || wider[l] != nil {
			continue
		}
		r := d.rule(to, l.Name(), l, leaves[:i], wider)
		order[r] = l.Order
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b *draft.Rule) int { return cmp.Compare(order[a], order[b]) })
	if len(list) == 0 {
		for _, why := range d.WhyOff {
			to.Note(d.At, why+" There is no limit for it.")
		}
	}
	return list
}

// RuleOfAll makes the rule of a limit for all requests of the descriptor. Each value of its parts counts for itself.
func (d *Descriptor) RuleOfAll(to *draft.Draft, name string, limit *draft.Limit) *draft.Rule {
	l := leafOfRest(d.Entries, nil)
	l.Limit = limit
	l.At = d.At
	return d.rule(to, name, l, nil, nil)
}

// countLimited counts the leaves with a limit.
func countLimited(leaves []*leaf) (n int) {
	for _, l := range leaves {
		if l.Limit != nil {
			n++
		}
	}
	return n
}

// dropUnreachable returns the leaves that some request may end in, and notes the limits of the others. A
// request ends in the first leaf whose values it has.
func dropUnreachable(to *draft.Draft, leaves []*leaf) (list []*leaf) {
	for _, l := range leaves {
		isImpossible := slices.ContainsFunc(l.values, leafValue.isImpossible)
		switch {
		case !isImpossible && !slices.ContainsFunc(list, l.within):
			list = append(list, l)
		case l.Limit != nil:
			noteNoRequest(to, l.At, l.Name())
		}
	}
	return list
}

// joinOverrides finds the leaves that become overrides of another leaf's rule, each with that wider leaf. The last
// leaf that can have an override gets it, as it is the widest. In the example of rules, alice becomes one of the rule
// for any user.
func joinOverrides(leaves []*leaf) (wider map[*leaf]*leaf) {
	wider = map[*leaf]*leaf{}
	for i, wide := range slices.Backward(leaves) {
		if wide.Limit == nil || wider[wide] != nil || wide.isOneText() {
			continue
		}
		for _, l := range leaves[:i] {
			if l.Limit != nil && wider[l] == nil && l.canOverride(wide) {
				wider[l] = wide
			}
		}
	}
	return wider
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
func (d *Descriptor) ExemptLimited(to *draft.Draft, rules []*draft.Rule, name string) (hasAny bool) {
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
