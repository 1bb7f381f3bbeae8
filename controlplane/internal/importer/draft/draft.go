// Package draft has the policy of an import while it is made: its rules, and what there is to say of the
// files that they are made of.
//
//	New            a draft without rules                                 draft.go
//	NewRule        begins the rule of a limit (quota.go)                 rule.go
//	Rule.Finish    ends it; the reader adds it to Draft.Rules
//	Note, Fail     what the user should know, and what makes the import  findings.go
//	               fail
//	Draft.Finish   names the rules, writes the policy (write.go) and     finish.go
//	               validates it
//
// Its invariant: what Draft.Finish returns without an error is a valid policy.
package draft

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Draft is the policy before it is written, with what there is to say of the files that it is made of.
type Draft struct {
	*Findings
	from    string // what it is imported from, such as "envoyproxy/ratelimit"
	file    string // the first file that it is made of
	Cluster bool   // its rules count over all Envoys

	Domain  string  // of envoyproxy/ratelimit, set by its reader
	Headers string  // which headers answers have, set by the readers of Envoy's filters
	Rules   []*Rule // added by the readers in their order; Finish gives them their names and counters
}

// New begins a draft. File is the first of those that it is made of.
func New(from, file string, cluster bool) *Draft {
	return &Draft{Findings: newFindings(), from: from, file: file, Cluster: cluster}
}

// nameRules makes the names unique. Rules that had one name share a counter where they can, because their requests had
// one counter.
func (d *Draft) nameRules() {
	taken := map[string]bool{}
	highest := map[string]int{}    // the number behind a name that more than one rule had
	owners := map[string][]*Rule{} // of each name, the rules with counters of their own
	for _, r := range d.Rules {
		if r.Name == "" {
			r.Name = "rule"
		}
		base := r.Name
		for taken[r.Name] {
			highest[base] = max(highest[base]+1, 2)
			r.Name = Clip(base, policy.MaxNameBytes-5) + "-" + strconv.Itoa(highest[base])
		}
		taken[r.Name] = true
		if !r.shareCounter(owners[base]) {
			owners[base] = append(owners[base], r)
		}
	}
}

// shareCounter gives the rule the counter of the first of some rules that it may share one with, if there is one.
func (r *Rule) shareCounter(owners []*Rule) bool {
	i := slices.IndexFunc(owners, r.mayShareCounter)
	if i < 0 {
		return false
	}
	r.counter = owners[i].Name
	return true
}

// countOverAll gives the rules scope cluster, except those with a counter for each connection, because
// one Envoy has the whole connection.
func (d *Draft) countOverAll() {
	sharing := map[string][]*Rule{} // by their counter
	for _, r := range d.Rules {
		if slices.ContainsFunc(r.Key, request.ConnectionID.Is) {
			continue
		}
		r.scope = string(policy.ScopeCluster)
		counter := cmp.Or(r.counter, r.Name)
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
	first := sharing[0]
	for _, r := range sharing {
		isAlike := r.Quota.Numbers == first.Quota.Numbers && slices.EqualFunc(r.Overrides, first.Overrides, Override.same)
		if r.CountDenied || !isAlike {
			return false
		}
	}
	return true
}
