// Package draft has the policy of an import while it is made: its rules, and what there is to say of the
// files that they are made of.
//
//	New        a draft without rules                                     policy.go
//	NewMaker   begins a rule, Finish ends it                             maker.go, rule.go
//	Note, Fail what the user should know, and what makes the import fail findings.go
//	Finish     names the rules, writes the policy (write.go) and         finish.go
//	           validates it
//
// Its invariant: what Finish returns without an error is a valid policy.
package draft

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Policy is the policy before it is written, with what there is to say of the files that it is made of.
type Policy struct {
	*Findings
	from    string // what it is imported from, such as "envoyproxy/ratelimit"
	file    string // the first file that it is made of
	Cluster bool   // its rules count over all Envoys

	Domain  string
	Headers string
	Rules   []Rule
}

// New begins a policy. File is the first of those that it is made of.
func New(from, file string, cluster bool) *Policy {
	return &Policy{Findings: newFindings(), from: from, file: file, Cluster: cluster}
}

// nameRules makes the names unique. Rules that had one name share a counter
// where they can, because their requests had one counter.
func (d *Policy) nameRules() {
	taken, next := map[string]bool{}, map[string]int{}
	counters := map[string][]*Rule{} // of each name, the rules with counters of their own
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Name == "" {
			r.Name = "rule"
		}
		base := r.Name
		for taken[r.Name] {
			next[base] = max(next[base]+1, 2)
			r.Name = Clip(base, policy.MaxNameBytes-5) + "-" + strconv.Itoa(next[base])
		}
		taken[r.Name] = true
		shares := func(other *Rule) bool { return !r.Off && !other.Off && other.mayShareCounter(r) }
		if i := slices.IndexFunc(counters[base], shares); i >= 0 {
			r.Counter = counters[base][i].Name
		} else {
			counters[base] = append(counters[base], r)
		}
	}
}

// countOverAll gives the rules scope cluster, except those with a counter for each connection, because
// one Envoy has the whole connection.
func (d *Policy) countOverAll() {
	sharing := map[string][]*Rule{} // by their counter
	for i := range d.Rules {
		r := &d.Rules[i]
		if slices.ContainsFunc(r.Key, request.ConnectionID.Is) {
			continue
		}
		r.Scope = string(policy.ScopeCluster)
		counter := cmp.Or(r.Counter, r.Name)
		sharing[counter] = append(sharing[counter], r)
	}
	for _, rules := range sharing {
		if mayLease(rules) {
			continue
		}
		for _, r := range rules {
			r.Lease = "off"
		}
	}
}

// mayLease reports whether rules that share a counter may lease its units: all of them do or none. They
// may not if one of them counts denials, or allows another number than the others: units leased under
// one limit must not be spent under another.
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
