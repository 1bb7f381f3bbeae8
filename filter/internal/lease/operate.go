package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// What operators see: the operation "leased" on counters (Operate), and the lease in an explanation (LeaseOf). Both
// leave and find what they know in the subject, as Check does: there Usage finds it, too.

// Operate returns how many units of the key this proxy may still spend. While the service is silent, the subject has
// what this proxy has counted by itself.
func (src *Source) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, known bool, err error) {
	c := src.begin(s, wallNs)
	e := new(state.LeaseEntry)
	if src.table.Read(e, src.tableKey(s), wallNs, s.Cluster.MonotonicNs) != state.OK {
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
	told, e := &result.Lease{}, s.Cluster.Lease
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
