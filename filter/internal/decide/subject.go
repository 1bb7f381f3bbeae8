package decide

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Subject is one rule as it holds for one request. It has everything that the request carries from one call to the
// next. What package decide alone may write is not exported:
//
//	field                    set by                            read by                    until
//	Key, Requested           the caller, before Begin          Begin, sources             the caller reads the next
//	Rule, Cost, CountedKey,  Begin                             all                        the next Begin
//	what Finder.Find finds
//	TooLong, CostUnreadable  the caller, after Begin           explanations               Begin clears them
//	Units                    check, checkAgain                 Source.Check, KeepDenied   the next check
//	outcome, denies          become                            all                        the next become, or Begin
//	passNs                   setFinding, undecided,            Verdict.conclude           the next check
//	                         storeDenied, recheckDenied
//	Known                    Source.Check, Look and Operate    View, BlockedNs,           Begin, undecided, skip or
//	                                                           storeUntaken               giveUp clears it
//	Record                   the Source                        the Source, View,          the next check. Begin clears
//	                                                           noteOutcome                its Rebased
//	Hold                     Source.Take                       Source.Refund, BeginHolds  the subject is Taken no more
//	Quota                    see there
type Subject struct {
	// Of it the caller reads Key and Requested from the request. Begin finds all else by them.
	policy.Subject

	// Begin. The caller sets TooLong then if another value of the request than the key's was too long.
	Rule           *Rule
	Cost           uint32
	CostUnreadable bool // the cost is the greatest: the request does not say it in plain decimals, or not once
	// CountedKey is the key as Source counts it. Four lists have the windows of records, in their order: the policy's
	// limit i has the column Rule.Finder.Order[i] of each. If the subject is Unlimited, the last two may be empty.
	//
	//	list                what it is                            who uses it         how long it is valid
	//	Finder.Windows      the rule's own limits                 layouts, metrics    as long as the policy
	//	Finder.OfAll        the least that a key may pay back     evictions           as long as the policy
	//	Subject.Windows     the limits that hold for the key      holds, definitions  until the next Begin. Those of
	//	                                                                              KeepWindows are valid longer
	//	CountedKey.Windows  the same, or where OwnShare decides,  Source, View        until the rule's next Check,
	//	                    a share of them: clusterRule.share                        Settle or Renew: they may
	//	                                                                              replace them
	CountedKey state.Key

	// before is what the subjects before this one count in its record. They have not yet when it is checked, so that much
	// must be free beside its own cost. Rules that share a counter count a request once each. For example, the record of
	// two such rules has 5 units left, and a request costs 2:
	//
	//	check  Units are 2 for the first rule and 4 for the second: both pass
	//	take   the first takes 2. The second's Take is a Mismatch, because the first has written the record
	//	       the second checks again, with Units 2: of the 3 that are left it takes 2
	before uint32

	// The phases of Verdict.Decide, and LackKey.
	Units   uint32 // that must be free in the record: the cost, and for the first check what is before
	outcome Outcome
	denies  bool  // the rule denies the request, or would if it were not in shadow mode
	passNs  int64 // of a denial: when the hit would pass, by the wall clock; limit.Never

	// The source. Once Known has ended, Record may have what was never stored, or another key's.
	Known  bool        // the key's usage is known: see View
	Record state.Entry // every source sets Now, Rebased and FromFloor unless it fails, one with shared data all of it
	Hold   state.Hold  // of a rule that holds: what Take has held

	// The source of a rule of scope cluster. The service's grant comes between two calls of Decide.
	Quota Quota
}

// Begin prepares the subject, whose key and requested limits have been read. Record and Hold stay: Check and Take write
// them. But note reads Record.Rebased also of subjects that were never checked.
func (s *Subject) Begin(r *Rule, cost uint32) {
	s.Rule = r
	s.Cost, s.CostUnreadable = cost, false
	s.outcome, s.denies = HasRoom, false
	s.Known = false
	s.Record.Rebased = false
	s.Quota.begin()
	r.Finder.Find(&s.Subject)
	s.CountedKey = state.Key{Bytes: s.Key.Bytes, Windows: s.Windows, OfRule: r.Finder.OfAll}
}

// OverrideName returns the name of the override that holds, empty if none does or
// it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}

// LackKey denies because the request lacks a key part. So its source is not asked: see turn.
func (s *Subject) LackKey() {
	s.setFinding(Finding{MissingKey, limit.Never}, 0)
}

// sharesRecord reports whether both are counted in one record.
func (s *Subject) sharesRecord(other *Subject) bool {
	counted := s.Rule.Counted
	return counted != nil && counted == other.Rule.Counted && s.Cost > 0 && slices.Equal(other.Key.Bytes, s.Key.Bytes)
}

// check finds out whether the rule has room for so many units.
func (s *Subject) check(units uint32, now int64) {
	s.Units = units
	s.setFinding(s.Rule.Source.Check(s, now), now)
}

// checkAgain is check after another worker, or a subject before this one, wrote first. The record that it reads has the
// units of the subjects before this one, so only the cost must be free: see Subject.before.
func (s *Subject) checkAgain(now int64) {
	s.Units = s.Cost
	s.setFinding(s.Rule.Source.Recheck(s, now), now)
}

// endsIn is how the phase ends for the subject that has checked or taken.
func (s *Subject) endsIn() ending {
	switch {
	case s.outcome == Pending:
		return asks
	case s.denies:
		return denies
	}
	return passes
}

// take counts the hit that check has passed. If another worker wrote first, or a subject before this one that shares
// its record, it checks again and may deny after all.
func (s *Subject) take(now int64) {
	if s.Cost == 0 {
		return
	}
	for retries := 0; s.outcome == HasRoom; retries++ {
		switch s.Rule.Source.Take(s) {
		case state.OK:
			s.become(Taken, now)
		case state.Full:
			s.setFinding(Finding{Full, now}, now) // it may be tried again at once
		case state.Mismatch:
			if retries < state.MaxRetries {
				s.Rule.Metrics.CASRetries++
				s.checkAgain(now)
			} else {
				s.become(Contended, now)
			}
		default:
			s.become(Failed, now)
		}
	}
}

// refund undoes take.
func (s *Subject) refund(now int64) {
	if s.outcome != Taken {
		return
	}
	s.become(HasRoom, now)
	if !s.Rule.Source.Refund(s, now) {
		s.Rule.Metrics.NotTakenBack++
	}
}

// takeShadow counts an allowed request in a shadow rule. If others of the request are before it in its record, it
// checks again, also if check has denied it: a shadow rule before it may have taken nothing after all.
func (s *Subject) takeShadow(now int64) {
	if s.before > 0 {
		s.checkAgain(now)
	}
	s.take(now)
	switch {
	case s.outcome == Pending: // other rules have counted the request, so it cannot wait any more
		s.become(Overtaken, now)
	case s.denies:
		s.storeUntaken(now)
	}
}

// skip is the part of a shadow rule in a request that an enforced rule denies. If the request has waited,
// the rule's record was read in an earlier callback, whose memory others have used since.
func (s *Subject) skip(now int64) {
	s.forget()
	if meanings[s.outcome].skips {
		s.become(NotAsked, now)
	}
}
