package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Outcome is what became of one rule's part in a request.
type Outcome uint8

// The outcomes, with who sets each, and whether the rule then denies:
//
//	outcome     set by                                    denies
//	HasRoom     Begin, Source.Check, Subject.refund       no
//	Taken       Source.Take                               no
//	Raced       Source.Take; no subject keeps it          -
//	Pending     Source.Check                              not yet
//	Denied      Source.Check                              yes
//	HeldBack    Source.Check                              yes
//	MissingKey  Subject.LackKey                           yes
//	Full        Source.Check, Source.Take                 by on_full
//	Failed      Source.Check, Source.Take                 by on_error
//	Contended   Source.Check: too many requests wait      by on_contention
//	            Subject.take: retries ran out             by on_contention
//	            joinAsk: one part too many in an ask      by on_contention
//	            passOvertaken: for a shadow rule          no
//	Silent      Source.Check                              by on_unavailable
//	Starting    Source.Check                              by on_unavailable
//	NotAsked    Subject.skip                              no
//
// become sets the outcome that a Source has found, and has the policy decide where it may.
const (
	HasRoom    Outcome = iota // the units are free, or the rule counts nothing: Take may take them
	Taken                     // they are counted
	Raced                     // another worker wrote first
	Pending                   // the quota service must be asked
	Denied                    // a window has no room
	HeldBack                  // a window would have room, if less were held
	MissingKey                // the request lacks a key part
	Full                      // the key's page is full
	Failed                    // a call into the proxy failed
	Contended                 // retries ran out, or too many requests wait or parts ask already
	Silent                    // the quota service is silent, and nothing decides in its place
	Starting                  // the quota store has no state yet, and no share of this proxy has room
	NotAsked                  // a shadow rule of a request that another rule denied
)

// reasons say why a rule denied, or allowed without counting.
var reasons = [...]string{
	Denied: "limit", HeldBack: "held", MissingKey: "missing_key", Full: "on_full", Failed: "on_error",
	Contended: "on_contention", Silent: "on_unavailable", Starting: "starting", NotAsked: "not_asked",
}

// Subject is one rule as it holds for one request. It has everything that the request carries
// from one call to the next: a source remembers nothing about it. Its fields stand in groups, by
// who writes them.
type Subject struct {
	// The caller reads these from the request before Begin. Begin completes policy.Subject.
	policy.Subject
	Cost           uint32
	CostUnreadable bool // the cost is the greatest, because the request does not say it in plain decimals, or not once

	// Begin.
	Rule   *Rule
	Limits state.Key // the key with the limits that hold for it where it is counted

	// The phases of Verdict.Decide, and LackKey.
	Outcome       Outcome
	Allowed       bool   // a shadow rule that is not Allowed would have denied
	CountedBefore uint32 // units that the subjects before this one count in the same record

	// The source, in Check, Recheck and Take.
	Known  bool        // the key's usage is known
	PassNs int64       // of a denial: when the hit would pass, or limit.Never
	Record state.Entry // of a source that counts in shared data
	Hold   state.Hold  // of a rule that holds: what Take has held

	// The source of a rule of scope cluster. The service's grant comes between two calls of Decide.
	Quota   Quota
	Account any // where lease.HoldSource has counted the units, for its reports; only that reads it

	unnamed Named // see named
}

// Quota is how far a subject has come with the quota service.
type Quota struct {
	Wait  Wait
	Grant Grant             // what the service has granted
	From  From              // where Check has found the units: Take, Refund and Usage follow it
	NowNs int64             // when Check looked, by the monotonic clock
	Lease *state.LeaseEntry // what this proxy has leased of the key, as Check read it
	Taken state.GrantLeft   // of these units: the grant that Take took them from, for Refund
}

// Wait is what a request that asks the quota service may still wait for.
type Wait uint8

// The waits.
const (
	NotWaited Wait = iota // it may wait, unless too many others do
	Waits                 // it waits for a grant, or for another one
	TimedOut              // nothing came in time: it waits no longer
	Rejected              // the service takes no more asks: it waits no longer
)

// Grant is what the quota service has granted to a subject that waited, or denied.
type Grant struct {
	Received  bool                  // false while the service has not granted or denied
	Units     uint32                // that the subject may take
	EndNs     int64                 // until when it may, by the monotonic clock
	Denied    bool                  // too few units are left
	HeldBack  bool                  // of a denial: enough would be left, if less were held
	WaitNs    int64                 // of a denial: until the cost passes, or limit.Never
	NowNs     int64                 // when it came, by the monotonic clock
	Standings []state.LeaseStanding // how the rule's windows stand over all proxies
}

// Decides reports whether it has come, and decides about the cost.
func (g *Grant) Decides(cost uint32, nowNs int64) bool {
	return g.Received && (g.Denied || g.Units >= cost && nowNs < g.EndNs)
}

// From is where a subject of scope cluster takes its units from.
type From uint8

// The places that have units.
const (
	Nowhere    From = iota
	OwnGrant        // the grant for which the request has waited
	LeaseTable      // what the proxy has leased
	OwnShare        // what the proxy may admit while the service is silent
)

// Begin prepares the subject, whose key has been read. What it leaves of the request before is
// read only after Check, Take or the service has written it anew.
func (s *Subject) Begin(r *Rule) {
	s.Rule = r
	s.Outcome, s.Allowed = HasRoom, true
	s.CountedBefore, s.Known = 0, false
	s.Quota.Wait, s.Quota.Grant.Received = NotWaited, false
	s.Account = nil
	r.Subjects.Find(&s.Subject)
	s.Limits = state.Key{Bytes: s.Key.Bytes, Windows: s.Windows, Rule: r.Subjects.OfAll}
}

// LackKey denies because the request lacks a key part.
func (s *Subject) LackKey() {
	s.Outcome, s.Allowed = MissingKey, false
	s.PassNs = limit.Never
}

// Reason says why the rule denied, or allowed without counting; else it is empty.
func (s *Subject) Reason() string { return reasons[s.Outcome] }

// OverrideName returns the name of the override that holds, empty if none does or
// it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}

// Now returns the instant at which the key is counted: the request's, or that
// of the key's record if that is later.
func (s *Subject) Now() int64 { return s.Record.Now }

// Units are the subject's cost and what is counted before it; a cost of 0 needs neither.
func (s *Subject) Units() uint32 {
	if s.Cost == 0 {
		return 0
	}
	return limit.AddSaturating(s.Cost, s.CountedBefore)
}

// Window returns the rule's limit i as it holds for the key, and its usage.
func (s *Subject) Window(i int) (*limit.Window, *limit.Usage) {
	at := s.Rule.Subjects.Order[i]
	return &s.Limits.Windows[at], s.Rule.Source.Usage(s, at)
}

// Held is how many units of the key are held, 0 for a rule that holds none.
func (s *Subject) Held() uint32 {
	if s.Rule.HoldSource == nil {
		return 0
	}
	return s.Rule.HoldSource.Held(s)
}

// Remaining is how many units the rule's limit i has left for the key, beside what is held.
func (s *Subject) Remaining(i int) uint32 {
	w, u := s.Window(i)
	left := w.Remaining(u, s.Record.Now)
	if w.Algorithm != limit.Concurrency {
		left -= min(left, s.Held())
	}
	return left
}

// Tightest returns the index of the rule's limit with least units left.
func (s *Subject) Tightest() int {
	best, lowest := 0, uint32(math.MaxUint32)
	limited := false
	for i := range s.Rule.Subjects.Order {
		if w, _ := s.Window(i); w.Unlimited {
			continue
		}
		if left := s.Remaining(i); !limited || left < lowest {
			best, lowest = i, left
			limited = true
		}
	}
	return best
}

func (s *Subject) check(now int64) {
	if !s.Unlimited && s.Outcome != MissingKey {
		s.noteCheck(s.Rule.Source.Check(s, now), now)
	}
}

// checkAgain is check after others wrote first. The record that it reads contains the units of
// the rules before this one, so nothing is CountedBefore.
func (s *Subject) checkAgain(now int64) {
	s.CountedBefore = 0
	if !s.Unlimited && s.Outcome != MissingKey {
		s.noteCheck(s.Rule.Source.Recheck(s, now), now)
	}
}

func (s *Subject) noteCheck(found Outcome, now int64) {
	if found != Failed && s.Record.Rebased {
		s.Rule.Metrics.ClockRebased++
	}
	s.become(found, now)
}

// become notes an outcome and, if the rule could not decide, has the policy decide.
func (s *Subject) become(o Outcome, now int64) {
	m, p := &s.Rule.Metrics, s.Rule.Policy
	s.Outcome, s.Allowed = o, true
	switch o {
	case Denied, HeldBack:
		s.Allowed = false
	case Full:
		s.Allowed = p.OnFull != policy.FullDeny
	case Failed:
		m.Errors++
		s.undecided(p.OnError == policy.FailDeny, now)
	case Contended:
		m.Contention++
		s.undecided(p.OnContention == policy.FailDeny, now)
	case Silent:
		m.Unavailable++
		s.undecided(p.OnUnavailable == policy.UnavailableDeny, now)
	case Starting:
		m.Unavailable++
		s.undecided(p.OnUnavailable != policy.UnavailableAllow, now)
	default: // the units are free, taken, or to be asked for
	}
}

// failureRetryNs is the wait of a request that is denied because nothing could decide.
const failureRetryNs = 1_000_000_000

func (s *Subject) undecided(deny bool, now int64) {
	s.Known = false // the record may contain a hit that was never stored
	if deny {
		s.Allowed, s.PassNs = false, now+failureRetryNs
	}
}

// take counts the hit that check has passed. If another worker wrote first it checks
// again, and may deny after all.
func (s *Subject) take(now int64) {
	if s.Unlimited || s.Outcome != HasRoom || s.Cost == 0 {
		return
	}
	for retries := 0; s.Outcome == HasRoom; retries++ {
		switch o := s.Rule.Source.Take(s); {
		case o == Taken:
			s.Outcome = Taken
		case o != Raced:
			s.become(o, now)
		case retries == state.MaxRetries:
			s.become(Contended, now)
		default:
			s.Rule.Metrics.CASRetries++
			s.checkAgain(now)
		}
	}
}

// refund undoes take.
func (s *Subject) refund(now int64) {
	if s.Outcome != Taken {
		return
	}
	s.Outcome = HasRoom
	if !s.Rule.Source.Refund(s, now) {
		s.Rule.Metrics.NotRefunded++
	}
}

// write stores what the rule keeps of a hit that is not taken: its cost if denied hits count,
// else that the record has moved to the present.
func (s *Subject) write(now int64) {
	if counted := s.countDenied(now); !counted && s.Known {
		s.Rule.Source.Persist(s)
	}
}

// countDenied counts a hit that the rule has denied by its limits, if the
// rule asks for that; the wait then is the one from the new count. A hit that
// cannot be stored stays uncounted: it was denied.
func (s *Subject) countDenied(now int64) (counted bool) {
	r := s.Rule
	if !r.CountsDenied || s.Outcome != Denied || s.Cost == 0 {
		return false
	}
	for range state.MaxRetries {
		outcome := r.Source.Take(s)
		if outcome == Raced && s.recheckDenied(now) {
			continue
		}
		switch outcome {
		case Taken:
			return true
		case Full: // a newcomer without a slot, and still denied
			r.Metrics.Full++
		default:
			r.Metrics.Errors++
			s.Known = false
		}
		return false
	}
	r.Metrics.Contention++
	s.Known = false
	return false
}

// recheckDenied reads the key again, because another worker wrote first. The wait stays the one
// that was found first. It returns false if the key cannot be read.
func (s *Subject) recheckDenied(now int64) (ok bool) {
	passNs := s.PassNs
	if s.Rule.Source.Recheck(s, now) == Failed {
		return false
	}
	s.PassNs = passNs
	s.Rule.Metrics.CASRetries++
	return true
}

// skip is the outcome of a shadow rule if an enforced rule denies the request. If the request has
// waited, the rule's record was read in an earlier callback, whose memory others have used since.
func (s *Subject) skip() {
	s.Known = false
	switch s.Outcome {
	case HasRoom, Denied, HeldBack, Pending:
		s.Outcome, s.Allowed = NotAsked, true
	default: // the rule would not have decided: the reason stays
	}
}

// passOvertaken lets a shadow rule pass whose units another request has just taken: the
// enforced rules have counted the request, so it cannot wait any more.
func (s *Subject) passOvertaken() {
	if s.Outcome == Pending {
		s.Outcome = Contended
		s.Rule.Metrics.Contention++
	}
}
