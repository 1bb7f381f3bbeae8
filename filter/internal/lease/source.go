package lease

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	maxRefillNs = 100_000_000
	// silenceNs is for how long a key is decided without the service after its
	// store has failed for this key. A denial is remembered no longer either.
	silenceNs = 1_000_000_000
)

// Source is the source of units of a rule of scope cluster: units that this proxy has
// leased from the quota service, in a table from which all its workers take.
//
// Check goes down this list to the first line that holds. Take, Refund and Usage follow
// Subject.Quota.From, the place that has the units:
//
//	the request has waited for a grant, and has one   checkGrant   HasRoom (OwnGrant), or Denied
//	the cost is 0                                     forNothing   HasRoom, or Denied by a limit of 0
//	the key's lease has enough units                  checkLease   HasRoom (LeaseTable)
//	the key's lease has a denial that still holds     checkLease   Denied
//	the service is silent, or the wait was in vain    alone        as OwnShare has room, or Silent
//	the service may have more                         tooFew       Pending: it waits; or Contended
type Source struct {
	common
	table *state.Leases

	leases bool // units may be kept for later requests
	refill state.Refill
	idleNs int64 // after which units that nobody takes go back
}

// layoutOf is a hash of what makes windows the same; see limit.Window.Same.
func layoutOf(windows []limit.Window) uint64 {
	var b []byte
	for i := range windows {
		w := &windows[i]
		b = append(b, byte(w.Algorithm), w.Jitter)
		b = binary.LittleEndian.AppendUint64(b, uint64(w.PeriodNs))
		b = binary.LittleEndian.AppendUint64(b, uint64(w.OffsetNs))
	}
	lo, _ := state.StableHash(b)
	return lo
}

// refillOf is when the rule asks for units ahead.
func refillOf(windows []limit.Window) state.Refill {
	horizonNs := quota.HorizonNs(windows)
	return state.Refill{RateNs: max(horizonNs/2, 1), LeadNs: min(horizonNs/2, maxRefillNs)}
}

// Check decides by the grant that the request has waited for, else by the key's lease.
func (src *Source) Check(s *decide.Subject, wallNs int64) decide.Outcome {
	if s.Quota.Lease == nil {
		s.Quota.Lease = new(state.LeaseEntry)
	}
	src.begin(s, wallNs)
	e := s.Quota.Lease
	e.NowNs = s.Quota.NowNs
	if g := &s.Quota.Grant; g.Decides(s.Cost, e.NowNs) {
		return src.checkGrant(s, g, wallNs)
	}
	status := src.table.Read(e, src.keyOf(s), wallNs, e.NowNs)
	if status == state.OK && e.Ahead { // the worker may have stood still since it read its clock
		status = src.table.Reread(e, wallNs, src.worker.clock.Monotonic())
	}
	if status != state.OK {
		return decide.Failed
	}
	s.Known = src.hasStandings(e)
	return src.checkLease(s, wallNs)
}

// Recheck is Check.
func (src *Source) Recheck(s *decide.Subject, wallNs int64) decide.Outcome {
	return src.Check(s, wallNs)
}

// checkGrant decides by the service's grant.
func (src *Source) checkGrant(s *decide.Subject, g *decide.Grant, wallNs int64) decide.Outcome {
	e := s.Quota.Lease
	e.WrittenNs, e.Standings = g.NowNs, append(e.Standings[:0], g.Standings...)
	s.Known = src.hasStandings(e)
	if g.Denied {
		s.PassNs = passNs(wallNs, g.WaitNs)
		return decide.Denied
	}
	s.Quota.From = decide.OwnGrant
	return decide.HasRoom
}

// checkLease decides by the key's lease.
func (src *Source) checkLease(s *decide.Subject, wallNs int64) decide.Outcome {
	e, need := s.Quota.Lease, s.Units()
	switch {
	case s.Cost == 0:
		return forNothing(s)
	case src.leases && e.Left(e.NowNs) >= need:
		s.Quota.From = decide.LeaseTable
		return decide.HasRoom
	case src.leases && e.DeniedNs > e.NowNs && need >= e.DeniedCost:
		s.PassNs = limit.Never
		if e.PassNs != limit.Never {
			s.PassNs = passNs(wallNs, e.PassNs-e.NowNs)
		}
		return decide.Denied
	}
	next := src.worker.tooFew(s)
	if src.isSilent(e) || next == decide.Silent {
		return src.alone(s, wallNs, decide.Silent)
	}
	return next
}

// isSilent reports whether the service answers nothing, or nothing about this key.
func (src *Source) isSilent(e *state.LeaseEntry) bool {
	return e.SilentNs > e.NowNs || src.worker.Silent
}

// hasStandings reports whether the service has said how the key stands.
func (src *Source) hasStandings(e *state.LeaseEntry) bool {
	return e.WrittenNs != 0 && len(e.Standings) >= len(src.rule.Subjects.Windows)
}

// keyOf is what the subject's lease is found by: its key and, if requests give limits, these.
// So units that were granted under one limit are not spent under another, and no
// denial is remembered under another.
func (src *Source) keyOf(s *decide.Subject) []byte {
	if !src.rule.Subjects.IsRequested(&s.Subject) {
		return s.Key.Bytes
	}
	src.key = appendLimits(append(src.key[:0], s.Key.Bytes...), s)
	return src.key
}

// part is what is asked for the subject's key.
func (src *Source) part(s *decide.Subject, cost uint32) Part {
	e, d := s.Quota.Lease, src.definition(s)
	p := Part{definition: d, subject: s, source: src, leaseKey: e.Key(), Wire: quota.Part{
		Definition: d.ID, Key: src.rule.Subjects.QuotaKey(&s.Subject), Cost: cost, Waiting: cost,
		Spent: e.Uncharged, Shadow: s.Shadow,
	}}
	if src.leases {
		rate := e.Rate.Over(e.NowNs, src.refill.RateNs)
		p.Wire.Ahead = limit.AddSaturating(rate, rate)
	}
	return p
}

// Take takes the cost from where Check has found it.
func (src *Source) Take(s *decide.Subject) decide.Outcome {
	switch s.Quota.From {
	case decide.OwnGrant:
		s.Quota.Grant.Units -= s.Cost
		return decide.Taken
	case decide.LeaseTable:
		return src.takeLease(s)
	case decide.OwnShare:
		return src.takeShare(s)
	default:
		return decide.Failed
	}
}

// takeLease takes units that the proxy has leased, and asks ahead if few are left.
func (src *Source) takeLease(s *decide.Subject) decide.Outcome {
	e, w := s.Quota.Lease, src.worker
	s.Quota.Taken = e.Take(e.NowNs, s.Cost)
	e.Rate.Spend(e.NowNs, src.refill.RateNs, s.Cost)
	due := e.AskedNs <= e.NowNs && !w.Silent && src.refill.IsDue(e.Left(e.NowNs), e.Rate.Over(e.NowNs, src.refill.RateNs))
	if due {
		e.AskedNs = e.NowNs + w.TimeoutNs
	}
	taken := src.write(e)
	if due && taken == decide.Taken {
		w.refills = append(w.refills, src.part(s, 0))
	}
	return taken
}

// takeShare takes the cost of the proxy's share. The lease's record says first that the service
// has to charge it: what the service never hears of would be admitted twice.
func (src *Source) takeShare(s *decide.Subject) decide.Outcome {
	e := s.Quota.Lease
	e.Uncharged = limit.AddSaturating(e.Uncharged, s.Cost)
	if written := src.write(e); written != decide.Taken {
		return written
	}
	return src.local.Take(s)
}

// write stores a lease.
func (src *Source) write(e *state.LeaseEntry) decide.Outcome {
	switch src.table.Write(e) {
	case state.OK:
		src.rule.Metrics.LeaseLost += uint64(e.Lost)
		return decide.Taken
	case state.Mismatch:
		return decide.Raced
	default:
		return decide.Failed
	}
}

// Refund puts the units back to where they were taken from.
func (src *Source) Refund(s *decide.Subject, wallNs int64) bool {
	switch s.Quota.From {
	case decide.OwnGrant:
		s.Quota.Grant.Units += s.Cost
		return true
	case decide.LeaseTable:
		return src.refundLease(s, wallNs)
	case decide.OwnShare:
		return src.local.Refund(s, wallNs)
	default:
		return false
	}
}

// refundLease puts units back into the lease. If it fails the units stay counted.
func (src *Source) refundLease(s *decide.Subject, wallNs int64) bool {
	e, back := s.Quota.Lease, s.Quota.Taken
	back.Units = s.Cost
	for range state.MaxRetries {
		if src.table.Reread(e, wallNs, e.NowNs) != state.OK || e.WrittenNs == 0 {
			return false
		}
		if _, ok := e.Put(e.NowNs, back); !ok {
			return false
		}
		if written := src.write(e); written != decide.Raced {
			return written == decide.Taken
		}
	}
	return false
}

// Usage is how the key stands over all proxies, by the last grant.
func (src *Source) Usage(s *decide.Subject, window int) *limit.Usage {
	if s.Quota.From == decide.OwnShare {
		return src.local.Usage(s, window)
	}
	e := s.Quota.Lease
	used, resetNs := uint32(0), int64(0)
	if st := &e.Standings[window]; st.ResetNs > e.NowNs {
		used, resetNs = st.Used, st.ResetNs-e.NowNs
	}
	src.usage = s.Limits.Windows[window].Standing(s.Record.Now, used, resetNs, src.usage.Log)
	return &src.usage
}

// Operate returns how many units of the key this proxy may still spend. While the service is
// silent, the subject has what this proxy has counted by itself.
func (src *Source) Operate(s *decide.Subject, _ string, _ int, _ uint32, wallNs int64) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	e := new(state.LeaseEntry)
	s.Quota.Lease, e.NowNs = e, src.worker.clock.Monotonic()
	if src.table.Read(e, src.keyOf(s), wallNs, e.NowNs) != state.OK {
		return 0, local.ErrStore
	}
	s.Quota.From = decide.Nowhere
	if src.isSilent(e) && src.local != nil && src.checkShare(s, wallNs) == decide.Failed {
		return 0, local.ErrStore
	}
	return int64(e.Left(e.NowNs)) + src.leftOfOthers(s, wallNs), nil
}

// leftOfOthers is how many units of the subject's key may be spent under other limits, which
// other requests give, as far as this worker keeps these.
func (src *Source) leftOfOthers(s *decide.Subject, wallNs int64) (units int64) {
	own := string(appendLimits(nil, s))
	for requested := range src.worker.requested {
		limits, ofRule := requested.limitsOf(src.first)
		if !ofRule || limits == own {
			continue
		}
		e := &src.worker.entry
		key := append(append([]byte(nil), s.Key.Bytes...), limits...)
		if src.table.Read(e, key, wallNs, src.worker.clock.Monotonic()) == state.OK {
			units += int64(e.Left(e.NowNs))
		}
	}
	return units
}

// Tables are the table of leases, and what counts in the place of a silent service: keys
// that are among the leases.
func (src *Source) Tables() []decide.Table {
	t := src.table.Table()
	own := decide.Table{Table: t, Rule: t.Windows(), Entry: &src.worker.visitor}
	return append([]decide.Table{own}, src.common.Tables()...)
}

// LeaseOf is what this proxy knew of the subject's key when it was checked; nil for a rule of scope
// proxy.
func LeaseOf(s *decide.Subject) *result.Lease {
	if s.Unlimited {
		return nil
	}
	switch src := s.Rule.Source.(type) {
	case *HoldSource:
		return src.lease(s)
	case *Source:
		return src.lease(s)
	default:
		return nil
	}
}

func (src *Source) lease(s *decide.Subject) *result.Lease {
	known, e := &result.Lease{}, s.Quota.Lease
	if e == nil { // it was not checked
		return known
	}
	for i := range e.Grants {
		if g := &e.Grants[i]; g.Units > 0 && g.EndNs > e.NowNs {
			known.EndsNs = max(known.EndsNs, g.EndNs-e.NowNs)
		}
	}
	known.Units = e.Left(e.NowNs)
	if src.isSilent(e) {
		known.Silent = string(src.rule.Policy.OnUnavailable)
	}
	return known
}
