package decide

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Subject is one rule as it holds for one request. It has everything that the request carries
// from one call to the next: a source remembers nothing about it. Its fields stand in groups, by
// who writes them. Its methods are first its part in the phases of Verdict.Decide, then what the
// response and reports tell of it.
type Subject struct {
	// The caller reads these from the request before Begin. Of policy.Subject they are Key and Requested.
	// Begin finds the rest: Override, Windows, Shadow, Unlimited and TooLong, which the caller may set, too.
	policy.Subject
	Cost           uint32
	CostUnreadable bool // the cost is the greatest, because the request does not say it in plain decimals, or not once

	// Begin.
	Rule *Rule
	// Limits is the key with the limits that hold for it where it is counted. Its lists of windows, and those near:
	//
	//	list                 whose limits                         grids    written by
	//	Windows              the key's                            shifted  Begin
	//	Limits.Windows       the same; if OwnShare decides, what  shifted  Begin, and each Check of a rule of scope
	//	                     this proxy may admit of them                  cluster, in memory of the source
	//	Limits.OfRule        the rule's, safe for all keys        plain    Begin: Rule.Finder.OfAll
	//	Rule.Finder.Windows  the rule's                           plain    NewRule
	//
	// Shifted grids are shifted by the key's jitter. The lists have the same windows in the order of records, and
	// Rule.Finder.Order[i] is the index of the policy's limit i in each. If the subject is Unlimited, the first two
	// may be empty.
	Limits state.Key

	// The phases of Verdict.Decide, and LackKey.
	Outcome       Outcome
	Allowed       bool   // a shadow rule that is not Allowed would have denied
	CountedBefore uint32 // units that the subjects before this one count in the same record

	// The source, in Check, Recheck and Take.
	//
	// lastFound is what the last call of Check or Recheck has returned. becomeFound makes it the Outcome, but not what
	// recheckDenied finds: see there.
	lastFound Outcome

	// Known says that the key's usage is known. Without it nothing is told of the key: Source.Usage, Window, Remaining,
	// Standing and Tightest are not called, and storeUntaken does not Persist. Source.Check sets it. Who ends it:
	//
	//	Begin, and Source.Check  nothing is known yet, or the key cannot be read
	//	undecided                a source failed, or gave up: the record in memory may contain a hit that was never stored
	//	keepDenied               the same, for a hit that was to be kept
	//	skip                     the record was read in an earlier callback: the memory may have another key's by now
	Known  bool
	PassNs int64 // of a denial: when the hit would pass, by the wall clock, or limit.Never
	// Every source sets Record's Now, Rebased and FromFloor, unless it fails. One that counts in shared data sets the
	// rest too.
	Record state.Entry
	Hold   state.Hold // of a rule that holds: what Take has held

	// The source of a rule of scope cluster. The service's grant comes between two calls of Decide.
	Quota   Quota
	Account any // where lease.HoldSource has counted the units, for its reports; only that reads it

	unnamed Named // see named
}

// Begin prepares the subject, whose key has been read. What it leaves of the request before is
// read only after Check, Take or the service has written it anew.
func (s *Subject) Begin(r *Rule) {
	s.Rule = r
	s.Outcome, s.Allowed = HasRoom, true
	s.CountedBefore, s.Known = 0, false
	s.Quota.Wait, s.Quota.Grant.Received = NotWaited, false
	s.Quota.From, s.Quota.ChargeKept = Nowhere, false
	s.Account = nil
	r.Finder.Find(&s.Subject)
	s.Limits = state.Key{Bytes: s.Key.Bytes, Windows: s.Windows, OfRule: r.Finder.OfAll}
}

// LackKey denies because the request lacks a key part.
func (s *Subject) LackKey() {
	s.Outcome, s.Allowed = MissingKey, false
	s.PassNs = limit.Never
}

// Units are the subject's cost and what is counted before it; a cost of 0 needs neither.
func (s *Subject) Units() uint32 {
	if s.Cost == 0 {
		return 0
	}
	return limit.AddSaturating(s.Cost, s.CountedBefore)
}

// check finds out whether the rule has room.
func (s *Subject) check(now int64) {
	if !s.Unlimited && s.Outcome != MissingKey {
		s.becomeFound(s.Rule.Source.Check(s, now), now)
	}
}

// checkAgain is check after another worker, or another rule of this request, wrote first. The record that
// it reads contains the units of the rules before this one, so nothing is CountedBefore.
func (s *Subject) checkAgain(now int64) {
	s.CountedBefore = 0
	if !s.Unlimited && s.Outcome != MissingKey {
		s.becomeFound(s.Rule.Source.Recheck(s, now), now)
	}
}

// becomeFound makes what a source has found the outcome.
func (s *Subject) becomeFound(found Outcome, now int64) {
	s.lastFound = found
	if found != Failed && s.Record.Rebased {
		s.Rule.Metrics.ClockRebased++
	}
	s.become(found, now)
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

// skip is the outcome of a shadow rule if an enforced rule denies the request. If the request has
// waited, the rule's record was read in an earlier callback, whose memory others have used since.
func (s *Subject) skip() {
	s.Known = false
	switch s.Outcome {
	case HasRoom, Denied, Blocked, HeldBack, Pending:
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

// OverrideName returns the name of the override that holds, empty if none does or
// it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}

// Now returns the instant at which the key is counted, by the wall clock: the request's, or that
// of the key's record if that is later.
func (s *Subject) Now() int64 { return s.Record.Now }

// Window returns the rule's limit i as it holds for the key, and its usage. It is only for a subject that is
// Known, as Remaining, Standing and Tightest are.
func (s *Subject) Window(i int) (*limit.Window, *limit.Usage) {
	at := s.Rule.Finder.Order[i]
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
	return s.left(w, w.Count(u, s.Record.Now))
}

// left is Remaining of a window of which so many units are used.
func (s *Subject) left(w *limit.Window, used uint32) uint32 {
	left := w.Left(used)
	if w.Algorithm != limit.Concurrency {
		left -= min(left, s.Held())
	}
	return left
}

// Standing is how the rule's limit i stands for the key: how many units are used and how many are left beside what
// is held, and how long after now the window starts anew. If the quota service has said it, it is exactly that:
// Window has a usage made of it, which goes by this proxy's clock and may be a unit off.
func (s *Subject) Standing(i int, now int64) (used, left uint32, resetNs int64) {
	w, u := s.Window(i)
	used, resetNs = w.Count(u, s.Now()), max(0, w.Reset(u, s.Now())-now)
	if !s.isByService() || w.Algorithm == limit.Concurrency {
		return used, s.left(w, used), resetNs
	}
	if st := &s.Quota.Standings[s.Rule.Finder.Order[i]]; st.ResetNs > s.Quota.NowNs {
		used, resetNs = st.Used, st.ResetNs-s.Quota.NowNs
	}
	return used, s.left(w, used), resetNs
}

// BlockedNs is what is left of the key's block at now, 0 if it is not blocked.
func (s *Subject) BlockedNs(now int64) int64 {
	if s.Rule.Policy.Block == nil || !s.Known {
		return 0
	}
	for i := len(s.Limits.Windows) - 1; i >= 0; i-- {
		if s.Limits.Windows[i].Algorithm == limit.Block {
			return max(0, s.Rule.Source.Usage(s, i).EndNs-now)
		}
	}
	return 0
}

// Tightest returns the index of the rule's limit with least units left.
func (s *Subject) Tightest() int {
	best, lowest := 0, uint32(math.MaxUint32)
	limited := false
	for i := range s.Rule.Finder.Order {
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
