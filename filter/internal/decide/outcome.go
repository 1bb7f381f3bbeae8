package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Outcome is what became of one rule's part in a request.
type Outcome uint8

// The outcomes, with who finds each, whether the rule then denies, what Reason says, and whether Known ends:
//
//	outcome     found by                               denies              reason          Known ends
//	HasRoom     Begin, Source.Check, Subject.refund    no                                  no
//	Taken       Source.Take                            no                                  no
//	Pending     Source.Check                           not yet             not_asked       no
//	Denied      Source.Check                           yes                 limit           no
//	Blocked     Source.Check                           yes                 blocked         no
//	HeldBack    Source.Check                           yes                 held            no
//	MissingKey  Subject.LackKey                        yes                 missing_key     not begun
//	Full        Source.Check, Source.Take              by on_full          on_full         no
//	Failed      Source.Check, Source.Take              by on_error         on_error        yes
//	Contended   Source.Check: too many requests wait,  by on_contention    on_contention   yes
//	            or the service takes no more asks
//	            (Rejected)
//	            Subject.take: retries ran out
//	            Verdict.check: too many subjects ask
//	Overtaken   Subject.takeShadow                     no                  on_contention   no
//	Silent      Source.Check, unless on_unavailable    by on_unavailable   on_unavailable  yes
//	            is local: then this proxy's share
//	            decides
//	Starting    Source.Check, also if it is local and  by on_unavailable   starting        yes
//	            all of the share is held               unless it is allow
//	NotAsked    Subject.skip                           no                  not_asked       by skip
//
// To add one: a constant before outcomes, its line above, its reason, and a row in TestOutcomes, which fails without
// it. The row says what become, noteOutcome, skip and isByOnUnavailable make of the outcome. Reasons are constants of
// package result, which says what a new one needs.
const (
	HasRoom    Outcome = iota // the units are free, or the rule counts nothing: Take may take them
	Taken                     // they are counted
	Pending                   // the quota service must be asked
	Denied                    // a window has no room
	Blocked                   // the key is blocked since an earlier denial
	HeldBack                  // a window would have room, if less were held
	MissingKey                // the request lacks a key part
	Full                      // the key's page is full
	Failed                    // a call into the proxy failed
	Contended                 // retries ran out, too many requests wait or parts ask, or the service takes no more asks
	Overtaken                 // a shadow rule's units are lost to another request, and it cannot wait any more
	Silent                    // the quota service is silent, and nothing decides in its place
	Starting                  // the quota store has no state yet, and this proxy has no share, or all of it is held
	NotAsked                  // a shadow rule of a request that another rule denied

	outcomes = int(iota) // how many there are
)

// reasons say why a rule denied, or allowed without counting. One that is still Pending was not asked either: another
// rule has denied, or its caller asks nobody.
var reasons = [outcomes]string{
	Pending: result.ReasonNotAsked, Denied: result.ReasonLimit, Blocked: result.ReasonBlocked,
	HeldBack: result.ReasonHeld, MissingKey: result.ReasonMissingKey, Full: result.ReasonOnFull,
	Failed: result.ReasonOnError, Contended: result.ReasonOnContention, Overtaken: result.ReasonOnContention,
	Silent: result.ReasonOnUnavailable, Starting: result.ReasonStarting, NotAsked: result.ReasonNotAsked,
}

// Outcome is what became of the subject so far.
func (s *Subject) Outcome() Outcome { return s.outcome }

// Denies reports whether the rule denies the request, or would deny it if it were not in shadow mode.
func (s *Subject) Denies() bool { return s.denies }

// Reason says why the rule denied, or allowed without counting; else it is empty.
func (s *Subject) Reason() string { return reasons[s.outcome] }

// setFinding makes the finding the subject's own.
func (s *Subject) setFinding(f Finding, now int64) {
	s.passNs = f.PassNs
	s.become(f.Outcome, now)
}

// become sets the outcome, and by the table above whether the rule denies, and whether Known ends. Known does not end
// where the page is Full: nothing was changed.
func (s *Subject) become(o Outcome, now int64) {
	p := s.Rule.Policy
	s.outcome, s.denies = o, false
	switch o {
	case Denied, Blocked, HeldBack, MissingKey:
		s.denies = true
	case Full:
		s.denies = p.OnFull == policy.FullDeny
	case Failed:
		s.undecided(p.OnError == policy.FailDeny, now)
	case Contended:
		s.undecided(p.OnContention == policy.FailDeny, now)
	case Silent:
		s.undecided(p.OnUnavailable == policy.UnavailableDeny, now)
	case Starting:
		s.undecided(p.OnUnavailable != policy.UnavailableAllow, now)
	case HasRoom, Taken, Pending, Overtaken, NotAsked: // the rule does not deny, or not yet
	}
}

// failureRetryNs is the wait of a request that is denied because nothing could decide.
const failureRetryNs = 1_000_000_000

// undecided is for a rule that could not decide: the policy says whether it then denies.
func (s *Subject) undecided(deny bool, now int64) {
	s.Known = false // the record may contain a hit that was never stored
	if deny {
		s.denies, s.passNs = true, now+failureRetryNs
	}
}

// noteOutcome counts the outcome of a decided request in the rule's metrics.
func (s *Subject) noteOutcome() {
	m := &s.Rule.Metrics
	switch s.outcome {
	case Taken:
		if !s.Rule.Policy.Holds() { // a rule that holds charges when the answer is known: its spikes are not counted
			m.CountSpikes(s.Rule.Finder.Windows, s.Cost, s.Record.Now)
		}
	case Denied, Blocked:
		if s.Record.FromFloor && !s.Shadow {
			m.FloorDenied++
		}
	case Full:
		m.Full++
	case Failed:
		m.Errors++
	case Contended, Overtaken:
		m.Contention++
	case HasRoom, Pending, HeldBack, MissingKey, Silent, Starting, NotAsked: // it counts as the verdict does
	}
	if s.isByOnUnavailable() {
		m.QuotaUnavailable++
	}
	if s.Record.Rebased && s.outcome != Failed {
		m.ClockRebased++
	}
}
