package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Outcome is what became of one rule's part in a request.
type Outcome uint8

// Comments name the method that finds an outcome. meanings has what its rule then does.
//
// To add one: a constant before outcomes, its row of meanings, and a row in TestOutcomes, which fails without it.
const (
	// The rule does not deny, and has counted nothing: the units are free, and Take may take them; the cost is 0; refund
	// has undone Take; the key is Unlimited, and nobody is asked; or nothing is found out yet.
	HasRoom Outcome = iota

	// Source.Check.
	Pending  // the quota service must be asked
	Denied   // a window has no room
	Blocked  // the key is blocked since an earlier denial
	HeldBack // a window would have room, if less were held
	Silent   // the quota service is silent, and no share of this proxy decides in its place
	Starting // the quota store has no state yet, and this proxy has no share, or all of it is held

	// Source.Check or Source.Take.
	Full   // the key's page is full
	Failed // a call into the proxy failed

	// Source.Check: too many requests wait, or the service takes no more asks. Verdict.check: a request asks about too
	// many keys. Subject.take: other workers wrote first each time.
	Contended

	Taken      // Source.Take: the units are counted
	Overtaken  // Subject.takeShadow: its units are lost to another request, and it cannot wait any more
	NotAsked   // Subject.skip: another rule denied the request of a shadow rule
	MissingKey // Subject.Begin: the request lacks a key part

	outcomes = int(iota) // how many there are
)

// meaning is what an outcome means for the request.
type meaning struct {
	reason    string                    // what Reason says: a constant of package result
	deniesBy  func(p *policy.Rule) bool // nil: the rule does not deny, or not yet
	undecided bool                      // nothing could decide, and the record may have a hit that was never stored
	skips     bool                      // skip makes it NotAsked. Else the rule would not have decided: it stays
}

// meanings has a row for each outcome. If a rule is still Pending at the end, nobody was asked either: another rule has
// denied, or the caller of Decide asks nobody.
var meanings = [outcomes]meaning{
	HasRoom:    {skips: true},
	Pending:    {reason: result.ReasonNotAsked, skips: true},
	Denied:     {reason: result.ReasonLimit, deniesBy: anyPolicy, skips: true},
	Blocked:    {reason: result.ReasonBlocked, deniesBy: anyPolicy, skips: true},
	HeldBack:   {reason: result.ReasonHeld, deniesBy: anyPolicy, skips: true},
	Silent:     {reason: result.ReasonOnUnavailable, deniesBy: onUnavailable, undecided: true},
	Starting:   {reason: result.ReasonStarting, deniesBy: onUnavailableAtStart, undecided: true},
	Full:       {reason: result.ReasonOnFull, deniesBy: onFull},
	Failed:     {reason: result.ReasonOnError, deniesBy: onError, undecided: true},
	Contended:  {reason: result.ReasonOnContention, deniesBy: onContention, undecided: true},
	Taken:      {},
	Overtaken:  {reason: result.ReasonOnContention},
	NotAsked:   {reason: result.ReasonNotAsked},
	MissingKey: {reason: result.ReasonMissingKey, deniesBy: anyPolicy},
}

func anyPolicy(*policy.Rule) bool              { return true }
func onFull(p *policy.Rule) bool               { return p.OnFull == policy.FullDeny }
func onError(p *policy.Rule) bool              { return p.OnError == policy.FailDeny }
func onContention(p *policy.Rule) bool         { return p.OnContention == policy.FailDeny }
func onUnavailable(p *policy.Rule) bool        { return p.OnUnavailable == policy.UnavailableDeny }
func onUnavailableAtStart(p *policy.Rule) bool { return p.OnUnavailable != policy.UnavailableAllow }

// Outcome is what became of the subject so far.
func (s *Subject) Outcome() Outcome { return s.outcome }

// Denies reports whether the rule denies the request, or would deny it if it were not in shadow mode.
func (s *Subject) Denies() bool { return s.denies }

// Reason says why the rule denied, or allowed without counting; else it is empty.
func (s *Subject) Reason() string { return meanings[s.outcome].reason }

// setFinding makes the finding the subject's own.
func (s *Subject) setFinding(f Finding, now int64) {
	s.known = f.Known
	s.passNs = f.PassNs
	s.become(f.Outcome, now)
}

// failureRetryNs is the wait of a request that is denied because nothing could decide.
const failureRetryNs = 1_000_000_000

// become sets the outcome, and by its meaning whether the rule denies.
func (s *Subject) become(o Outcome, now int64) {
	m := &meanings[o]
	s.outcome = o
	s.denies = m.deniesBy != nil && m.deniesBy(s.Rule.Policy)
	if !m.undecided {
		return
	}
	s.forget()
	if s.denies {
		s.passNs = now + failureRetryNs
	}
}

// forget ends what is known of the key: Record may have what was never stored, or another key's record. So nothing is
// told of the key, and Persist does not store it.
func (s *Subject) forget() { s.known = false }

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
