package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// What operators see of leases: the operation "leased" on counters (Operate), and the lease in an
// explanation (LeaseOf). Both leave and find what they know in Subject.Quota, as Check does: there Usage
// finds it, too.

// Operate returns how many units of the key this proxy may still spend. While the service is
// silent, the subject has what this proxy has counted by itself.
func (src *Source) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	src.begin(s, wallNs)
	e := new(state.LeaseEntry)
	s.Quota.Lease = e
	if !src.readToTell(e, src.tableKey(s), wallNs, s.Quota.MonotonicNs) {
		return 0, local.ErrStore
	}
	if src.isSilent(e) && src.local != nil {
		if found := src.checkShare(s, wallNs); found.Outcome == decide.Failed {
			return 0, local.ErrStore
		}
	}
	return int64(e.Left(e.NowNs)) + src.leftOfOthers(s, wallNs), nil
}

// leftOfOthers is how many units of the subject's key may be spent under other limits, which
// other requests give, as far as this worker keeps these.
func (src *Source) leftOfOthers(s *decide.Subject, wallNs int64) (units int64) {
	own, defs := string(appendLimits(nil, s)), &src.worker.definitions
	for requested := range defs.requested {
		limits, ofRule := requested.limitsOf(src.firstDefinition)
		if !ofRule || limits == own {
			continue
		}
		e := &src.worker.entry
		key := append(append([]byte(nil), s.Key.Bytes...), limits...) // as tableKey has it
		if src.readToTell(e, key, wallNs, src.worker.clock.Monotonic()) {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}

// Tables are the table of leases, and what counts in the place of a silent service: keys
// that are among the leases.
func (src *Source) Tables() []decide.Table {
	t := src.table.Table()
	own := decide.Table{Table: t, OfRule: t.Windows(), Scratch: &src.worker.scratch}
	return append([]decide.Table{own}, src.clusterRule.Tables()...)
}

// Operate returns 0: nothing is leased. While the service is silent, the subject has what this
// proxy has counted by itself.
func (src *HoldSource) Operate(
	s *decide.Subject, _ decide.Operation, _ int, _ uint32, wallNs int64,
) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	src.begin(s, wallNs)
	if _, unavailable := src.unavailable(s, src.account(s)); unavailable && src.local != nil {
		if found := src.checkShare(s, wallNs); found.Outcome == decide.Failed {
			return 0, local.ErrStore
		}
	}
	return 0, nil
}

// LeaseOf is what this proxy knew of the subject's key when it was checked, or by Operate; nil for a rule
// of scope proxy.
func LeaseOf(s *decide.Subject) *result.Lease {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return nil
	}
	return src.leaseOf(s)
}

func (src *Source) leaseOf(s *decide.Subject) *result.Lease {
	told, e := &result.Lease{}, s.Quota.Lease
	if e == nil { // it was not checked
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
	if _, unavailable := src.unavailable(s, src.account(s)); unavailable {
		told.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return told
}
