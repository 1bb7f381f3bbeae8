package lease

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
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
	worker *Worker
	rule   *decide.Rule
	table  *state.Leases
	local  *local.Source // counts while the service is silent, if on_unavailable is local
	first  uint32        // the definition of the rule's own limits; those of its overrides follow

	leases bool // units may be kept for later requests
	refill state.Refill
	idleNs int64 // after which units that nobody takes go back
}

// account is what the source remembers of a subject.
type account struct {
	from   from
	nowNs  int64 // monotonic
	answer answer
	part   int // of the ask that it waits for
	entry  state.LeaseEntry
	of     state.Grant // the grant that the units were of
	refill bool        // this hit is the one that asks for the next units

	shares    []limit.Window // this proxy's share of the limits
	standings [state.MaxWindows]limit.Usage
}

// from says where a subject takes its units.
type from uint8

const (
	nowhere from = iota
	ownGrant
	leaseTable
	localTable
)

// answer is what the service has said to a request that has waited.
type answer struct {
	denied bool
	waitNs int64  // of a denial
	units  uint32 // for this request alone
	of     *grant // that the units are of, nil if there are none
}

// accountOf returns what the source remembers of the subject.
func accountOf(s *decide.Subject) *account {
	if a, ok := s.Lease.(*account); ok {
		return a
	}
	a := new(account)
	s.Lease = a
	return a
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

// Check decides by the answer that the request has waited for, else by the key's lease.
func (c *Source) Check(s *decide.Subject, now int64) decide.Outcome {
	a := accountOf(s)
	s.Limits.Windows = s.Windows
	a.from, a.refill, a.nowNs = nowhere, false, c.worker.host.Monotonic()
	s.Record.Now, s.Record.Rebased, s.Record.FromFloor = now, false, false
	switch {
	case a.answer.denied:
		s.Known, s.PassNs = c.knows(a), passNs(now, a.answer.waitNs, a.answer.waitNs)
		return decide.Denied
	case a.answer.of != nil && a.answer.units >= s.Cost && a.nowNs < a.answer.of.endNs:
		a.from, s.Known, s.PassNs = ownGrant, c.knows(a), now
		return decide.Granted
	}
	if c.find(s, a, now) != state.OK {
		s.Known = false
		return decide.Failed
	}
	s.Known = c.knows(a)
	return c.judge(s, a, now)
}

// Recheck is Check.
func (c *Source) Recheck(s *decide.Subject, now int64) decide.Outcome { return c.Check(s, now) }

// judge decides by the key's lease.
func (c *Source) judge(s *decide.Subject, a *account, now int64) decide.Outcome {
	if s.Cost == 0 { // nothing to ask for
		s.PassNs = now
		return decide.Granted
	}
	l := &a.entry.Lease
	if c.leases {
		need := s.Units()
		switch {
		case l.Left(a.nowNs) >= need:
			a.from, s.PassNs = leaseTable, now
			return decide.Granted
		case l.DeniedNs > a.nowNs && need >= l.DeniedCost:
			s.PassNs = passNs(now, l.PassNs-a.nowNs, l.PassNs)
			return decide.Denied
		}
	}
	switch w := c.worker; {
	case l.SilentNs > a.nowNs || w.Silent || w.late:
		return c.alone(s, a, now)
	case w.crowded:
		return decide.Contended
	}
	return decide.Pending
}

// find reads the key's record in the table.
func (c *Source) find(s *decide.Subject, a *account, now int64) state.Status {
	status := c.table.Read(&a.entry, s.Key.Bytes, now, a.nowNs)
	if status == state.OK && a.entry.Ahead { // by a newer time it can be read
		a.nowNs = c.worker.host.Monotonic()
		status = c.table.Reread(&a.entry, now, a.nowNs)
	}
	return status
}

// passNs is when a wait from now on is over; never where said says so.
func passNs(now, waitNs, said int64) int64 {
	if said == limit.Never {
		return limit.Never
	}
	return now + max(waitNs, 1)
}

// knows reports whether the key's usage is known.
func (c *Source) knows(a *account) bool {
	return a.entry.WrittenNs != 0 && len(a.entry.Standings) >= len(c.rule.Subjects.Windows)
}

// alone decides without the service.
func (c *Source) alone(s *decide.Subject, a *account, now int64) decide.Outcome {
	if c.local == nil {
		return decide.Silent
	}
	s.Limits.Windows = c.share(s, a)
	found := c.local.Check(s, now)
	if found != decide.Failed {
		a.from = localTable
		c.rule.Metrics.Unavailable++
	}
	return found
}

// share is what one proxy may admit without the service: the limits, divided by
// the number of proxies.
func (c *Source) share(s *decide.Subject, a *account) []limit.Window {
	proxies := max(c.worker.tables.Proxies(), 1)
	a.shares = append(a.shares[:0], c.rule.Subjects.Limits(s.Override)...)
	for i := range a.shares {
		w := &a.shares[i]
		if w.Limit > 0 {
			w.Limit = max(1, w.Limit/proxies)
		}
		if w.Burst > 0 {
			w.Burst = max(1, w.Burst/proxies)
		}
	}
	return a.shares
}

// Take takes the cost from where Check has found it.
func (c *Source) Take(s *decide.Subject) decide.Outcome {
	a := accountOf(s)
	switch a.from {
	case ownGrant:
		a.answer.units -= s.Cost
		return decide.Taken
	case localTable: // the service hears of it first: what it never hears of would be admitted twice
		a.entry.Uncharged = limit.AddSaturating(a.entry.Uncharged, s.Cost)
		if noted := c.write(&a.entry); noted != decide.Taken {
			return noted
		}
		return c.local.Take(s)
	case nowhere:
		return decide.Failed
	default: // from the table
	}
	l := &a.entry.Lease
	a.of = l.Take(a.nowNs, s.Cost)
	l.Rate.Spent(a.nowNs, c.refill.RateNs, s.Cost)
	due := l.AskedNs <= a.nowNs && !c.worker.Silent && c.refill.IsDue(l.Left(a.nowNs), l.Rate.Over(a.nowNs, c.refill.RateNs))
	if due {
		l.AskedNs = a.nowNs + c.worker.TimeoutNs
	}
	taken := c.write(&a.entry)
	a.refill = due && taken == decide.Taken
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
	a := accountOf(s)
	switch a.from {
	case ownGrant:
		a.answer.units += s.Cost
		return true
	case localTable:
		return c.local.Refund(s, now)
	case nowhere:
		return false
	default: // from the table
	}
	back := a.of
	back.Units = s.Cost
	for range state.MaxRetries {
		if c.table.Reread(&a.entry, now, a.nowNs) != state.OK || a.entry.WrittenNs == 0 {
			return false // the units stay counted
		}
		if _, ok := a.entry.Put(a.nowNs, back); !ok {
			return false
		}
		if written := c.write(&a.entry); written != decide.Raced {
			return written == decide.Taken
		}
	}
	return false
}

// Persist does nothing: a lease of another epoch of the clock is dropped where it is read.
func (c *Source) Persist(*decide.Subject) {}

// Usage says how the key stands over all proxies, by the last answer.
func (c *Source) Usage(s *decide.Subject, window int) *limit.Usage {
	a := accountOf(s)
	if a.from == localTable {
		return c.local.Usage(s, window)
	}
	used, resetNs := uint32(0), int64(0)
	if st := &a.entry.Standings[window]; st.ResetNs > a.nowNs {
		used, resetNs = st.Used, st.ResetNs-a.nowNs
	}
	u := &a.standings[window]
	*u = s.Limits.Windows[window].Standing(s.Record.Now, used, resetNs, u.Log)
	return u
}

// refillOf is when the rule asks for units ahead.
func refillOf(windows []limit.Window) state.Refill {
	horizonNs := quota.HorizonNs(windows)
	return state.Refill{RateNs: max(horizonNs/2, 1), LeadNs: min(horizonNs/2, maxRefillNs)}
}
