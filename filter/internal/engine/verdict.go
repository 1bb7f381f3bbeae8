package engine

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Verdict is the outcome of one request over all rules.
type Verdict struct {
	Allowed  bool
	Exempt   bool       // from all rules
	Pending  bool       // some attempt must ask the quota service first: nothing is decided or counted
	Now      int64      // when the request was decided, ns since the epoch; 0 when no rule matched
	RetryNs  int64      // of a denial: the wait until the same request would pass; limit.Never
	Attempts []*Attempt // of the rules that matched, in policy order
	Denied   int        // of a denial: index of the first attempt that denied
}

func (v *Verdict) begin() { *v = Verdict{Allowed: true} }

// Matched reports whether any rule matched.
func (v *Verdict) Matched() bool { return len(v.Attempts) > 0 }

// DeniedBy is the first rule in policy order that denied.
func (v *Verdict) DeniedBy() *policy.Rule {
	if v.Allowed {
		return nil
	}
	return v.Attempts[v.Denied].rule.policy
}

// RetryAfter returns the seconds of the Retry-After header; ok is false where
// no wait would help.
func (v *Verdict) RetryAfter() (seconds int64, ok bool) {
	if v.Allowed || v.RetryNs == limit.Never {
		return 0, false
	}
	return max(1, Seconds(v.RetryNs)), true
}

// Seconds rounds a wait up to whole seconds; one in the past is 0.
func Seconds(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	return (ns-1)/1_000_000_000 + 1
}
