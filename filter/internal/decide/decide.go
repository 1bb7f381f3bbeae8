// Package decide decides one request over all rules that it matches: it checks whether
// every window has room for the key, takes the units of all rules, and refunds them when
// one denies after all.
//
// Its invariant: all rules decide or none counts. A denied request leaves the counters as
// if it had never come, and nothing a race does makes a later decision looser. It knows
// where units come from as Source alone, and never reads a clock.
package decide

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Source is where the units of one rule come from. It may remember the subject that was
// checked last: of a request, no rule has two.
type Source interface {
	// Check finds out how the subject's key stands at now, for its cost and what the
	// subjects before it take from the same record. It says whether that is Known. Of an
	// outcome other than Granted and Failed, PassNs is when the units are free.
	Check(s *Subject, now int64) Outcome
	// Recheck is Check after another worker, or another rule, wrote first.
	Recheck(s *Subject, now int64) Outcome
	// Take takes the subject's cost: Taken, Raced, Full or Failed. Where Check did not
	// grant it, PassNs becomes when the next hit like this one passes. Of a rule that
	// holds, the units are held, and the subject gets the receipt.
	Take(s *Subject) Outcome
	// Refund undoes Take. It reports whether every window has the units back.
	Refund(s *Subject, now int64) (complete bool)
	// Persist stores what Check has moved to the present, though nothing is taken.
	Persist(s *Subject)
	// Usage is the usage of a window of Rule.Subjects.Windows, as of Check or Take. It is
	// valid until the next call.
	Usage(s *Subject, window int) *limit.Usage
	// Held is how many units of the key are held, as of Check or Take.
	Held(s *Subject) uint32

	// Settle ends what a request holds, and charges what it really cost. It reports
	// whether the hold had lapsed before, and been charged.
	Settle(h *Hold, cost uint32, now int64) (lapsed, ok bool)
	// Renew says that the request of a hold is still alive. It does nothing before the
	// next eighth of the hold by the holds' clock.
	Renew(h *Hold, now, heldNs int64) Renewal

	// Operate carries out an operation on the windows of the subject's key, or on one.
	Operate(s *Subject, operation string, window int, n uint32, now int64) (value int64, err error)
	// Tables are those with what the source counts. The first has every key.
	Tables() []Table
}

// Table is a table of a source.
type Table struct {
	*state.Table
	Rule  []limit.Window // the limits by which its records count
	Entry *state.Entry   // memory of who visits all pages
}

// failureRetryNs is the wait that a denial for want of a decision asks for.
const failureRetryNs = 1_000_000_000

// Decide checks all enforced rules and then the shadow rules. If none of the former denies
// it counts the hit in them in policy order; a denial after the first count refunds what
// was counted. Shadow rules count last. A request for which some rule must ask the quota
// service first is Pending: nothing is counted, and Decide is called again on the answer.
func (v *Verdict) Decide(now int64) {
	v.Now, v.Allowed, v.RetryNs = now, true, 0
	pending, denied := v.check(now, false, 0)
	if !denied {
		pending, denied = v.check(now, true, pending)
	}
	if v.Pending = pending > 0 && !denied; v.Pending {
		return
	}
	if !denied {
		if denied = v.take(now); v.Pending {
			return
		}
	}
	for i, s := range v.Subjects {
		if s.Shadow {
			if denied {
				s.skip()
				continue
			}
			if v.ahead(i) > 0 { // by now others have counted in the record
				s.checkAgain(now)
			}
			s.take(now)
			s.overtaken()
		}
		if counted := s.countDenied(now); !counted && s.Known && (denied || !s.Allowed) {
			s.Rule.Source.Persist(s)
		}
	}
	if denied {
		v.conclude()
	}
	v.countMetrics()
}

// Peek decides without counting, each rule by itself.
func (v *Verdict) Peek(now int64) {
	v.Now, v.Allowed, v.RetryNs = now, true, 0
	for _, s := range v.Subjects {
		s.check(now)
	}
	v.conclude()
}

// check checks the enforced rules or the shadow rules. It returns how many of the
// request's rules have to ask the quota service, and whether an enforced one denies. One
// ask has room for so many; it is granted as a whole, so the rest cannot ask apart.
func (v *Verdict) check(now int64, shadow bool, asking int) (pending int, denied bool) {
	for i, s := range v.Subjects {
		if s.Shadow != shadow {
			continue
		}
		s.Ahead = v.ahead(i)
		s.check(now)
		if s.Outcome == Pending {
			if asking == quota.MaxGroup {
				s.become(Contended, now)
			} else {
				asking++
			}
		}
		denied = denied || !s.Allowed && !shadow
	}
	return asking, denied
}

// take counts the hit in the enforced rules, or in none of them: if one denies or has to
// ask after all. It reports whether one denied.
func (v *Verdict) take(now int64) (denied bool) {
	for i, s := range v.Subjects {
		if s.Shadow {
			continue
		}
		s.take(now)
		if denied, v.Pending = !s.Allowed, s.Outcome == Pending; denied || v.Pending {
			for _, before := range v.Subjects[:i] {
				before.refund(now)
			}
			return denied
		}
	}
	return false
}

// ahead is how many units are counted in the record of the i-th subject before its own:
// rules that share a counter count a request once each. Shadow rules count last.
func (v *Verdict) ahead(i int) (units uint32) {
	s := v.Subjects[i]
	for j, b := range v.Subjects {
		before := j < i && b.Shadow == s.Shadow || s.Shadow && !b.Shadow
		if before && b.Rule.Counted == s.Rule.Counted && !b.Unlimited && !s.Unlimited && s.Cost > 0 &&
			slices.Equal(b.Key.Bytes, s.Key.Bytes) {
			units += min(b.Cost, math.MaxUint32-units)
		}
	}
	return units
}

// conclude makes the verdict out of the subjects.
func (v *Verdict) conclude() {
	for i, s := range v.Subjects {
		if s.Allowed || s.Shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.Denied = false, i
		}
		switch {
		case v.RetryNs == limit.Never:
		case s.PassNs == limit.Never:
			v.RetryNs = limit.Never
		default:
			v.RetryNs = max(v.RetryNs, s.PassNs-v.Now)
		}
	}
}
