package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Look is how the keys of one client stand at the service, at most one key of each rule. A client that asks for its own
// usage is told that. The service is asked, and grants nothing:
//
//	Look.AddKey       a key of each rule of scope cluster that the client is shown
//	Client.WaitLook   asks for their Parts, up to quota.MaxParts in an ask
//	Look.Note         writes down how the key of a part stands
//	Look.Told         is that, for Subject.Look of the same key
//
// A key stays unknown if the service is silent, if its store fails for the key, or if too many keys are
// looked at already.
//
// It is not decide.Verdict.CheckEach, which judges a request without counting it.
type Look struct{ keys []lookedKey }

// lookedKey is one key, and how it stands.
type lookedKey struct {
	part      Part
	rule      *decide.Rule
	standings []leased.Standing // nil: not known
}

// AddKey adds the subject's key, unless its rule has scope proxy.
func (l *Look) AddKey(s *decide.Subject) {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return
	}
	l.keys = append(l.keys, lookedKey{part: src.lookPart(s), rule: s.Rule})
}

// Size is how many keys the look has; nil has none.
func (l *Look) Size() int {
	if l == nil {
		return 0
	}
	return len(l.keys)
}

// Parts returns what the service is asked of up to quota.MaxParts keys, from one of them on.
func (l *Look) Parts(from int) []Part {
	parts := make([]Part, min(quota.MaxParts, len(l.keys)-from))
	for i := range parts {
		parts[i] = l.keys[from+i].part
	}
	return parts
}

// Note writes down how the key of a part stands, by the grant for it, which came at cameNs. The grant is nil if the
// service has none. The ask may be another look's, so the key is found by its definition: a look has one key of each.
func (l *Look) Note(p *Part, grant *quota.Grant, cameNs int64) {
	if grant == nil || grant.Failed {
		return
	}
	for i := range l.keys {
		if k := &l.keys[i]; k.part.Wire.Definition == p.Wire.Definition {
			k.standings = p.standings(grant, cameNs)
		}
	}
}

// Told is what the service has said of the subject's key, nil if nothing, or if AddKey has not had it.
func (l *Look) Told(s *decide.Subject) []leased.Standing {
	if l == nil {
		return nil
	}
	for i := range l.keys {
		if k := &l.keys[i]; k.rule == s.Rule {
			return k.standings
		}
	}
	return nil
}

// Look finds out nothing: only the service knows, and has told it by Look.Told.
func (src *clusterRule) Look(s *decide.Subject, wallNs int64, told []leased.Standing) (known bool) {
	src.begin(s, wallNs)
	s.Quota.Standings = told
	return isKnown(s)
}

// What operators see: the operation "leased" on counters (Operate), and the lease in an explanation (LeaseOf). Both
// leave and find what they know in the subject, as Check does: there Usage finds it, too. A lease that is FromFuture
// has nothing then: an operator asks again.

// Operate returns how many units of the key this proxy may still spend. While the service is silent, the subject has
// what this proxy has counted by itself.
func (src *Source) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, known bool, err error) {
	c := src.begin(s, wallNs)
	e := new(state.LeaseEntry)
	if src.table.Read(e, src.tableKey(s), wallNs, s.Quota.MonotonicNs) != state.OK {
		return 0, false, local.ErrStore
	}
	c.Lease = e
	if src.isSilent(e) && !src.showShare(s, wallNs) {
		return 0, false, local.ErrStore
	}
	return int64(e.Left(e.NowNs)) + src.leftOfOthers(s, wallNs), isKnown(s), nil
}

// leftOfOthers is how many units of the subject's key may be spent under other limits, which
// other requests give, as far as this worker keeps these.
func (src *Source) leftOfOthers(s *decide.Subject, wallNs int64) (units int64) {
	own, defs := string(appendLimits(nil, s)), &src.worker.definitions
	var e state.LeaseEntry
	for requested := range defs.requested {
		limits, ofRule := requested.limitsOf(src.firstDefinition)
		if !ofRule || limits == own {
			continue
		}
		key := append(append([]byte(nil), s.Key.Bytes...), limits...) // as tableKey has it
		if src.table.Read(&e, key, wallNs, src.worker.clock.Monotonic()) == state.OK {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}

// Operate returns 0: nothing is leased. While the service is silent, the subject has what this proxy has counted by
// itself.
func (src *HoldSource) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, known bool, err error) {
	src.begin(s, wallNs)
	_, unavailable := src.unavailable(s, src.findAccount(s))
	if unavailable && !src.showShare(s, wallNs) {
		return 0, false, local.ErrStore
	}
	return 0, isKnown(s), nil
}

// showShare has the subject show what this proxy has counted by itself, if on_unavailable is local. It returns false if
// the proxy's store fails.
func (src *clusterRule) showShare(s *decide.Subject, wallNs int64) (ok bool) {
	return src.local == nil || src.checkShare(s, wallNs).Found != decide.Failed
}

// LeaseOf is what this proxy knew of the subject's key when it was checked, or by Operate. It is nil for a rule of
// scope proxy, and for a key that is Unlimited.
func LeaseOf(s *decide.Subject) *result.Lease {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return nil
	}
	return src.leaseOf(s)
}

func (src *Source) leaseOf(s *decide.Subject) *result.Lease {
	told, e := &result.Lease{}, s.Carried.Lease
	if e == nil { // it was not read
		return told
	}
	for i := range e.Grants {
		if left := &e.Grants[i]; left.Units > 0 && left.EndNs > e.NowNs {
			told.EndsNs = max(told.EndsNs, left.EndNs-e.NowNs)
		}
	}
	told.Units = e.Left(e.NowNs)
	if src.isSilent(e) {
		told.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return told
}

func (src *HoldSource) leaseOf(s *decide.Subject) *result.Lease {
	told := &result.Lease{}
	if _, unavailable := src.unavailable(s, src.findAccount(s)); unavailable {
		told.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return told
}
