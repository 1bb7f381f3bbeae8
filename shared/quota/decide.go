package quota

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// What is left of a key, what a part is granted of that, and how the key stands.

// leastAhead is how many units must be left for some to be granted ahead.
const leastAhead = 16

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
// may be spent before it has them: so its gain is taken away from what remains then. For example, with a gain of
// 10 tokens a second:
//
//	NowNs ───── 1 s, gains 10 ─────▶ SpendBy
//	4 are left                       14 remain
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
	u, spendBy := s.Usages[i], max(end, s.bucketAsOfNs[i])
	w.Roll(&u, s.bucketAsOfNs[i], spendBy)
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
	t = s.terms(lease)
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
// at its SpendBy. In the picture above leftIn, a cost of 6 needs 6 + 10 tokens at SpendBy. 2 are missing,
// so it passes in 200 ms.
func (s *State) bucketPass(i int, cost uint32, pass int64) int64 {
	w, spendBy := &s.Windows[i], s.bucketAsOfNs[i]
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
