// Package draft has the policy of an import while it is made: its rules, and what there is to say of the
// files that they are made of.
//
//	New            a draft without rules                                 draft.go
//	NewRule        makes the rule of a limit (limit.go)                  rule.go
//	Rule           gets the rest from its reader, which adds it to Draft.Rules
//	Findings       what the user should know, and what makes the import  findings.go
//	               fail: for functions that add no rules
//	Draft.Finish   names the rules, gives them their counters            finish.go
//	               (counter.go), writes the policy (write.go) and
//	               validates it
//
// Its invariant: what Draft.Finish returns without an error is a valid policy.
package draft

import "github.com/sluice-ratelimit/sluice/shared/policy"

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
func New(from, file string, scope policy.Scope) *Draft {
	return &Draft{Findings: newFindings(), from: from, file: file, Cluster: scope == policy.ScopeCluster}
}

// NoteEachEnvoy notes who counts what envoyproxy/ratelimit counts: its own limits and the global ones of Envoy Gateway.
func (d *Draft) NoteEachEnvoy() {
	if !d.Cluster {
		d.NoteImport("envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
			"them admit N times these limits. --scope cluster makes rules that count over all.")
	}
}

// NoteCalendar notes how units differ that have fixed lengths in envoyproxy/ratelimit.
func (d *Draft) NoteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		d.NoteImport("envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of " +
			"365. Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}
