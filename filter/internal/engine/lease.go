package engine

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// leases is the source of units of a rule of scope cluster: units that this proxy
// has leased from the quota service. Right after an answer they are in the hand of
// this worker; what it does not need goes into the lease table, where all workers
// take from it.
//
// Its law: a unit is spent once, and before its lease ends by the monotonic clock.
type leases struct {
	engine *Engine
	rule   *rule
	table  *state.Leases
	local  *records // counts while the service is silent, if on_unavailable is local
	first  uint32   // the definition of the rule's own limits; those of its overrides follow

	refill state.Refill
	idleNs int64 // after which units that nobody takes go back
}

const (
	maxRefillNs = 100_000_000
	// silenceNs is for how long a key is decided without the service after its
	// store has failed for this key. A denial is remembered no longer either.
	silenceNs = 1_000_000_000
)

// leased is what an attempt needs for units that are leased.
type leased struct {
	from   leasedFrom
	nowNs  int64 // monotonic
	hand   *hand // nil without an answer for the key
	entry  state.LeaseEntry
	of     state.Held // the grant that the units were of
	refill bool       // this hit is the one that asks for the next units

	standings [state.MaxWindows]limit.Usage // memory for usage
}

// leasedFrom says where an attempt takes its units.
type leasedFrom uint8

const (
	fromNowhere leasedFrom = iota
	fromHand
	fromTable
	fromLocal
)

// lease gives the rules of scope cluster their source of units, when the rules have
// their places.
func (e *Engine) lease() {
	for i := range e.rules {
		if r := &e.rules[i]; r.policy.Scope == policy.ScopeCluster && len(r.subjects.Windows) > 0 {
			r.leases = e.newLeases(r)
			r.units, r.counted = r.leases, r.leases.table.Table()
		}
	}
}

func (e *Engine) newLeases(r *rule) *leases {
	p := r.policy
	l := &leases{engine: e, rule: r, first: uint32(len(e.definitions))}
	horizonNs := quota.HorizonNs(r.subjects.Windows)
	l.refill = state.Refill{RateNs: max(horizonNs/2, 1), LeadNs: min(horizonNs/2, maxRefillNs)}
	l.idleNs = quota.IdleNs(r.subjects.Windows)
	id := r.subjects.Counter("\x00lease", p.Capacity)
	l.table = e.tables.Leases(id, layoutOf(r.subjects.Windows), len(r.subjects.Windows), p.Capacity)
	if p.OnUnavailable == policy.UnavailableLocal {
		l.local = &records{table: r.table}
	}
	for override := -1; override < len(p.Overrides); override++ {
		d := r.subjects.Definition(override)
		d.ID = uint32(len(e.definitions))
		e.definitions = append(e.definitions, d)
	}
	return l
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

// begin prepares an attempt.
func (s *leases) begin(a *Attempt) {
	if a.leased == nil {
		a.leased = new(leased)
	}
	a.leased.from, a.leased.hand, a.leased.refill = fromNowhere, nil, false
}

// keyOf is how the service knows the attempt's key.
func (s *leases) keyOf(a *Attempt) handKey {
	return handKey{s.first + uint32(a.Override+1), s.rule.subjects.QuotaKey(&a.Subject)}
}

func (s *leases) read(a *Attempt, now int64, _ bool) outcome {
	l := a.leased
	l.from, l.nowNs = fromNowhere, s.engine.host.Monotonic()
	a.entry.Now, a.entry.Rebased, a.entry.FromFloor = now, false, false
	if said, ok := s.inHand(a, now); ok {
		return said
	}
	if s.find(a, now) != state.OK {
		return failed
	}
	if a.Cost == 0 { // nothing to ask for
		a.passNs = now
		return granted
	}
	if l.hand != nil && l.hand.Failed {
		return s.alone(a, now)
	}
	if s.rule.policy.Lease != quota.LeaseOff {
		need := a.units()
		switch {
		case l.entry.Left(l.nowNs) >= need:
			l.from, a.passNs = fromTable, now
			return granted
		case l.entry.DeniedNs > l.nowNs && need >= l.entry.DeniedCost:
			a.passNs = instant(now, l.entry.PassNs-l.nowNs)
			if l.entry.PassNs == limit.Never {
				a.passNs = limit.Never
			}
			return short
		}
	}
	q := &s.engine.Quota
	switch {
	case l.entry.SilentNs > l.nowNs || q.Silent || q.Late:
		return s.alone(a, now)
	case q.Crowded:
		return crowded
	}
	return pending
}

// inHand decides by an answer that has just come, as most do, without the table. ok is
// false where it does not suffice.
func (s *leases) inHand(a *Attempt, now int64) (said outcome, ok bool) {
	l := a.leased
	if l.hand = nil; len(s.engine.hands) == 0 {
		return 0, false
	}
	h := s.engine.hands[s.keyOf(a)]
	if l.hand = h; h == nil || h.Failed {
		return 0, false
	}
	l.entry.Lease = state.Lease{Standings: l.entry.Standings[:0]}
	switch {
	case h.Denied && a.Cost >= h.Cost: // rules before this one have hands of their own
		a.passNs = instant(now, h.WaitNs)
		return short, true
	case h.Units >= a.Cost && l.nowNs < h.EndNs:
		l.from, a.passNs = fromHand, now
		return granted, true
	}
	return 0, false
}

// find reads the key's record in the table.
func (s *leases) find(a *Attempt, now int64) state.Status {
	l := a.leased
	status := s.table.Read(&l.entry, a.Key.Bytes, now, l.nowNs)
	if status == state.OK && l.entry.Ahead { // by a newer time it can be read
		l.nowNs = s.engine.host.Monotonic()
		status = s.table.Reread(&l.entry, now, l.nowNs)
	}
	return status
}

// left is how many units of the attempt's key this proxy may still spend.
func (s *leases) left(a *Attempt, now int64) (units uint32, err error) {
	if a.Unlimited {
		return 0, nil
	}
	l := a.leased
	l.nowNs = s.engine.host.Monotonic()
	if s.table.Read(&l.entry, a.Key.Bytes, now, l.nowNs) != state.OK {
		return 0, ErrStore
	}
	return l.entry.Left(l.nowNs), nil
}

// Leased returns how many units of the key this proxy held when the attempt read it,
// and how long until the last of them end. leases is false for a rule that leases
// nothing.
func (a *Attempt) Leased() (units uint32, endsNs int64, leases bool) {
	if a.rule.leases == nil || a.Unlimited {
		return 0, 0, false
	}
	l := a.leased
	for i := range l.entry.Grants {
		if g := &l.entry.Grants[i]; g.Units > 0 && g.EndNs > l.nowNs {
			endsNs = max(endsNs, g.EndNs-l.nowNs)
		}
	}
	return l.entry.Left(l.nowNs), endsNs, true
}

// instant is when a wait from now on is over.
func instant(now, waitNs int64) int64 {
	if waitNs == limit.Never {
		return limit.Never
	}
	return now + max(waitNs, 1)
}

// knows reports whether the attempt's usage is known.
func (s *leases) knows(a *Attempt) bool {
	l, n := a.leased, len(s.rule.subjects.Windows)
	switch {
	case l.from == fromLocal:
		return true
	case l.hand != nil:
		return len(l.hand.Windows) >= n
	}
	return l.entry.WrittenNs != 0 && len(l.entry.Standings) >= n
}

// alone decides without the service.
func (s *leases) alone(a *Attempt, now int64) outcome {
	if s.local == nil {
		return silent
	}
	a.limits.Windows = s.share(a)
	read := s.local.read(a, now, false)
	if read != failed {
		a.leased.from = fromLocal
		s.rule.metrics.Unavailable++
	}
	return read
}

// share is what one proxy may admit without the service: the limits, divided by
// the number of proxies.
func (s *leases) share(a *Attempt) []limit.Window {
	proxies := max(s.engine.tables.Proxies(), 1)
	a.shared = append(a.shared[:0], s.rule.subjects.Limits(a.Override)...)
	for i := range a.shared {
		w := &a.shared[i]
		if w.Limit > 0 {
			w.Limit = max(1, w.Limit/proxies)
		}
		if w.Burst > 0 {
			w.Burst = max(1, w.Burst/proxies)
		}
	}
	return a.shared
}

func (s *leases) take(a *Attempt) outcome {
	l := a.leased
	switch l.from {
	case fromHand:
		l.hand.Units -= a.Cost
		l.hand.spent = limit.AddSaturating(l.hand.spent, a.Cost)
		return granted
	case fromLocal:
		return s.takeLocal(a)
	case fromNowhere:
		return failed
	default: // from the table
	}
	l.of = l.entry.Take(l.nowNs, a.Cost)
	l.entry.Rate.Spent(l.nowNs, s.refill.RateNs, a.Cost)
	if l.refill = s.isDue(l); l.refill {
		l.entry.AskedNs = l.nowNs + s.engine.Quota.TimeoutNs
	}
	taken := s.write(l)
	l.refill = l.refill && taken == granted
	return taken
}

// write stores the attempt's lease.
func (s *leases) write(l *leased) outcome {
	switch s.table.Write(&l.entry) {
	case state.OK:
		s.rule.metrics.LeaseLost += uint64(l.entry.Lost)
		return granted
	case state.Mismatch:
		return raced
	default:
		return failed
	}
}

// takeLocal counts the hit in the local table, and in what the service is to count
// when it can be reached again. The service hears of it first: what it never hears
// of would be admitted twice.
func (s *leases) takeLocal(a *Attempt) outcome {
	l := a.leased
	l.entry.Uncharged = limit.AddSaturating(l.entry.Uncharged, a.Cost)
	if noted := s.write(l); noted != granted {
		return noted
	}
	return s.local.take(a)
}

// isDue reports whether the key's next units should be asked for now.
func (s *leases) isDue(l *leased) bool {
	return l.entry.AskedNs <= l.nowNs && !s.engine.Quota.Silent &&
		s.refill.IsDue(l.entry.Left(l.nowNs), l.entry.Rate.Over(l.nowNs, s.refill.RateNs))
}

func (s *leases) refund(a *Attempt, now int64) bool {
	l := a.leased
	switch l.from {
	case fromHand:
		l.hand.Units += a.Cost
		l.hand.spent -= min(l.hand.spent, a.Cost)
		return true
	case fromLocal:
		return s.local.refund(a, now)
	case fromNowhere:
		return false
	default: // from the table
	}
	back := l.of
	back.Units = a.Cost
	for range maxRetries {
		if s.table.Reread(&l.entry, now, l.nowNs) != state.OK || l.entry.WrittenNs == 0 {
			return false // the units stay counted
		}
		if _, ok := l.entry.Put(l.nowNs, back); !ok {
			return false
		}
		if written := s.write(l); written != raced {
			return written == granted
		}
	}
	return false
}

// usage says how the key stands over all proxies, by the last answer.
func (s *leases) usage(a *Attempt, window int) *limit.Usage {
	if a.leased.from == fromLocal {
		return s.local.usage(a, window)
	}
	l := a.leased
	used, resetNs := uint32(0), int64(0)
	switch {
	case l.hand != nil:
		st := &l.hand.Windows[window]
		used, resetNs = st.Used, st.ResetNs-(l.nowNs-l.hand.NowNs)
	case l.entry.Standings[window].ResetNs > l.nowNs:
		st := &l.entry.Standings[window]
		used, resetNs = st.Used, st.ResetNs-l.nowNs
	}
	l.standings[window] = a.limits.Windows[window].Standing(a.entry.Now, used, resetNs, l.standings[window].Log)
	return &l.standings[window]
}
