// Package decide decides one request over all rules that it matches: it checks whether
// every window has room for the key, takes the units of all rules, and refunds them if
// one denies after all.
//
// Its invariant: all rules decide or none counts. A denied request leaves the counters as
// if it had never come, but for rules that count denied hits, and no race makes a later
// decision looser. It never reads a clock, and it must never import a source of units. It knows where units
// come from only as Source, and whether the quota service has decided, by Subject.isByService: what that
// denies it has kept, and how a key stands is its word.
//
// Use: v.Begin(); for each rule, read key and cost into s := v.Next(), s.Begin(rule), v.Add(); v.Decide(now).
//
// Decide goes through its phases, each a function of Verdict:
//
//	check       Source.Check of each subject. If an enforced rule denies, endDenied. If a
//	            subject is Pending, the verdict is: nothing is counted, and Decide is called
//	            again, from the start, once the quota service has answered.
//	take        Source.Take of each enforced subject, last those whose denials block keys. If one denies
//	            after all, the units of those before it are refunded: endDenied. If one is Pending after all,
//	            they are refunded too, and the verdict is Pending.
//	endDenied   shadow rules are skipped. storeUntaken of each other subject: Source.KeepDenied if it denies and its
//	            rule counts denied hits or blocks keys, else Source.Persist if it is Known.
//	takeShadow  Source.Take of each shadow subject: what an allowed request comes to there. If it denies, storeUntaken.
//	note        metrics, and the keys that were denied.
//
// What requests of each kind come to:
//
//	allowed           check, take, takeShadow, note
//	denied            check, endDenied, note; or check, take, endDenied, note if it lost a race
//	denied in shadow  check, take, takeShadow, note: Verdict.Allowed stays, Subject.Allowed does not
//	cluster rule      check: Pending. The request waits, its grant comes to Subject.Quota, and Decide
//	                  begins again: check finds the grant, and take takes it
//	charged later     as allowed. The caller turns what Take has held into Holds by BeginHolds, and
//	                  charges the cost by Hold.Settle once the answer tells it
//
// In names, count is about units and note is about metrics.
//
// Three names are about seeing how keys stand:
//
//	Verdict.Peek    Engine.Peek calls it for an explanation, and Engine.Operate for "peek". It checks each rule by
//	                itself, and takes and keeps nothing. Like Decide it may register tables and count errors.
//	Source.Look     Engine.AppendUsage calls it for each rule that is shown to a client that asks for its usage. It
//	                leaves no trace.
//	Verdict.IsLook  Rules.Match sets it on the request of such a client. Decide decides and counts that as any other,
//	                but only by rules that name its path. If it is allowed, its answer is what Look finds.
//
// Read in this order: Verdict.Decide here, Source and Rule (rule.go), Outcome (outcome.go), Subject and
// its part in each phase (subject.go, denied.go), how a subject waits for the quota service (quota.go), Hold
// (hold.go), Metrics (metrics.go, spikes.go).
package decide

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Verdict is the outcome of one request over all rules.
type Verdict struct {
	Allowed     bool
	Exempt      bool       // from all rules
	IsLook      bool       // the client asks for its usage: only rules that name the path decide
	Pending     bool       // some rule must ask the quota service first: nothing is decided or counted
	Now         int64      // when the request was decided, ns since the epoch; 0 if no rule matched
	RetryNs     int64      // of a denial: the wait until the same request would pass; limit.Never
	Subjects    []*Subject // of the rules that matched, in policy order
	FirstDenied int        // of a denial: index of the first subject that denied

	// memory has as many subjects as a request has ever needed, which are few of a policy's rules.
	// Subjects are the first of them. Next returns the one behind those, and Add appends it:
	//
	//	memory    s0  s1  s2  s3
	//	Subjects  s0  s1            Next returns s2
	memory []*Subject
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

// CloneTexts makes the texts of the keys last beyond the callback.
func (v *Verdict) CloneTexts() {
	for _, s := range v.Subjects {
		for i := range s.Key.Parts {
			p := &s.Key.Parts[i]
			p.Text = strings.Clone(p.Text)
		}
	}
}

// Decide decides the request in phases: it checks all rules, takes the units of the enforced
// ones, then those of the shadow rules. All enforced rules are counted or none. If some rule
// has to ask the quota service first, the verdict is Pending: nothing is counted, and Decide
// is called again once the service has answered.
//
// So check and take end in one of three ways: they report that an enforced rule denies, or set
// Pending, or all rules pass.
func (v *Verdict) Decide(now int64) {
	v.start(now)
	denied := v.check(now)
	if !denied && !v.Pending {
		denied = v.take(now)
	}
	switch {
	case v.Pending:
		return
	case denied:
		v.endDenied(now)
	default:
		v.takeShadow(now)
	}
	v.note()
}

// Peek decides without counting, each rule by itself.
func (v *Verdict) Peek(now int64) {
	v.start(now)
	for _, s := range v.Subjects {
		s.check(now)
	}
	v.conclude()
}

func (v *Verdict) start(now int64) {
	v.Now, v.RetryNs = now, 0
	v.Allowed, v.Pending = true, false
}

// check finds out whether every rule has room, the enforced ones first. It reports whether an
// enforced rule denies. Otherwise the verdict is Pending if some rule has to ask.
func (v *Verdict) check(now int64) (denied bool) {
	asking := 0
	for _, shadow := range [2]bool{false, true} {
		for i, s := range v.Subjects {
			if s.Shadow != shadow {
				continue
			}
			s.CountedBefore = v.countedBefore(i)
			s.check(now)
			if s.Outcome == Pending && asking == quota.MaxGroup {
				s.become(Contended, now) // an ask is granted as a whole: what has no room in it cannot ask apart
			}
			if s.Outcome == Pending {
				asking++
			}
			denied = denied || !s.Allowed && !shadow
		}
		if denied {
			return true
		}
	}
	v.Pending = asking > 0
	return false
}

// take takes the units of all enforced rules, or of none: not if one denies or has to ask
// after all, because another request was faster. It reports whether one denies.
func (v *Verdict) take(now int64) (denied bool) {
	for _, last := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.Shadow || s.Rule.takesLast != last {
				continue
			}
			s.take(now)
			denied, v.Pending = !s.Allowed, s.Outcome == Pending
			if denied || v.Pending {
				v.refund(now)
				return denied
			}
		}
	}
	return false
}

// refund undoes take.
func (v *Verdict) refund(now int64) {
	for _, s := range v.Subjects {
		s.refund(now)
	}
}

// endDenied ends a request that an enforced rule denies: shadow rules do not count it, and
// nothing is written for them.
func (v *Verdict) endDenied(now int64) {
	for _, s := range v.Subjects {
		if s.Shadow {
			s.skip()
			continue
		}
		s.storeUntaken(now)
	}
	v.conclude()
}

// takeShadow counts an allowed request in the shadow rules. What check has read of a record is out of
// date once another rule of this request has counted in it.
func (v *Verdict) takeShadow(now int64) {
	for i, s := range v.Subjects {
		if !s.Shadow {
			continue
		}
		if v.countedBefore(i) > 0 {
			s.checkAgain(now)
		}
		s.take(now)
		s.passOvertaken()
		if !s.Allowed {
			s.storeUntaken(now)
		}
	}
}

// countedBefore is how many units of this request are counted in the record of the i-th subject before
// its own: rules that share a counter count a request once each, and shadow rules count last. Three
// such rules, and a cost of 2:
//
//	rule    mode      countedBefore  needs room for
//	first   enforced  0              2
//	second  shadow    4              6
//	third   enforced  2              4
func (v *Verdict) countedBefore(i int) (units uint32) {
	s := v.Subjects[i]
	for j, other := range v.Subjects {
		before := j < i && other.Shadow == s.Shadow || s.Shadow && !other.Shadow
		if before && s.sharesRecord(other) {
			units = limit.AddSaturating(units, other.Cost)
		}
	}
	return units
}

// sharesRecord reports whether both are counted in one record.
func (s *Subject) sharesRecord(other *Subject) bool {
	return other.Rule.Counted == s.Rule.Counted && !other.Unlimited && !s.Unlimited && s.Cost > 0 &&
		slices.Equal(other.Key.Bytes, s.Key.Bytes)
}

// conclude makes the verdict out of the subjects.
func (v *Verdict) conclude() {
	for i, s := range v.Subjects {
		if s.Allowed || s.Shadow {
			continue
		}
		if v.Allowed {
			v.Allowed, v.FirstDenied = false, i
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

// DeniedBy is the first rule in policy order that denied.
func (v *Verdict) DeniedBy() *policy.Rule {
	if v.Allowed {
		return nil
	}
	return v.Subjects[v.FirstDenied].Rule.Policy
}

// LacksKey reports whether the request is denied because it lacks a key part.
func (v *Verdict) LacksKey() bool {
	return !v.Allowed && v.Subjects[v.FirstDenied].Outcome == MissingKey
}

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
