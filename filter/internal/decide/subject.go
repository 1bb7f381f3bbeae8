package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Outcome is what became of one rule's part in a request.
type Outcome uint8

// The outcomes. All but Taken, Raced and NotAsked are of Check.
const (
	Granted    Outcome = iota // the units are free, or the rule counts nothing
	Taken                     // they are counted
	Raced                     // another worker wrote first
	Pending                   // the quota service must be asked
	Denied                    // a window has no room
	HeldBack                  // a window would have, if less were held
	MissingKey                // the request lacks a key part
	Full                      // the key's page is full
	Failed                    // a call into the proxy failed
	Contended                 // compare-and-swap retries ran out, or too many wait already
	Silent                    // the quota service is silent, and nothing decides in its place
	Starting                  // the quota store has no state yet, and this proxy's share leaves no room, if it has one
	NotAsked                  // a shadow rule of a request that another rule denied
)

// reasons say why a rule denied, or allowed without counting.
var reasons = [...]string{
	Denied: "limit", HeldBack: "held", MissingKey: "missing_key", Full: "on_full", Failed: "on_error", Contended: "on_contention",
	Silent: "on_unavailable", Starting: "starting", NotAsked: "not_asked",
}

// Subject is one rule as it holds for one request.
type Subject struct {
	policy.Subject
	Rule           *Rule
	Cost           uint32
	CostUnreadable bool // the cost is the greatest, because the request does not say it in plain decimals, or not once

	Outcome Outcome
	Allowed bool
	Known   bool   // the key's usage is known
	Ahead   uint32 // units that the subjects before this one count in the same record
	PassNs  int64  // of a denial: when the hit would pass, or limit.Never

	Limits state.Key         // the key with the limits that hold for it where it is counted
	Record state.Entry       // of a source that counts in shared data
	Held   state.Hold        // of what Take has held
	Level  any               // of a source that states what is held: where it counts the key
	Lease  *state.LeaseEntry // of a source that leases

	unnamed Named
}

// Begin prepares the subject, whose key has been read.
func (s *Subject) Begin(r *Rule) {
	s.Rule, s.Outcome, s.Allowed, s.Known = r, Granted, true, false
	r.Subjects.Find(&s.Subject)
	s.Limits = state.Key{Bytes: s.Key.Bytes, Windows: s.Windows, Rule: r.Subjects.OfAll}
}

// LackKey denies for want of a key part.
func (s *Subject) LackKey() { s.Outcome, s.Allowed, s.PassNs = MissingKey, false, limit.Never }

// Reason says why the rule denied, or allowed without counting; else it is empty.
func (s *Subject) Reason() string { return reasons[s.Outcome] }

// OverrideName returns the name of the override that holds, empty where none does or
// it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}

// Now returns the instant at which the key is counted: the request's, or that
// of the key's record where that is later.
func (s *Subject) Now() int64 { return s.Record.Now }

// Units are the subject's cost and what is counted before it; a cost of 0 needs neither.
func (s *Subject) Units() uint32 {
	if s.Cost == 0 {
		return 0
	}
	return limit.AddSaturating(s.Cost, s.Ahead)
}

// Window returns the rule's limit i as it holds for the key, and its usage.
func (s *Subject) Window(i int) (*limit.Window, *limit.Usage) {
	at := s.Rule.Subjects.Order[i]
	return &s.Limits.Windows[at], s.Rule.Source.Usage(s, at)
}

// Remaining is how many units the rule's limit i has left for the key, beside what is held.
func (s *Subject) Remaining(i int) uint32 {
	w, u := s.Window(i)
	left := w.Remaining(u, s.Record.Now)
	if w.Algorithm != limit.Concurrency {
		left -= min(left, s.Rule.Source.Held(s))
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
			best, lowest, limited = i, left, true
		}
	}
	return best
}

func (s *Subject) check(now int64) {
	if !s.Unlimited && s.Outcome != MissingKey {
		s.checked(s.Rule.Source.Check(s, now), now)
	}
}

// checkAgain is check after others wrote first: by then the rules before this one have
// counted.
func (s *Subject) checkAgain(now int64) {
	s.Ahead = 0
	if !s.Unlimited && s.Outcome != MissingKey {
		s.checked(s.Rule.Source.Recheck(s, now), now)
	}
}

func (s *Subject) checked(found Outcome, now int64) {
	if found != Failed && s.Record.Rebased {
		s.Rule.Metrics.ClockRebased++
	}
	s.become(found, now)
}

// become notes an outcome and, where the rule could not decide, has the policy decide.
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

func (s *Subject) undecided(deny bool, now int64) {
	s.Known = false // the record may contain a hit that was never stored
	if deny {
		s.Allowed, s.PassNs = false, now+failureRetryNs
	}
}

// take counts the hit that check has passed. Where another worker wrote first it checks
// again, and may deny after all.
func (s *Subject) take(now int64) {
	if s.Unlimited || s.Outcome != Granted || s.Cost == 0 {
		return
	}
	for retries := 0; s.Outcome == Granted; retries++ {
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

// countDenied counts a hit that the rule has denied by its limits, where the
// rule asks for that; the wait then is the one from the new count. A hit that
// cannot be stored stays uncounted: it was denied.
func (s *Subject) countDenied(now int64) (counted bool) {
	r := s.Rule
	if !r.CountsDenied || s.Outcome != Denied || s.Cost == 0 {
		return false
	}
	for range state.MaxRetries {
		switch r.Source.Take(s) {
		case Taken:
			return true
		case Full: // a newcomer without a slot, and still denied
			r.Metrics.Full++
			return false
		case Raced:
			passNs := s.PassNs // the wait stays the one that was found first
			if r.Source.Recheck(s, now) != Failed {
				s.PassNs = passNs
				r.Metrics.CASRetries++
				continue
			}
		default:
		}
		r.Metrics.Errors++
		s.Known = false
		return false
	}
	r.Metrics.Contention++
	s.Known = false
	return false
}

// refund undoes take.
func (s *Subject) refund(now int64) {
	if s.Outcome != Taken {
		return
	}
	if s.Outcome = Granted; !s.Rule.Source.Refund(s, now) {
		s.Rule.Metrics.NotRefunded++
	}
}

// skip is the outcome of a shadow rule that an enforced rule's denial has overtaken.
func (s *Subject) skip() {
	switch s.Outcome {
	case Granted, Denied, Pending:
		s.Outcome, s.Allowed, s.Known = NotAsked, true, false
	default: // it could not have decided either
	}
}

// overtaken lets a shadow rule pass whose units another request has just taken: by
// now the request is counted.
func (s *Subject) overtaken() {
	if s.Outcome == Pending {
		s.Outcome = Contended
		s.Rule.Metrics.Contention++
	}
}
