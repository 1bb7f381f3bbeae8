package quota

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms

	maxLease = 10 * second
	// shortLease is how long a lease lasts once less than a quarter of the limit is
	// left. A log or bucket whose leases would be shorter leases nothing.
	shortLease = 100 * ms
	// leastAhead is how many units must be left for some to be granted ahead.
	leastAhead = 16
	// scarce is the part of a limit, or of what is left of it, by which units count
	// as few: a quarter.
	scarce = 4
	// logShare is the part of its span for which a log's or bucket's units may be
	// leased: a hundredth.
	logShare = 100
)

// SlackNs is ε: how much later than a decision was made the store may apply it.
func SlackNs(windows []limit.Window) int64 { return min(5*ms, Shortest(windows)/20) }

// HorizonNs is how far ahead a proxy should ask: for what it expects to need in
// that time.
func HorizonNs(windows []limit.Window) int64 {
	h := min(maxLease, Shortest(windows)/10)
	for i := range windows {
		if stamped(&windows[i]) {
			h = min(h, span(&windows[i])/logShare)
		}
	}
	return h
}

// IdleNs is after what time without a hit a proxy should return what it holds.
func IdleNs(windows []limit.Window) int64 { return min(maxLease, Shortest(windows)/20) }

// Shortest returns the shortest period.
func Shortest(windows []limit.Window) int64 {
	shortest := limit.MaxPeriodNs
	for i := range windows {
		shortest = min(shortest, windows[i].PeriodNs)
	}
	return shortest
}

// stamped reports whether the window forgets units one after the other. Units
// that are leased from it may be spent at any time until the lease ends, so they
// count as spent then.
func stamped(w *limit.Window) bool {
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

// MinLeaseNs is the shortest lease of a log's or bucket's units.
const MinLeaseNs = shortLease

// Leases reports whether units of the window may be leased.
func Leases(w *limit.Window) bool { return !stamped(w) || LeaseNs(w) >= MinLeaseNs }

// LeaseNs is how long units of the window may be leased at most.
func LeaseNs(w *limit.Window) int64 {
	if stamped(w) {
		return min(maxLease, span(w)/logShare)
	}
	return min(maxLease, w.PeriodNs)
}

// MostAhead is how many units are granted ahead of need at most where so many are
// left.
func MostAhead(left uint32) uint32 {
	if left < leastAhead {
		return 0
	}
	return left / scarce
}

// State is a key's windows and what they have counted as of NowNs. What logs and
// buckets have counted until StampNs may be spent at any time until then, so a
// bucket's usage is as of StampNs.
type State struct {
	NowNs, StampNs int64
	Windows        []limit.Window // as they hold for the key: see Shifted
	Usages         []limit.Usage
}

// Roll brings s to now, or leaves it where it is already later.
func (s *State) Roll(now int64) {
	now = max(now, s.NowNs)
	stamp := max(now, s.StampNs)
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		if w.Algorithm == limit.TokenBucket {
			w.Roll(u, s.StampNs, stamp)
		} else {
			w.Roll(u, s.NowNs, now)
		}
	}
	s.NowNs, s.StampNs = now, stamp
}

// Shift moves all instants of s by delta nanoseconds.
func (s *State) Shift(delta int64) {
	for i := range s.Windows {
		s.Windows[i].Shift(&s.Usages[i], delta)
	}
	s.NowNs += delta
	s.StampNs += delta
}

// ExpiryNs returns the instant from which s counts nothing.
func (s *State) ExpiryNs() int64 {
	expiry := s.StampNs
	for i := range s.Windows {
		expiry = max(expiry, s.Windows[i].Expiry(&s.Usages[i], s.asOf(i)))
	}
	return expiry
}

func (s *State) asOf(i int) int64 {
	if s.Windows[i].Algorithm == limit.TokenBucket {
		return s.StampNs
	}
	return s.NowNs
}

// Terms are on what terms units of a key are granted.
type Terms struct {
	// EndNs is when units must have been spent. It is no later than the end of the
	// first window that counts them. 0 = units are not leased: they count as spent at
	// once.
	EndNs int64
	// AgainNs is when to decide again, because the end of a window is too near. 0 = now.
	AgainNs int64
}

// Terms returns the terms for leasing. s must have been rolled.
func (s *State) Terms(lease uint32) Terms {
	if lease == LeaseOff {
		return Terms{}
	}
	end, fixed := s.NowNs+maxLease, s.EndNs()
	for i := range s.Windows {
		w := &s.Windows[i]
		switch {
		case w.Elastic || !Leases(w):
			return Terms{}
		case stamped(w):
			end = min(end, s.NowNs+LeaseNs(w))
		case !w.Unlimited && uint64(s.leftIn(i, s.StampNs))*scarce < uint64(w.Limit):
			end = min(end, s.NowNs+shortLease)
		}
	}
	if fixed-s.NowNs <= SlackNs(s.Windows) {
		return Terms{AgainNs: fixed}
	}
	return Terms{EndNs: min(end, fixed)}
}

// EndNs is when the first window ends in which s counts units now.
func (s *State) EndNs() int64 {
	end := int64(1<<63 - 1)
	for i := range s.Windows {
		if !stamped(&s.Windows[i]) {
			end = min(end, s.endOf(i))
		}
	}
	return end
}

// endOf is when the fixed window, or the counter's period, ends in which s would
// count units.
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

// ValidNs returns how long units may be spent, from the moment before they were
// asked for on. That moment was before the store applied the decision, which was at
// most SlackNs after NowNs. Where nothing is leased either, no unit is spent in a later
// window than it was counted in; an answer without delay always is in time.
func (s *State) ValidNs(t Terms) int64 {
	if t.EndNs == 0 {
		left := max(s.EndNs()-s.NowNs-SlackNs(s.Windows), 1)
		return min(shortLease, Shortest(s.Windows)/10, left)
	}
	return t.EndNs - s.NowNs - SlackNs(s.Windows)
}

// Left returns how many units all windows have left for spending until t's end.
func (s *State) Left(t Terms) uint32 {
	left := uint32(1<<32 - 1)
	for i := range s.Windows {
		left = min(left, s.leftIn(i, max(s.StampNs, t.EndNs)))
	}
	return left
}

// leftIn returns what a window has left if units count as spent at the instant
// stamp. What a bucket gains until then cannot be spent before, and units may be
// spent now. So that gain must be there twice: as the bucket's, and as left over.
func (s *State) leftIn(i int, stamp int64) uint32 {
	w := &s.Windows[i]
	switch {
	case w.Unlimited:
		return 1<<32 - 1
	case w.Algorithm != limit.TokenBucket:
		return w.Remaining(&s.Usages[i], s.NowNs)
	}
	u := s.Usages[i]
	w.Roll(&u, s.StampNs, stamp)
	remaining, gain := w.Remaining(&u, stamp), gained(w, stamp-s.NowNs)
	return remaining - min(remaining, gain)
}

// gained is how many tokens a bucket gains in ns, rounded up.
func gained(w *limit.Window, ns int64) uint32 {
	hi, lo := bits.Mul64(uint64(w.Limit), uint64(ns))
	lo, carry := bits.Add64(lo, uint64(w.PeriodNs-1), 0)
	if hi += carry; hi >= uint64(w.PeriodNs) {
		return 1<<32 - 1
	}
	n, _ := bits.Div64(hi, lo, uint64(w.PeriodNs))
	return uint32(min(n, 1<<32-1))
}

// Grant decides what an ask for a part is granted: what waits, as far as it is
// left, and of the rest at most a quarter ahead of need. It counts nothing. ok says
// that the part's cost passes. Where only a lease would take more than is left, the
// units are granted without one.
func (s *State) Grant(lease uint32, p *Part) (units uint32, t Terms, ok bool) {
	t = s.Terms(lease)
	if t.AgainNs != 0 {
		return 0, t, false
	}
	left := s.Left(t)
	if left < p.Cost && t.EndNs != 0 {
		if now := s.Left(Terms{}); now >= p.Cost {
			left, t = now, Terms{}
		}
	}
	if left < p.Cost {
		return 0, t, false
	}
	units = min(left, max(p.Waiting, p.Cost))
	if t.EndNs == 0 || left < leastAhead {
		return units, t, true
	}
	ahead := min(s.aheadUntil(t.EndNs, p.Ahead), (left-units)/scarce)
	if lease != LeaseAuto {
		ahead = min(ahead, lease)
	}
	return units + ahead, t, true
}

// aheadUntil is the part of what a proxy expects to need that it can need until the
// end of a window, where that is near.
func (s *State) aheadUntil(endNs int64, ahead uint32) uint32 {
	rest, horizon := endNs-s.NowNs, HorizonNs(s.Windows)
	if rest >= min(shortLease, horizon) {
		return ahead
	}
	return uint32(uint64(ahead) * uint64(rest) / uint64(horizon))
}

// Add counts units in all windows, whatever is left. It returns what Refund needs.
func (s *State) Add(units uint32, t Terms) Charge {
	stamp := max(s.StampNs, t.EndNs)
	c := Charge{AtNs: s.NowNs, StampNs: stamp}
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		switch w.Algorithm {
		case limit.TokenBucket:
			w.Roll(u, s.StampNs, stamp)
			w.Add(u, stamp, units)
		case limit.SlidingWindowLog:
			w.Add(u, stamp, units)
		default:
			isOpen := u.EndNs != 0
			w.Add(u, s.NowNs, units)
			if u.EndNs != 0 {
				c.ended(i, len(s.Windows), u.EndNs, !isOpen && w.Algorithm == limit.FixedWindowPerKey)
			}
		}
	}
	s.StampNs = stamp
	return c
}

// Charge says how units were counted.
type Charge struct {
	AtNs, StampNs int64
	Ends          []int64 // by window, where each key's ends are its own; nil = none's are
	Opened        uint16  // windows that the units opened, a bit each
}

func (c *Charge) ended(i, windows int, end int64, opened bool) {
	if c.Ends == nil {
		c.Ends = make([]int64, windows)
	}
	c.Ends[i] = end
	if opened {
		c.Opened |= 1 << i
	}
}

// Refund uncounts units of a charge, where the windows that counted them are still
// open. undo says that the request was never admitted, so that a window which it
// opened need not have been: see limit.Window.Refund. It reports whether all windows
// have let go of the units. s must have been rolled, and must have held the same
// windows ever since the charge.
func (s *State) Refund(c *Charge, units uint32, undo bool) bool {
	ok := true
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		at := c.AtNs
		if stamped(w) {
			at = c.StampNs
		}
		var after limit.Usage
		if c.Ends != nil {
			after.EndNs = c.Ends[i]
		}
		opened := undo && c.Opened&(1<<i) != 0
		ok = w.Refund(u, &after, at, s.asOf(i), units, opened) && ok
	}
	return ok
}

// WaitNs returns how long a cost that was denied must wait if nobody else asks.
func (s *State) WaitNs(cost uint32) int64 {
	wait := int64(0)
	for i := range s.Windows {
		w, u := &s.Windows[i], &s.Usages[i]
		if w.Unlimited {
			continue
		}
		pass := w.Check(u, s.asOf(i), cost)
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

// bucketPass is when a bucket's cost passes, given when it would pass if the bucket
// stood as it will at StampNs.
func (s *State) bucketPass(i int, cost uint32, pass int64) int64 {
	w := &s.Windows[i]
	if gain := gained(w, s.StampNs-s.NowNs); gain <= w.Burst-cost {
		return s.NowNs + w.Check(&s.Usages[i], s.StampNs, cost+gain) - s.StampNs
	}
	return pass
}

// Standing returns how a window stands. s must have been rolled.
func (s *State) Standing(i int) Standing {
	w, u := &s.Windows[i], &s.Usages[i]
	used := w.Count(u, s.asOf(i))
	if w.Algorithm == limit.TokenBucket && !w.Unlimited {
		used = max(used, w.Burst-s.leftIn(i, s.StampNs))
	}
	return Standing{Used: used, ResetNs: max(w.Reset(u, s.asOf(i))-s.NowNs, 0)}
}
