// Package decide decides one request over all rules that it matches: it checks whether every window has room for the
// key, takes the units of all rules, and refunds them if one denies after all.
//
// Its invariant: all rules decide or none counts, and no race makes a later decision looser. A request that is denied
// or Pending leaves the counters as if it had never come, but for three things:
//
//	Keep                  what its rule keeps of a denial
//	metrics NotTakenBack  units that could not be refunded, or that the quota service has charged before
//	metrics Evicted       a record of another key, which Take has added to its page's floor, stays there
//
// It never reads a clock. It must never import a source of units: it knows them as Source, and of the quota service it
// has what a check finds (package cluster), and no message.
//
// Use: v.Begin(). For each rule that matches: read the key into v.Next(), and v.Add(rule, reading). Then v.Decide(now).
//
// Decide has phases, each a method of Verdict. The first two end in one of three ways:
//
//	check --passes--> take --passes--> takeShadow --> note
//	  |                 |
//	  +-----denies------+------------> deny ------> note
//	  |                 |
//	  +------asks-------+------------> Pending: nothing is counted, and Decide begins again with
//	                                   check once the quota service has answered
//
//	check       Source.Check of each subject, which is a rule as it holds for the request.
//	take        Source.Take of each enforced subject. If one denies or asks after all, because another request
//	            was faster, the units of those before it are refunded.
//	takeShadow  Source.Take of each shadow subject: what an allowed request comes to there.
//	deny        storeUntaken of each enforced subject: what its rule keeps of a denial. Shadow subjects are skipped.
//	            Then conclude: Allowed, Denying and RetryNs.
//	note        metrics, and the keys that were denied.
//
// For example, what two rules have left before and after a request of cost 2:
//
//	before  what happens                                                       after
//	5, 3    check, take, takeShadow, note                                      3, 1
//	1, 9    check: the first rule denies. deny, note                           1, 9
//	5, 2    check, and another worker takes 2 of the second rule. take: that   5, 0
//	        denies, and the first rule has its units back. deny, note
//	5, ?    check: the second rule asks. Once its grant has come,              3, ?
//	        all is as in the first line
//
// A request that is Pending goes on in a later callback of the proxy. By then others have used the memory of what its
// sources read, and of its keys' texts unless CloneTexts was called.
//
// A cost that only the answer tells is held by Take. BeginHolds makes a hold.Hold of it, which the caller settles.
//
// Read in this order: Decide here, Verdict (verdict.go), Source (source.go), Found (outcome.go), Subject and its
// part in each phase (subject.go), what is kept of a denial (denied.go). Then, each by itself: what is told of a key
// (view.go), Rule (rule.go).
package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Decide decides the request, and counts it in all rules or in none. But if the verdict is Pending, it is to be
// called again once the quota service has answered.
func (v *Verdict) Decide(now int64) {
	v.start(now)
	end := v.check(now)
	if end == endPasses {
		end = v.take(now)
	}
	switch end {
	case endAsks:
		v.Pending = true
		return
	case endDenies:
		v.deny(now)
	default:
		v.takeShadow(now)
	}
	v.note()
}

// CheckEach checks each rule by itself, as if it were the only one. It counts nothing, in no metric either.
func (v *Verdict) CheckEach(now int64) {
	v.start(now)
	for _, s := range v.inTurn {
		s.check(s.Cost, now)
	}
	v.conclude()
}

// start begins Decide or CheckEach, as if it had not been called before.
func (v *Verdict) start(now int64) {
	v.decision = decision{Now: now, Allowed: true}
	v.giveTurns()
}

// ending is how a phase ends.
type ending uint8

const (
	endPasses ending = iota // no enforced rule is against the request
	endDenies               // an enforced rule denies it
	endAsks                 // a rule has to ask the quota service first
)

// check finds out whether every rule has room. It goes on after a denial, because RetryNs is the longest wait of all
// enforced rules that deny. But then it leaves the shadow rules out: they do not count the request. If no enforced rule
// denies, a shadow rule that asks makes the request wait, as an enforced one does.
func (v *Verdict) check(now int64) ending {
	asking := checkAll(v.enforced, 0, now)
	if v.isDenied() {
		return endDenies
	}
	asking = checkAll(v.shadow, asking, now)
	if asking > 0 {
		return endAsks
	}
	return endPasses
}

// checkAll checks the subjects. asking is how many subjects of the request have to ask already, and it returns how many
// have to then. A request has one ask, which has up to quota.MaxParts parts: a subject beyond these is Contended.
func checkAll(subjects []*Subject, asking int, now int64) int {
	for _, s := range subjects {
		s.check(s.unitsFirst(), now)
		switch {
		case s.finding.Found != Pending:
		case asking == quota.MaxParts:
			s.judge(Finding{Found: Contended}, now)
		default:
			asking++
		}
	}
	return asking
}

// isDenied reports whether an enforced rule denies, also one without a turn: see Reading.LacksKey.
func (v *Verdict) isDenied() bool {
	for _, s := range v.Subjects {
		if s.denies && !s.Shadow {
			return true
		}
	}
	return false
}

// take takes the units of all enforced rules, or of none.
func (v *Verdict) take(now int64) ending {
	for _, s := range v.enforced {
		s.take(now)
		if end := s.endsIn(); end != endPasses {
			v.refund(now)
			return end
		}
	}
	return endPasses
}

// refund undoes take.
func (v *Verdict) refund(now int64) {
	for _, s := range v.enforced {
		s.refund(now)
	}
}

// takeShadow counts an allowed request in the shadow rules.
func (v *Verdict) takeShadow(now int64) {
	for _, s := range v.shadow {
		s.takeShadow(now)
	}
}

// deny ends a request that an enforced rule denies: shadow rules do not count it, and
// nothing is written for them.
func (v *Verdict) deny(now int64) {
	for _, s := range v.Subjects {
		if s.Shadow {
			s.skip()
		} else {
			s.storeUntaken(now)
		}
	}
	v.conclude()
}

// conclude makes the verdict out of the subjects.
func (v *Verdict) conclude() {
	for _, s := range v.Subjects {
		if !s.denies || s.Shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.Denying = false, s
		}
		switch {
		case v.RetryNs == limit.Never:
		case s.finding.PassNs == limit.Never:
			v.RetryNs = limit.Never
		default:
			v.RetryNs = max(v.RetryNs, s.finding.PassNs-v.Now)
		}
	}
}

// note adds the verdict to the rules' metrics, and to the keys that were denied.
func (v *Verdict) note() {
	for _, s := range v.Subjects {
		s.noteOutcome()
		m := &s.Rule.Metrics
		switch n := m.CountsOf(s.Override); {
		case v.Allowed && !s.denies:
			m.Allowed++
			n.Allowed++
		case v.Allowed:
			m.ShadowDenied++
			n.ShadowDenied++
			s.noteDenied(v.Now)
		case s.denies && !s.Shadow:
			m.Denied++
			n.Denied++
			s.noteDenied(v.Now)
		default: // another rule denied, and this one did not, or in shadow mode: it is not counted here
		}
	}
}

// noteDenied counts a denial of the subject's key, also one in shadow mode.
func (s *Subject) noteDenied(now int64) {
	if r := s.Rule; r.Denials != nil {
		r.DenialWorker.Count(r.Denials, &s.Key, now)
	}
}
