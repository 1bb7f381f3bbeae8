package draft

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// nameRules gives each rule a name of its own for the policy.
func (d *Draft) nameRules() {
	taken := map[string]bool{}
	highest := map[string]int{} // the number behind a name that more than one rule has
	for _, r := range d.Rules {
		name := r.terms.Name
		r.policyName = name
		for taken[r.policyName] {
			highest[name] = max(highest[name]+1, 2)
			r.policyName = Clip(name, policy.MaxNameBytes-5) + "-" + strconv.Itoa(highest[name])
		}
		taken[r.policyName] = true
	}
}

// shareCounters gives rules of one name one counter where they may share it, because their requests have one there.
func (d *Draft) shareCounters() {
	byName := map[string][]*Rule{}
	for _, r := range d.Rules {
		byName[r.terms.Name] = append(byName[r.terms.Name], r)
	}
	for _, rules := range byName {
		var owners []*Rule // of a counter
		for _, r := range rules {
			if i := slices.IndexFunc(owners, r.mayShareCounter); i >= 0 {
				r.counter = owners[i].policyName
			} else {
				owners = append(owners, r)
			}
		}
	}
}

// mayShareCounter reports whether two rules of one name may share a counter: they count by one limit of the
// configuration, which is their identity, over the same keys and time. A rule that is off has a counter of its own.
func (r *Rule) mayShareCounter(other *Rule) bool {
	its, others := r.terms.Limit, other.terms.Limit
	isAlike := its.Algorithm == others.Algorithm && its.Per == others.Per
	return isAlike && !r.isOff() && !other.isOff() && r.terms.Identity == other.terms.Identity &&
		slices.EqualFunc(r.key(), other.key(), request.Part.Is)
}

// countOverAll gives the rules scope cluster, except those with a counter for each connection, because
// one Envoy has the whole connection.
func (d *Draft) countOverAll() {
	sharing := map[string][]*Rule{} // by their counter
	for _, r := range d.Rules {
		if slices.ContainsFunc(r.key(), request.ConnectionID.Is) {
			continue
		}
		r.scope = string(policy.ScopeCluster)
		counter := cmp.Or(r.counter, r.policyName)
		sharing[counter] = append(sharing[counter], r)
	}
	for _, rules := range sharing {
		if mayLease(rules) {
			continue
		}
		for _, r := range rules {
			r.lease = "off"
		}
	}
}

// mayLease reports whether rules that share a counter may lease its units: all of them do or none. They
// may not if one of them counts denials: a proxy denies by its lease without an ask, so nobody would count that. Nor
// may they if one allows another number than the others: units leased under one limit must not be spent under another.
func mayLease(sharing []*Rule) bool {
	first := sharing[0].terms
	for _, r := range sharing {
		isAlike := r.terms.Limit.Numbers == first.Limit.Numbers &&
			slices.EqualFunc(r.terms.Overrides, first.Overrides, Override.same)
		if r.terms.CountDenied || !isAlike {
			return false
		}
	}
	return true
}
