package engine

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Verdict is what the engine says of one request.
type Verdict struct {
	Allowed bool
	Now     int64 // when the request was decided, ns since the epoch; 0 when no rule matched
	RetryNs int64 // of a denial: the wait until the same request would pass; limit.Never

	denied int        // the first denying try, which names the denial
	tries  []*attempt // the rules that matched, in policy order
}

func (v *Verdict) begin() { *v = Verdict{Allowed: true} }

// Matched reports whether any rule matched.
func (v *Verdict) Matched() bool { return len(v.tries) > 0 }

// DeniedBy is the first rule in policy order that denied.
func (v *Verdict) DeniedBy() *policy.Rule {
	if v.Allowed {
		return nil
	}
	return v.tries[v.denied].rule.policy
}

// RetryAfter returns the seconds of the Retry-After header; ok is false where
// no wait would help.
func (v *Verdict) RetryAfter() (seconds int64, ok bool) {
	if v.Allowed || v.RetryNs == limit.Never {
		return 0, false
	}
	return max(1, ceilDiv(v.RetryNs, second)), true
}

const second = 1_000_000_000

func ceilDiv(ns, unit int64) int64 {
	if ns <= 0 {
		return 0
	}
	return (ns-1)/unit + 1
}
