// Package decide decides one request over all rules that it matches: it checks whether
// every window has room for the key, takes the units of all rules, and refunds them if
// one denies after all.
//
// Its invariant: all rules decide or none counts. A denied request leaves the counters as
// if it had never come, but for what rules keep of a denial (Keep), and no race makes a later
// decision looser. It never reads a clock, and it must never import a source of units: it knows them
// as Source alone.
//
// Use: v.Begin(); for each rule, read key and cost into s := v.Next(), s.Begin(rule), v.Add(); v.Decide(now).
//
// Decide has phases, each a method of Verdict. The first two end in one of three ways:
//
//	check --passes--> take --passes--> takeShadow --> note
//	  |                 |
//	  +-----denies------+------------> endDenied ---> note
//	  |                 |
//	  +------asks-------+------------> Pending: nothing is counted, and Decide begins again with
//	                                   check once the quota service has answered
//
//	check       Source.Check of each subject, which is a rule as it holds for the request.
//	take        Source.Take of each enforced subject. If one denies or asks after all, because another request
//	            was faster, the units of those before it are refunded.
//	takeShadow  Source.Take of each shadow subject: what an allowed request comes to there.
//	endDenied   storeUntaken of each enforced subject: what its rule keeps of a denial. Shadow subjects are skipped.
//	note        metrics, and the keys that were denied.
//
// For example, what two rules have left before and after a request of cost 2:
//
//	before  what happens                                                       after
//	5, 3    check, take, takeShadow, note                                      3, 1
//	1, 9    check: the first rule denies. endDenied, note                      1, 9
//	5, 2    check, and another worker takes 2 of the second rule. take: that   5, 0
//	        denies, and the first rule has its units back. endDenied, note
//	5, ?    check: the second rule asks. Once its grant is in Subject.Quota,   3, ?
//	        all is as in the first line
//
// A cost that only the answer tells is held by Take. BeginHolds makes a hold.Hold of it, which the caller settles.
//
// Read in this order: Verdict.Decide here, Source (source.go), Outcome (outcome.go), Subject and its part in each
// phase (subject.go), what is kept of a denial (denied.go), what is told of a key (standing.go). Then, each by
// itself: Quota, how a subject waits for the quota service (quota.go), BeginHolds (holds.go), Rule (rule.go).
package decide

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Verdict is the outcome of one request over all rules.
type Verdict struct {
	// Rules.Match sets these, for those who read the verdict: no rule applies to an exempt request, and only rules that
	// name its path to a look, by which a client asks for its usage.
	Exempt, IsLook bool

	Subjects []*Subject // of the rules that matched, in policy order
	turns    []*Subject // those that ask their sources, in the order in which they do: see turn

	Now     int64 // when the request was decided, ns since the epoch; 0 if no rule matched
	Pending bool  // some rule must ask the quota service first: nothing is decided or counted
	Allowed bool
	// Of a denial:
	Denying *Subject // the first in policy order that denied
	RetryNs int64    // the wait until the same request would pass; limit.Never
}

// Begin empties the verdict for the next request.
func (v *Verdict) Begin() { *v = Verdict{Allowed: true, Subjects: v.Subjects[:0], turns: v.turns[:0]} }

// Next is the memory of the next subject, which Add appends. Subjects keeps it behind its end from one request to
// the next.
func (v *Verdict) Next() *Subject {
	n := len(v.Subjects)
	if n == cap(v.Subjects) {
		v.Subjects = append(v.Subjects, nil)[:n]
	}
	next := &v.Subjects[:n+1][n]
	if *next == nil {
		*next = new(Subject)
	}
	return *next
}

// Add appends the subject that Next has returned, and gives it its turn. It has none if its source is not to be asked.
func (v *Verdict) Add() {
	n := len(v.Subjects)
	v.Subjects = v.Subjects[:n+1]
	s := v.Subjects[n]
	if s.Unlimited || s.Outcome == MissingKey {
		return
	}
	v.turns = append(v.turns, s)
	for i := len(v.turns) - 1; i > 0 && v.turns[i-1].turn() > s.turn(); i-- {
		v.turns[i-1], v.turns[i] = s, v.turns[i-1]
	}
}

// CloneTexts makes the texts of the keys last beyond the callback.
func (v *Verdict) CloneTexts() {
	for _, s := range v.Subjects {
		for i := range s.Key.Parts {
			p := &s.Key.Parts[i]
			p.Text = strings.Clone(p.Text)
		}
	}
}

// Decide decides the request, and counts it in all rules or in none. But if the verdict is Pending, it is to be
// called again once the quota service has answered.
func (v *Verdict) Decide(now int64) {
	v.start(now)
	end := v.check(now)
	if end == passes {
		end = v.take(now)
	}
	switch end {
	case asks:
		v.Pending = true
		return
	case denies:
		v.endDenied(now)
	default:
		v.takeShadow(now)
	}
	v.note()
}

// CheckEach checks each rule by itself, as if it were the only one, and counts nothing.
func (v *Verdict) CheckEach(now int64) {
	v.start(now)
	for _, s := range v.turns {
		s.check(s.Cost, now)
	}
	v.conclude()
}

func (v *Verdict) start(now int64) {
	v.Now, v.RetryNs = now, 0
	v.Pending, v.Allowed = false, true
}

// end is how a phase ends.
type end uint8

const (
	passes end = iota // no enforced rule is against the request
	denies            // an enforced rule denies it
	asks              // a rule has to ask the quota service first
)

// check finds out whether every rule has room. It leaves the shadow rules out if an enforced one denies.
func (v *Verdict) check(now int64) end {
	asking := 0
	for i, s := range v.turns {
		if s.Shadow && v.isDenied() {
			break
		}
		s.check(v.unitsFor(i), now)
		switch {
		case s.Outcome != Pending:
		case asking == quota.MaxGroup: // an ask is granted as a whole: what has no room in it cannot ask apart
			s.become(Contended, now)
		default:
			asking++
		}
	}
	switch {
	case v.isDenied():
		return denies
	case asking > 0:
		return asks
	}
	return passes
}

// isDenied reports whether an enforced rule denies.
func (v *Verdict) isDenied() bool {
	for _, s := range v.Subjects {
		if !s.Allowed && !s.Shadow {
			return true
		}
	}
	return false
}

// unitsFor is how many units must be free in the record of the subject of that turn: its cost, and what the
// subjects before it count there. Rules that share a counter count a request once each.
func (v *Verdict) unitsFor(at int) uint32 {
	s := v.turns[at]
	units := s.Cost
	for _, before := range v.turns[:at] {
		if s.sharesRecord(before) {
			units = limit.AddSaturating(units, before.Cost)
		}
	}
	return units
}

// take takes the units of all enforced rules, or of none.
func (v *Verdict) take(now int64) end {
	for _, s := range v.turns {
		if s.Shadow {
			break
		}
		s.take(now)
		if end := s.end(); end != passes {
			v.refund(now)
			return end
		}
	}
	return passes
}

// refund undoes take.
func (v *Verdict) refund(now int64) {
	for _, s := range v.turns {
		s.refund(now)
	}
}

// takeShadow counts an allowed request in the shadow rules.
func (v *Verdict) takeShadow(now int64) {
	for _, s := range v.turns {
		if s.Shadow {
			s.takeShadow(now)
		}
	}
}

// endDenied ends a request that an enforced rule denies: shadow rules do not count it, and
// nothing is written for them.
func (v *Verdict) endDenied(now int64) {
	for _, s := range v.Subjects {
		if s.Shadow {
			s.skip(now)
		} else {
			s.storeUntaken(now)
		}
	}
	v.conclude()
}

// conclude makes the verdict out of the subjects.
func (v *Verdict) conclude() {
	for _, s := range v.Subjects {
		if s.Allowed || s.Shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.Denying = false, s
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

// Matched reports whether any rule matched.
func (v *Verdict) Matched() bool { return len(v.Subjects) > 0 }

// DeniedBy is the first rule in policy order that denied, nil if none did.
func (v *Verdict) DeniedBy() *policy.Rule {
	if v.Allowed {
		return nil
	}
	return v.Denying.Rule.Policy
}

// LacksKey reports whether the request is denied because it lacks a key part.
func (v *Verdict) LacksKey() bool { return !v.Allowed && v.Denying.Outcome == MissingKey }

// Response is what the client of a denied request gets.
func (v *Verdict) Response() *policy.Response {
	if v.LacksKey() {
		return v.DeniedBy().MissingResponse
	}
	return &v.DeniedBy().Response
}

// RetryAfter returns the seconds of the Retry-After header; ok is false if no wait would help.
func (v *Verdict) RetryAfter() (seconds int64, ok bool) {
	if v.Allowed || v.RetryNs == limit.Never {
		return 0, false
	}
	return max(1, fields.Seconds(v.RetryNs)), true
}
