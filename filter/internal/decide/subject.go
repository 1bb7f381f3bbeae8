package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Subject is one rule as it holds for one request. It has everything that the request carries from one call to the
// next.
type Subject struct {
	// Begin begins these for a request, which keeps them while it waits. Before Begin the caller has read Key and
	// Requested, by which Rule.Finder finds all else of a policy.Subject.

	policy.Subject
	Rule           *Rule
	Cost           uint32
	CostUnreadable bool            // see Reading
	Cluster        cluster.Carried // of a rule of scope cluster: only its source and the talk write it

	// CountedKey is the key as Source counts it. There are three lists of Windows, all in the order of records: the
	// policy's limit i has the column Rule.Finder.Order[i].
	//
	//	Rule.Finder.Windows  what the rule says
	//	Subject.Windows      what holds for the key, by an override or by what the request says; empty if Unlimited
	//	CountedKey.Windows   by what Source counts the key: Subject.Windows, or Cluster.ShareMemory where OwnShare
	//	                     decides. BeginQuotaCheck begins it anew
	CountedKey state.Key

	before uint32 // what earlier subjects of the request count in this one's record: giveTurns sets it

	// Begin begins these, too, and each check sets them all: Units and fate before it asks Source, and finding and denies
	// by what that returns. Later phases may change all but Units. Look and Operate set only finding.Known.

	Units   uint32 // that must be free in the record: unitsFirst or unitsAgain
	fate    fate
	finding Finding
	denies  bool // the rule denies the request, or would if it were not in shadow mode

	// Source leaves these for its next call, as its table says. Begin begins Record, because the sources of some subjects
	// are not asked. Hold keeps that of an earlier request until Take sets it: nobody reads it before.

	// Record is the key's record, as a source with shared data has read it last. Where the usage is not known, it may
	// have what was never stored, or another key's record. Where none was read, beginReading has set what is read of it.
	Record state.Entry
	Hold   state.Hold // of a rule that holds: what Source.Take has held
}

// Reading is what the caller has read of the request for one rule, beside the key and the limits.
type Reading struct {
	Cost           uint32
	CostUnreadable bool // the cost is the greatest: the request does not say it in plain decimals, or not once
	TooLong        bool // a value was too long for a regular expression
	LacksKey       bool // the request lacks a key part, and the rule denies it therefore
}

// Begin begins the subject of a rule, when its Key and Requested have been read.
func (s *Subject) Begin(r *Rule, read Reading) {
	r.Finder.Find(&s.Subject)
	s.TooLong = s.TooLong || read.TooLong // Find has begun it: an override may have found the key too long
	s.Rule, s.Cost = r, read.Cost
	s.CostUnreadable = read.CostUnreadable
	s.Cluster.Begin()
	s.CountedKey = state.Key{
		Bytes: s.Key.Bytes, Limits: state.Limits{Windows: s.Windows, OfRule: r.Finder.OfAll},
	}
	s.Units, s.fate = 0, asFound
	s.finding, s.denies = Finding{PassNs: limit.Never}, read.LacksKey
	if read.LacksKey {
		s.fate = keyless
	}
	s.beginReading(0, 0)
}

// beginReading sets what is read of Record where the source reads none: noteOutcome reads Findings, and Now is the
// present for View and for what package lease says of a wait. It begins what Cluster has of a check, at the same
// instant.
func (s *Subject) beginReading(wallNs, monotonicNs int64) {
	s.Record.Now = wallNs
	s.Record.Findings = state.Findings{}
	s.Cluster.BeginCheck(monotonicNs)
}

// BeginQuotaCheck begins a check of a subject of scope cluster, or a look or an operation, at an instant of both
// clocks. No Record of this proxy is read, unless OwnShare decides in the end.
func (s *Subject) BeginQuotaCheck(wallNs, monotonicNs int64) {
	s.CountedKey.Windows = s.Windows
	s.beginReading(wallNs, monotonicNs)
}

// isCountedHere reports whether what this proxy has counted decides about the subject. In a rule of scope cluster that
// is so only by its own share: else the quota service has said how the key stands, or must be asked.
func (s *Subject) isCountedHere() bool {
	return s.Rule.Policy.Scope != policy.ScopeCluster || s.Cluster.From == cluster.OwnShare
}

// isByOnUnavailable reports whether on_unavailable has decided about the subject: by this proxy's share, or because
// nothing could decide in the service's place. It has not if another rule denied before.
func (s *Subject) isByOnUnavailable() bool {
	switch s.finding.Found {
	case Silent, Starting:
		return true
	default:
		return s.Cluster.From == cluster.OwnShare && s.fate != notAsked
	}
}

// check finds out whether the rule has room for so many units.
func (s *Subject) check(units uint32, now int64) {
	s.Units, s.fate = units, asFound
	s.judge(s.Rule.Source.Check(s, now), now)
}

// checkAgain is check after another worker, or a subject before this one, wrote first.
func (s *Subject) checkAgain(now int64) {
	s.Units, s.fate = s.unitsAgain(), asFound
	s.judge(s.Rule.Source.Recheck(s, now), now)
}

// Look has the source find out how the key stands at now, as Source.Look says.
func (s *Subject) Look(now int64, told []leased.Standing) {
	s.finding.Known = s.Rule.Source.Look(s, now, told)
}

// Operate has the source carry out an operation, as Source.Operate says.
func (s *Subject) Operate(o Operation, column int, n uint32, now int64) (value int64, err error) {
	value, s.finding.Known, err = s.Rule.Source.Operate(s, o, column, n, now)
	return value, err
}

// endsIn is how the phase ends for the subject that has checked or taken.
func (s *Subject) endsIn() ending {
	switch {
	case s.finding.Found == Pending:
		return endAsks
	case s.denies:
		return endDenies
	}
	return endPasses
}

// take counts the hit for which check has found room. If another worker wrote first, or a subject before this one that
// shares its record, it checks again and may deny after all. A subject that passes without room stays as it is: its
// rule allows without counting, for example because it is Silent.
func (s *Subject) take(now int64) {
	if s.Cost == 0 {
		return
	}
	for retries := 0; s.finding.Found == HasRoom && s.fate == asFound; retries++ {
		switch s.Rule.Source.Take(s) {
		case state.OK:
			s.fate = taken
		case state.Full:
			s.judge(Finding{Full, s.finding.Known, now}, now) // it may be tried again at once
		case state.Mismatch:
			if retries < state.MaxRetries {
				s.Rule.Metrics.CASRetries++
				s.checkAgain(now)
			} else {
				s.judge(Finding{Found: Contended}, now)
			}
		default:
			s.judge(Finding{Found: Failed}, now)
		}
	}
}

// refund undoes take.
func (s *Subject) refund(now int64) {
	if s.fate != taken {
		return
	}
	s.fate = asFound
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
	case s.finding.Found == Pending: // other rules have counted the request, so it cannot wait any more
		s.fate = overtaken
	case s.denies:
		s.storeUntaken(now)
	}
}

// skip is the part of a shadow rule in a request that an enforced rule denies: what it has found is not stored. If the
// request has waited, the rule's record was read in an earlier callback, whose memory others have used since.
func (s *Subject) skip() {
	s.finding.Known = false
	if meanings[s.finding.Found].skips && s.fate != keyless {
		s.fate, s.denies = notAsked, false
	}
}

// OverrideName returns the name of the override that holds, empty if none does or it has no name.
func (s *Subject) OverrideName() string {
	if s.Override < 0 {
		return ""
	}
	return s.Rule.Policy.Overrides[s.Override].Name
}
