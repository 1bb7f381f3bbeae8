package quota

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// How units of a key are leased: for how long, how many ahead of need, and what is left. The
// first functions need only the windows: the proxy times its leases by them too. Those of State
// are the service's.

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	maxLease = 10 * second
	// shortLease is how long a lease lasts once less than a quarter of the limit is
	// left. A log or bucket whose leases would be shorter leases nothing.
	shortLease = 100 * ms
	// leastAhead is how many units must be left for some to be granted ahead.
	leastAhead = 16
	// scarce makes a quarter: if less than a quarter of a limit is left, leases are short, and at
	// most a quarter of what is left is granted ahead.
	scarce = 4
	// logShare makes a hundredth: units of a log or bucket are leased for at most that
	// part of its span.
	logShare = 100
)

// SlackNs is ε: how much later than a decision was made the store may apply it.
func SlackNs(windows []limit.Window) int64 { return min(5*ms, Shortest(windows)/20) }

// HorizonNs is how far ahead a proxy should ask: for what it expects to need in
// that time.
func HorizonNs(windows []limit.Window) int64 {
	h := min(maxLease, Shortest(windows)/10)
	for i := range windows {
		if forgetsByUnit(&windows[i]) {
			h = min(h, span(&windows[i])/logShare)
		}
	}
	return h
}

// IdleNs is how long a proxy keeps a lease without a hit before it returns the rest.
func IdleNs(windows []limit.Window) int64 { return min(maxLease, Shortest(windows)/20) }

// Shortest returns the shortest period.
func Shortest(windows []limit.Window) int64 {
	shortest := limit.MaxPeriodNs
	for i := range windows {
		shortest = min(shortest, windows[i].PeriodNs)
	}
	return shortest
}

// forgetsByUnit reports whether the window forgets units one after the other. Units
// that are leased from it may be spent at any time until the lease ends, so they
// count as spent then: see State.SpendBy.
func forgetsByUnit(w *limit.Window) bool {
	return w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
}

// span is how long the window remembers units.
func span(w *limit.Window) int64 {
	switch {
	case w.Algorithm != limit.TokenBucket:
		return w.PeriodNs
	case w.Unlimited:
		return limit.MaxPeriodNs
	}
	return w.Fill()
}

// MostWaitNs is the longest wait for units, which is also the longest time until all units are
// forgotten. It is the longest of the windows' times:
//   - A fixed window or a log takes its period, a sliding counter two.
//   - A bucket takes twice the time in which it fills, because it owes no more than it holds.
//   - A log or bucket counts units when their lease ends, so it takes the lease more.
//   - If costs are charged after the answer, windows may owe: see owed. Then it is as long as the
//     longest debt takes.
//   - A block may have begun by a policy whose blocks are longer.
func MostWaitNs(windows []limit.Window) (most int64) {
	for i := range windows {
		switch w := &windows[i]; {
		case w.Algorithm == limit.Block:
			most = max(most, limit.MaxBlockNs)
		case w.Algorithm == limit.Concurrency && i > 0: // alone it charges nothing: no window owes
			most = max(most, limit.MaxPeriodNs)
		default:
			most = max(most, forgottenNs(w))
		}
	}
	return most
}

// forgottenNs is how long after units were asked for a window has forgotten them, if it owes nothing.
func forgottenNs(w *limit.Window) int64 {
	n := span(w)
	if w.Algorithm == limit.SlidingWindowCounter || w.Algorithm == limit.TokenBucket {
		n *= 2
	}
	if forgetsByUnit(w) {
		n += LeaseNs(w)
	}
	return n
}

// Leases reports whether units of the window may be leased.
func Leases(w *limit.Window) bool { return !forgetsByUnit(w) || LeaseNs(w) >= shortLease }

// LeaseNs is how long units of the window may be leased at most.
func LeaseNs(w *limit.Window) int64 {
	if forgetsByUnit(w) {
		return min(maxLease, span(w)/logShare)
	}
	return min(maxLease, w.PeriodNs)
}

// Terms are the terms on which units of a key are granted.
type Terms struct {
	// EndNs is when units must have been spent: at the end of the first window that
	// counts them, or before. 0 = units are not leased: they count as spent at once.
	EndNs int64
	// AgainNs is set if there are no terms now, because a window is about to end: ask for them
	// again at this instant.
	AgainNs int64
}

// Unleased are the terms of units that count as spent at once.
var Unleased = Terms{}

// Terms returns the terms for leasing.
func (s *State) Terms(lease uint32) Terms {
	if lease == LeaseOff {
		return Unleased
	}
	end, first := s.NowNs+maxLease, s.FirstEndNs()
	for i := range s.Windows {
		w := &s.Windows[i]
		switch {
		case w.Elastic || !Leases(w):
			return Unleased
		case forgetsByUnit(w):
			end = min(end, s.NowNs+LeaseNs(w))
		case !w.Unlimited && uint64(s.leftIn(i, 0))*scarce < uint64(w.Limit):
			end = min(end, s.NowNs+shortLease)
		}
	}
	if first-s.NowNs <= SlackNs(s.Windows) {
		return Terms{AgainNs: first}
	}
	return Terms{EndNs: min(end, first)}
}

// FirstEndNs is when the first of the windows ends that count units now.
func (s *State) FirstEndNs() int64 {
	first := int64(1<<63 - 1)
	for i := range s.Windows {
		if w := &s.Windows[i]; !forgetsByUnit(w) && w.Algorithm != limit.Block {
			first = min(first, s.endOf(i))
		}
	}
	return first
}

// endOf is when window i ends, fixed or a counter's period, if it counts units now.
func (s *State) endOf(i int) int64 {
	w, u := &s.Windows[i], &s.Usages[i]
	switch {
	case w.Algorithm != limit.FixedWindowPerKey:
		return w.End(s.NowNs)
	case u.EndNs == 0 || u.Slides:
		return s.NowNs + w.PeriodNs
	}
	return u.EndNs
}

// ValidNs returns how long units may be spent, counted from the moment before they were asked for.
// No unit is spent in a later window than it was counted in, even if it is not leased: the worker
// asked before the store applies the decision, and the store applies it at most SlackNs after
// NowNs. An answer without delay is always in time.
func (s *State) ValidNs(t Terms) int64 {
	if t.EndNs == 0 {
		left := max(s.FirstEndNs()-s.NowNs-SlackNs(s.Windows), 1)
		return min(shortLease, Shortest(s.Windows)/10, left)
	}
	return t.EndNs - s.NowNs - SlackNs(s.Windows)
}

// What is left depends on two things: until which instant the units may be spent, and which held
// units leave them less room.
//
//	function          units are spent  beside         asked by
//	leftIn(i, end)    until end        nothing        the others; it is of one window
//	Left(t)           until t.EndNs    nothing        denials, operations on counters
//	leftToLease(t)    until t.EndNs    what all hold  Decide: it grants a lease
//	leftToHold()      at once          what all hold  Note: it grants units to hold (in hold.go)

// Left returns how many units all windows have left for spending until t's end.
func (s *State) Left(t Terms) uint32 {
	left := uint32(saturated)
	for i := range s.Windows {
		left = min(left, s.leftIn(i, t.EndNs))
	}
	return left
}

// leftToLease is Left less what workers hold: some may have a policy by which units of this key
// are held.
func (s *State) leftToLease(t Terms) uint32 {
	left := s.Left(t)
	return left - min(left, s.Holders.Held())
}

// leftIn returns what a window has left if units may be spent until the instant end. A bucket
// counts them at end, or at its SpendBy if that is later. Until then it gains tokens, but the units
// may be spent before it has them: so its gain is taken away from what remains then.
func (s *State) leftIn(i int, end int64) uint32 {
	w := &s.Windows[i]
	switch {
	case w.Unlimited, w.Algorithm == limit.Block && s.Usages[i].EndNs == 0:
		return saturated
	case w.Algorithm == limit.Block:
		return 0
	case w.Algorithm != limit.TokenBucket:
		return w.Remaining(&s.Usages[i], s.NowNs)
	}
	u, spendBy := s.Usages[i], max(end, s.SpendByNs[i])
	w.Roll(&u, s.SpendByNs[i], spendBy)
	remaining, gain := w.Remaining(&u, spendBy), gained(w, spendBy-s.NowNs)
	return remaining - min(remaining, gain)
}

// gained is how many tokens a bucket gains in ns, rounded up.
func gained(w *limit.Window, ns int64) uint32 {
	hi, lo := bits.Mul64(uint64(w.Limit), uint64(ns))
	lo, carry := bits.Add64(lo, uint64(w.PeriodNs-1), 0)
	hi += carry
	if hi >= uint64(w.PeriodNs) {
		return saturated
	}
	n, _ := bits.Div64(hi, lo, uint64(w.PeriodNs))
	return uint32(min(n, saturated))
}

// Decision is what Decide finds.
type Decision uint8

// The decisions.
const (
	Passes Decision = iota // the part's cost passes: its units may be counted by the terms
	TooFew                 // too few units are left for it, or the key is blocked
	NotYet                 // nothing is decided: a window is about to end, decide again at Terms.AgainNs
)

// Decide decides what a part is granted: the units that wait, as far as they are left, and ahead of
// need at most a quarter of the rest. It counts nothing. If the cost does not fit with a lease and
// fits without one, the units are granted without a lease.
//
// For example, 3 units of a limit of 1000 a minute are asked for, and 600 ahead, 40 s before the
// minute ends:
//
//	left  granted                   may be spent
//	400   3 + 397/4 = 102           for 10 s, less SlackNs
//	200   3 + 197/4 = 52            for 100 ms, less SlackNs, because less than a quarter is left
//	15    3, because 15 are few     for 100 ms, less SlackNs
//	2     2, or none if the first request costs 3
func (s *State) Decide(lease uint32, p *Part) (d Decision, units uint32, t Terms) {
	t = s.Terms(lease)
	if t.AgainNs != 0 {
		return NotYet, 0, t
	}
	left := s.leftToLease(t)
	if left < p.Cost && t.EndNs != 0 {
		t = Unleased
		left = s.leftToLease(t)
	}
	if left < p.Cost || s.Blocked() {
		return TooFew, 0, t
	}
	units = min(left, max(p.Waiting, p.Cost))
	if t.EndNs == 0 || left < leastAhead {
		return Passes, units, t
	}
	ahead := min(s.aheadUntil(t.EndNs, p.Ahead), (left-units)/scarce)
	if lease != LeaseAuto {
		ahead = min(ahead, lease)
	}
	return Passes, units + ahead, t
}

// aheadUntil is what a proxy expects to need until a lease ends. The proxy says what it needs in
// HorizonNs: of a lease that ends much sooner, because a window does, it needs less.
func (s *State) aheadUntil(endNs int64, ahead uint32) uint32 {
	rest, horizon := endNs-s.NowNs, HorizonNs(s.Windows)
	if rest >= min(shortLease, horizon) {
		return ahead
	}
	return uint32(uint64(ahead) * uint64(rest) / uint64(horizon))
}

// WaitNs returns how long a denied cost must wait if nobody else asks.
func (s *State) WaitNs(cost uint32) int64 {
	wait := int64(0)
	for i := range s.Windows {
		w := &s.Windows[i]
		if w.Unlimited {
			continue
		}
		pass := w.Check(s.owed(i), s.asOf(i), cost)
		if pass == limit.Never {
			return limit.Never
		}
		if w.Algorithm == limit.TokenBucket {
			pass = s.bucketPass(i, cost, pass)
		}
		wait = max(wait, pass-s.NowNs)
	}
	return wait
}

// bucketPass is when a bucket's cost passes, given when it would pass if the bucket stood as it will
// at its SpendBy. For example, a bucket gains 10 tokens a second, has 14 at its SpendBy in a second,
// and the cost is 6. The 10 tokens that it gains until then do not count now: see leftIn. So the
// cost needs 16 at SpendBy. 2 are missing, so it passes in 200 ms.
func (s *State) bucketPass(i int, cost uint32, pass int64) int64 {
	w, spendBy := &s.Windows[i], s.SpendByNs[i]
	gain := gained(w, spendBy-s.NowNs)
	if gain > w.Burst-cost { // cost ≤ Burst: Check was not Never
		return pass
	}
	return s.NowNs + w.Check(&s.Usages[i], spendBy, cost+gain) - spendBy
}

// StandingOf returns how a window stands.
func (s *State) StandingOf(i int) Standing {
	w := &s.Windows[i]
	used := w.Count(&s.Usages[i], s.asOf(i))
	if w.Algorithm == limit.TokenBucket && !w.Unlimited {
		used = max(used, w.Burst-s.leftIn(i, 0))
	}
	return Standing{Used: used, ResetNs: max(w.Reset(s.owed(i), s.asOf(i))-s.NowNs, 0)}
}
