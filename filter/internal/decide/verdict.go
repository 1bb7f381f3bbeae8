package decide

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Verdict is the outcome of one request over all rules.
type Verdict struct {
	// Rules.Match sets these, for those who read the verdict: no rule applies to an exempt request, and only rules that
	// name its path to a look, by which a client asks for its usage.
	Exempt, IsLook bool

	Subjects []*Subject // of the rules that matched, in policy order
	pool     []*Subject // every subject ever made: Subjects are the first of them

	// giveTurns sets these.
	inTurn           []*Subject // those whose sources are asked, in the order in which they are: see turn
	enforced, shadow []*Subject // inTurn is the enforced ones, and then those in shadow mode

	decision
}

// decision is what Decide or CheckEach finds out. Each begins it anew, so it may be called again.
type decision struct {
	Now     int64 // when the request was decided, ns since the epoch; 0 before Decide and CheckEach
	Pending bool  // some rule must ask the quota service first: nothing is decided or counted
	Allowed bool  // no enforced rule has denied: true also before Decide, and while Pending
	// conclude sets these of a denial.
	Denying *Subject // the first in policy order that denied
	RetryNs int64    // the wait until the same request would pass, or limit.Never
}

// Begin empties the verdict for the next request. The memory stays.
func (v *Verdict) Begin() {
	*v = Verdict{
		Subjects: v.Subjects[:0], inTurn: v.inTurn[:0], pool: v.pool, decision: decision{Allowed: true},
	}
}

// Next is where the caller reads the Key and Requested of the next subject. It has those of an earlier request, and
// stays the same until Add.
func (v *Verdict) Next() *policy.Subject { return &v.next().Subject }

// Add adds the next subject: that rule's, as the request was read.
func (v *Verdict) Add(r *Rule, read Reading) *Subject {
	s := v.next()
	s.Begin(r, read)
	v.Subjects = append(v.Subjects, s)
	return s
}

// next is the memory of the next subject.
func (v *Verdict) next() *Subject {
	n := len(v.Subjects)
	if n == len(v.pool) {
		v.pool = append(v.pool, new(Subject))
	}
	return v.pool[n]
}

// giveTurns puts the subjects that have a turn into its order.
func (v *Verdict) giveTurns() {
	v.inTurn = v.inTurn[:0]
	v.addTurn(earlyTurn)
	v.addTurn(lateTurn)
	n := len(v.inTurn)
	v.addTurn(shadowTurn)
	v.enforced, v.shadow = v.inTurn[:n], v.inTurn[n:]
	for i, s := range v.inTurn {
		s.before = costBefore(v.inTurn[:i], s)
	}
}

// addTurn adds the subjects of one turn to inTurn.
func (v *Verdict) addTurn(t turn) {
	for _, s := range v.Subjects {
		if s.turn() == t {
			v.inTurn = append(v.inTurn, s)
		}
	}
}

// turn is when a subject is checked and takes its units, among those of a verdict. Those of one turn go in policy
// order.
type turn uint8

const (
	noTurn turn = iota // its source is not asked: nothing is counted, or it is keyless
	earlyTurn
	lateTurn   // its rule takesLate
	shadowTurn // it is checked only if no other denies, and takes only if all others have
)

func (s *Subject) turn() turn {
	switch {
	case s.Unlimited, s.fate == keyless:
		return noTurn
	case s.Shadow:
		return shadowTurn
	case s.Rule.takesLate:
		return lateTurn
	}
	return earlyTurn
}

// Rules that share a counter count a request once each. So what must be free for a subject depends on whether the
// subjects before it have taken. For example, the record of two such rules has 5 units left, and a request costs 2:
//
//	check  unitsFirst are 2 for the first rule and 4 for the second: both pass
//	take   the first takes 2. The second's Take is a Mismatch, because the first has written the record
//	       the second checks again: unitsAgain are 2, of the 3 that are left

// unitsFirst are what must be free when no subject has taken.
func (s *Subject) unitsFirst() uint32 { return limit.AddSaturating(s.Cost, s.before) }

// unitsAgain are what must be free once the subjects before this one have taken: the record has their units.
func (s *Subject) unitsAgain() uint32 { return s.Cost }

// costBefore is what the subjects before s count in its record.
func costBefore(before []*Subject, s *Subject) (cost uint32) {
	for _, other := range before {
		if s.sharesRecord(other) {
			cost = limit.AddSaturating(cost, other.Cost)
		}
	}
	return cost
}

// sharesRecord reports whether both are counted in one record.
func (s *Subject) sharesRecord(other *Subject) bool {
	counted := s.Rule.Counted
	return counted != nil && counted == other.Rule.Counted && s.Cost > 0 && slices.Equal(other.Key.Bytes, s.Key.Bytes)
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
func (v *Verdict) LacksKey() bool { return !v.Allowed && v.Denying.fate == keyless }

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

// BeginHolds appends what the request holds: each hold must end by one call of Settle. Its EndNs is 0, for ever, unless
// the caller sets it. It is called once for a request, or Release is. A request of cost 0 is never taken: it holds
// nothing, and its answer is not charged.
//
// The windows are those of the key, also if OwnShare has decided: the source settles and renews by the share that it
// has then.
func (v *Verdict) BeginHolds(holds []hold.Hold) []hold.Hold {
	for _, s := range v.Subjects {
		if r := s.Rule; s.fate == taken && r.Policy.Holds() {
			holds = append(holds, hold.Hold{
				Hold: s.Hold, Rule: &r.ofHolds, Windows: s.KeepWindows(), Account: s.Cluster.Account, TakenHere: s.isCountedHere(),
			})
			holds[len(holds)-1].Begin()
		}
	}
	return holds
}

// Release settles at once what the verdict's subjects hold: nobody waits for an answer. Each is charged its cost, and
// nothing for a slot.
func (v *Verdict) Release() {
	holds := v.BeginHolds(nil)
	for i := range holds {
		h := &holds[i]
		cost := h.Units
		if h.Rule.Policy.Concurrency() {
			cost = 0
		}
		h.Settle(cost, metrics.ByCost, v.Now)
	}
}
