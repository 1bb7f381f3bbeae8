package decide

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Found is what a Source has found out about a hit. meanings has what its rule then does.
//
// To add one: a constant before allFound, its row of meanings, and a row in TestOutcomes, which fails without it.
type Found uint8

// What a Source finds, and when.
const (
	// The rule does not deny, and has counted nothing: the units are free, and Take may take them; the cost is 0; the key
	// is Unlimited, and nobody is asked; or nothing is found out yet.
	HasRoom Found = iota

	Pending  // the quota service must be asked
	Denied   // a window has no room
	Blocked  // the key is blocked since an earlier denial
	HeldBack // a window would have room, if less were held
	Silent   // the quota service is silent, and no share of this proxy decides in its place
	Starting // the quota store has no state yet, and this proxy has no share, or all of it is held
	Full     // the key's page is full, also if Take has found that
	Failed   // a call into the proxy failed, also one of Take

	// Too many requests wait, or the service takes no more asks. Verdict.checkAll: a request asks about too many keys.
	// Subject.take: other workers wrote first each time.
	Contended

	allFound = int(iota) // how many there are
)

// fate is what was made of a subject beside what its last check has found.
type fate uint8

const (
	asFound   fate = iota // nothing: what was found decides
	taken                 // HasRoom, and Source.Take has counted the units
	overtaken             // Pending in takeShadow: its units are lost to another request, and it cannot wait any more
	notAsked              // skip: another rule denied the request of a shadow rule
	keyless               // Begin: the request lacks a key part, and the rule denies it. Its source is not asked: see turn
)

// reasons are what Reason says of fates.
var reasons = [...]string{
	overtaken: result.ReasonOnContention,
	notAsked:  result.ReasonNotAsked,
	keyless:   result.ReasonMissingKey,
}

// meaning is what a finding means for the request.
type meaning struct {
	reason    string                    // what Reason says: a constant of package result
	deniesBy  func(p *policy.Rule) bool // nil: the rule does not deny, or not yet
	undecided bool                      // nothing could decide, and the record may have a hit that was never stored
	skips     bool                      // skip makes it notAsked. Else the rule would not have decided: it stays
}

// meanings has a row for each finding. If a rule is still Pending at the end, nobody was asked either: another rule has
// denied, or the caller of Decide asks nobody.
var meanings = [allFound]meaning{
	HasRoom:   {skips: true},
	Pending:   {reason: result.ReasonNotAsked, skips: true},
	Denied:    {reason: result.ReasonLimit, deniesBy: anyPolicy, skips: true},
	Blocked:   {reason: result.ReasonBlocked, deniesBy: anyPolicy, skips: true},
	HeldBack:  {reason: result.ReasonHeld, deniesBy: anyPolicy, skips: true},
	Silent:    {reason: result.ReasonOnUnavailable, deniesBy: onUnavailable, undecided: true},
	Starting:  {reason: result.ReasonStarting, deniesBy: onUnavailableAtStart, undecided: true},
	Full:      {reason: result.ReasonOnFull, deniesBy: onFull},
	Failed:    {reason: result.ReasonOnError, deniesBy: onError, undecided: true},
	Contended: {reason: result.ReasonOnContention, deniesBy: onContention, undecided: true},
}

func anyPolicy(*policy.Rule) bool              { return true }
func onFull(p *policy.Rule) bool               { return p.OnFull == policy.FullDeny }
func onError(p *policy.Rule) bool              { return p.OnError == policy.FailDeny }
func onContention(p *policy.Rule) bool         { return p.OnContention == policy.FailDeny }
func onUnavailable(p *policy.Rule) bool        { return p.OnUnavailable == policy.UnavailableDeny }
func onUnavailableAtStart(p *policy.Rule) bool { return p.OnUnavailable != policy.UnavailableAllow }

// IsPending reports whether the quota service must be asked for the subject.
func (s *Subject) IsPending() bool { return s.finding.Found == Pending && s.fate == asFound }

// Denies reports whether the rule denies the request, or would deny it if it were not in shadow mode.
func (s *Subject) Denies() bool { return s.denies }

// Reason says why the rule denied, or allowed without counting; else it is empty.
func (s *Subject) Reason() string {
	if s.fate == asFound {
		return meanings[s.finding.Found].reason
	}
	return reasons[s.fate]
}

// failureRetryNs is the wait of a request that is denied because nothing could decide.
const failureRetryNs = 1_000_000_000

// judge makes a finding the subject's, and decides by it whether the rule denies. If nothing could decide, nothing is
// told of the key, and Persist does not store it: Record may have what was never stored, or another key's record.
func (s *Subject) judge(f Finding, now int64) {
	m := &meanings[f.Found]
	if m.undecided {
		f.Known = false
		f.PassNs = now + failureRetryNs
	}
	s.finding = f
	s.denies = m.deniesBy != nil && m.deniesBy(s.Rule.Policy)
}

// noteOutcome counts what became of a decided request in the rule's metrics.
func (s *Subject) noteOutcome() {
	m := &s.Rule.Metrics
	switch s.fate {
	case taken:
		if !s.Rule.Policy.Holds() { // a rule that holds charges when the answer is known: its spikes are not counted
			m.CountSpikes(s.Rule.Finder.Windows, s.Cost, s.Record.Now)
		}
		s.noteRebased()
	case overtaken:
		m.Contention++
	case asFound:
		s.noteFinding()
	case notAsked, keyless: // it counts as the verdict does
	}
	if s.isByOnUnavailable() {
		m.QuotaUnavailable++
	}
}

// noteRebased counts that the record has moved to the present, once that is stored: by take, or by storeUntaken. Where
// it is not stored, the next request finds the same.
func (s *Subject) noteRebased() {
	if s.Record.Rebased && s.finding.Known {
		s.Rule.Metrics.ClockRebased++
	}
}

// noteFinding counts what was found of a subject of which Decide has made nothing else.
func (s *Subject) noteFinding() {
	m := &s.Rule.Metrics
	switch s.finding.Found {
	case Denied, Blocked:
		if s.Record.FromFloor && !s.Shadow {
			m.FloorDenied++
		}
	case Full:
		m.Full++
	case Failed:
		m.Errors++
	case Contended:
		m.Contention++
	case HasRoom, Pending, HeldBack, Silent, Starting: // it counts as the verdict does
	}
}
