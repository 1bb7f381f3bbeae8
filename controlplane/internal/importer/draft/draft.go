// Package draft has the policy of an import while it is made: its rules, and what there is to say of the
// files that they are made of.
//
//	New            a draft without rules                                 draft.go
//	NewRule        makes a rule of its Terms: what the reader says of    rule.go
//	               it. The reader adds it to Draft.Rules
//	Rule.Apply     gives it what a filter of Envoy says of all its rules
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
