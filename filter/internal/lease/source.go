package lease

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	maxRefillNs = 100_000_000
	// silenceNs is for how long a key is decided without the service after its
	// store has failed for this key. A denial is remembered no longer either.
	silenceNs = 1_000_000_000
)

// Source is the source of units of a rule of scope cluster: units that this proxy has
// leased from the quota service, in a table from which all its workers take. A request
// that has waited for an answer has units of its own first.
type Source struct {
	asking
	table *state.Leases

	leases bool // units may be kept for later requests
	refill state.Refill
	idleNs int64 // after which units that nobody takes go back

	taken state.Grant // of the subject that was checked last, from leaseTable: the grant that the units were of
	usage limit.Usage
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

// Check decides by the answer that the request has waited for, else by the key's lease.
func (c *Source) Check(s *decide.Subject, now int64) decide.Outcome {
	if s.Lease == nil {
		s.Lease = new(state.LeaseEntry)
	}
	e := s.Lease
	s.Limits.Windows = s.Windows
	s.Record.Now, s.Record.Rebased, s.Record.FromFloor = now, false, false
	e.NowNs = c.worker.host.Monotonic()
	c.from, c.got = nowhere, c.worker.got(s)
	if g := c.got; g.suffices(s.Cost, e.NowNs) {
		e.WrittenNs, e.Standings = g.grant.nowNs, append(e.Standings[:0], g.grant.standings...)
		if s.Known, s.PassNs = c.knows(e), now; g.grant.Denied {
			s.PassNs = passNs(now, g.grant.WaitNs, g.grant.WaitNs)
			return decide.Denied
		}
		c.from = ownGrant
		return decide.Granted
	}
	status := c.table.Read(e, c.keyOf(s), now, e.NowNs)
	if status == state.OK && e.Ahead { // by a newer time it can be read
		status = c.table.Reread(e, now, c.worker.host.Monotonic())
	}
	if s.Known = status == state.OK && c.knows(e); status != state.OK {
		return decide.Failed
	}
	return c.checkLease(s, now)
}

// Held is 0: no unit of a lease is held until an answer.
func (c *Source) Held(*decide.Subject) uint32 { return 0 }

// Settle has nothing to settle.
func (c *Source) Settle(*decide.Hold, uint32, int64) (lapsed, ok bool) { return false, true }

// Renew has nothing to renew.
func (c *Source) Renew(*decide.Hold, int64, int64) decide.Renewal { return decide.NotDue }

// Recheck is Check.
func (c *Source) Recheck(s *decide.Subject, now int64) decide.Outcome { return c.Check(s, now) }

// checkLease decides by the key's lease.
func (c *Source) checkLease(s *decide.Subject, now int64) decide.Outcome {
	l, nowNs, w := &s.Lease.Lease, s.Lease.NowNs, c.worker
	switch need := s.Units(); {
	case s.Cost == 0:
		return forNothing(s, now)
	case !c.leases:
	case l.Left(nowNs) >= need:
		c.from, s.PassNs = leaseTable, now
		return decide.Granted
	case l.DeniedNs > nowNs && need >= l.DeniedCost:
		s.PassNs = passNs(now, l.PassNs-nowNs, l.PassNs)
		return decide.Denied
	}
	short := w.short(s)
	if c.isSilent(s.Lease) || short == decide.Silent {
		return c.alone(s, now, decide.Silent)
	}
	return short
}

// isSilent reports whether the service answers nothing, or nothing about this key.
func (c *Source) isSilent(e *state.LeaseEntry) bool {
	return e.SilentNs > e.NowNs || c.worker.Silent
}

// passNs is when a wait from now on is over; never where said says so.
func passNs(now, waitNs, said int64) int64 {
	if said == limit.Never {
		return limit.Never
	}
	return now + max(waitNs, 1)
}

// knows reports whether the key's usage is known.
func (c *Source) knows(e *state.LeaseEntry) bool {
	return e.WrittenNs != 0 && len(e.Standings) >= len(c.rule.Subjects.Windows)
}

// Take takes the cost from where Check has found it.
func (c *Source) Take(s *decide.Subject) decide.Outcome {
	e := s.Lease
	switch c.from {
	case ownGrant:
		c.got.units -= s.Cost
		return decide.Taken
	case localTable: // the service hears of it first: what it never hears of would be admitted twice
		e.Uncharged = limit.AddSaturating(e.Uncharged, s.Cost)
		if noted := c.write(e); noted != decide.Taken {
			return noted
		}
		return c.local.Take(s)
	case nowhere:
		return decide.Failed
	default: // from the table
	}
	c.taken = e.Take(e.NowNs, s.Cost)
	e.Rate.Spend(e.NowNs, c.refill.RateNs, s.Cost)
	due := e.AskedNs <= e.NowNs && !c.worker.Silent && c.refill.IsDue(e.Left(e.NowNs), e.Rate.Over(e.NowNs, c.refill.RateNs))
	if due {
		e.AskedNs = e.NowNs + c.worker.TimeoutNs
	}
	taken := c.write(e)
	if due && taken == decide.Taken {
		c.worker.ahead = append(c.worker.ahead, c.part(s, 0))
	}
	return taken
}

// write stores a lease.
func (c *Source) write(e *state.LeaseEntry) decide.Outcome {
	switch c.table.Write(e) {
	case state.OK:
		c.rule.Metrics.LeaseLost += uint64(e.Lost)
		return decide.Taken
	case state.Mismatch:
		return decide.Raced
	default:
		return decide.Failed
	}
}

// Refund puts the units back to where they were taken from.
func (c *Source) Refund(s *decide.Subject, now int64) bool {
	switch c.from {
	case ownGrant:
		c.got.units += s.Cost
		return true
	case localTable:
		return c.local.Refund(s, now)
	case nowhere:
		return false
	default: // from the table
	}
	e, back := s.Lease, c.taken
	back.Units = s.Cost
	for range state.MaxRetries {
		if c.table.Reread(e, now, e.NowNs) != state.OK || e.WrittenNs == 0 {
			return false // the units stay counted
		}
		if _, ok := e.Put(e.NowNs, back); !ok {
			return false
		}
		if written := c.write(e); written != decide.Raced {
			return written == decide.Taken
		}
	}
	return false
}

// Usage says how the key stands over all proxies, by the last answer.
func (c *Source) Usage(s *decide.Subject, window int) *limit.Usage {
	if c.from == localTable {
		return c.local.Usage(s, window)
	}
	used, resetNs := uint32(0), int64(0)
	if st := &s.Lease.Standings[window]; st.ResetNs > s.Lease.NowNs {
		used, resetNs = st.Used, st.ResetNs-s.Lease.NowNs
	}
	c.usage = s.Limits.Windows[window].Standing(s.Record.Now, used, resetNs, c.usage.Log)
	return &c.usage
}
