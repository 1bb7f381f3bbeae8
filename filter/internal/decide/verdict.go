package decide

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Verdict is the outcome of one request over all rules.
type Verdict struct {
	Allowed  bool
	Exempt   bool       // from all rules
	Pending  bool       // some rule must ask the quota service first: nothing is decided or counted
	Now      int64      // when the request was decided, ns since the epoch; 0 when no rule matched
	RetryNs  int64      // of a denial: the wait until the same request would pass; limit.Never
	Subjects []*Subject // of the rules that matched, in policy order
	Denied   int        // of a denial: index of the first subject that denied

	memory []*Subject // as many as a request has needed: most policies have far more rules than a request matches
}

// Begin empties the verdict for the next request.
func (v *Verdict) Begin() { *v = Verdict{Allowed: true, Subjects: v.memory[:0], memory: v.memory} }

// Next is the memory of the next subject, which Add appends.
func (v *Verdict) Next() *Subject {
	if n := len(v.Subjects); n < len(v.memory) {
		return v.memory[n]
	}
	s := new(Subject)
	v.memory = append(v.memory, s)
	v.Subjects = v.memory[:len(v.Subjects)]
	return s
}

// Add appends the subject that Next has returned.
func (v *Verdict) Add() { v.Subjects = v.memory[:len(v.Subjects)+1] }

// Keep makes the verdict last beyond the callback, whose texts end with it.
func (v *Verdict) Keep() {
	for _, s := range v.Subjects {
		for i := range s.Key.Parts {
			p := &s.Key.Parts[i]
			p.Text = strings.Clone(p.Text)
		}
	}
}

// Matched reports whether any rule matched.
func (v *Verdict) Matched() bool { return len(v.Subjects) > 0 }

// DeniedBy is the first rule in policy order that denied.
func (v *Verdict) DeniedBy() *policy.Rule {
	if v.Allowed {
		return nil
	}
	return v.Subjects[v.Denied].Rule.Policy
}

// LacksKey reports whether the denial is for want of a key part.
func (v *Verdict) LacksKey() bool { return !v.Allowed && v.Subjects[v.Denied].Outcome == MissingKey }

// Response is what the client of a denial gets.
func (v *Verdict) Response() *policy.Response {
	if v.LacksKey() {
		return v.DeniedBy().MissingResponse
	}
	return &v.DeniedBy().Response
}

// RetryAfter returns the seconds of the Retry-After header; ok is false where
// no wait would help.
func (v *Verdict) RetryAfter() (seconds int64, ok bool) {
	if v.Allowed || v.RetryNs == limit.Never {
		return 0, false
	}
	return max(1, fields.Seconds(v.RetryNs)), true
}
