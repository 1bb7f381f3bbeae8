package limit

import "math/bits"

// Usage is what one window has counted for one key, as of the instant at which
// its record was last written. The zero value has counted nothing.
type Usage struct {
	Used uint32 // units; SlidingWindowCounter: of the current bucket
	Prev uint32 // SlidingWindowCounter: units of the bucket before

	// EndNs is when an open FixedWindowPerKey ends, 0 = none is open; when a
	// jittered FixedWindow ends; when a TokenBucket was to be full as it was last
	// written, with its Stamp in the low bits.
	EndNs  int64
	Slides bool // FixedWindowPerKey: every counted hit moves the end to now+W

	Tokens Tokens  // TokenBucket, where EndNs is not 0
	Log    []int64 // SlidingWindowLog: when each unit was counted, oldest first
	Cut    bool    // SlidingWindowLog: there was no room for units older than these
}

// IsZero reports whether u has counted nothing.
func (u *Usage) IsZero() bool {
	return u.Used == 0 && u.Prev == 0 && u.EndNs == 0 && len(u.Log) == 0
}

// Roll brings u, written at last, to now: what lies outside the window counts no
// more. now must not be before last.
func (w *Window) Roll(u *Usage, last, now int64) {
	switch w.Algorithm {
	case SlidingWindowLog:
		live := w.live(u.Log, now)
		u.Cut = u.Cut && len(live) > 0 && len(live) == len(u.Log)
		u.Log = live
	case SlidingWindowCounter:
		w.rollCounter(u, last, now)
	case TokenBucket:
		w.refill(u, last, now)
	default:
		if w.endOf(u, last) <= now {
			*u = Usage{}
		}
	}
}

// Expiry returns the instant from which u, written at last, counts nothing.
func (w *Window) Expiry(u *Usage, last int64) int64 {
	if u.IsZero() {
		return 0
	}
	switch w.Algorithm {
	case SlidingWindowLog:
		return u.Log[len(u.Log)-1] + w.PeriodNs
	case SlidingWindowCounter:
		return w.counterExpiry(u, last)
	case TokenBucket:
		if w.stale(u.EndNs) {
			return max(w.fullBy(u, last), after(last, w.FillNs))
		}
		return w.fullBy(u, last)
	default:
		return w.endOf(u, last)
	}
}

// Check returns the earliest instant at which a hit of cost units would pass
// if nobody else came: now itself when it passes at once, Never when it cannot.
// u must have been rolled to now.
func (w *Window) Check(u *Usage, now int64, cost uint32) int64 {
	if w.Unlimited {
		return now
	}
	if w.Limit == 0 || cost > w.Max() {
		return Never
	}
	switch w.Algorithm {
	case SlidingWindowLog:
		return w.checkLog(u, now, cost)
	case SlidingWindowCounter:
		return w.checkCounter(u, now, cost)
	case TokenBucket:
		return w.checkTokens(u, now, cost)
	default:
		if u.Used <= w.Limit-cost {
			return now
		}
		return w.endOf(u, now)
	}
}

// Add counts cost more units at now, saturating. u must have been rolled to
// now. It does not check the limit.
func (w *Window) Add(u *Usage, now int64, cost uint32) {
	switch w.Algorithm {
	case SlidingWindowLog:
		w.addLog(u, now, cost)
	case TokenBucket:
		w.take(u, now, cost)
	default:
		u.Used = addSaturating(u.Used, cost)
		w.open(u, now)
	}
}

// open gives u its window's end where it has one of its own.
func (w *Window) open(u *Usage, now int64) {
	switch {
	case w.Algorithm == FixedWindowPerKey && (u.EndNs == 0 || u.Slides || w.Elastic):
		u.EndNs, u.Slides = now+w.PeriodNs, u.Slides || w.Elastic
	case w.Algorithm == FixedWindow && w.Jitter > 0:
		u.EndNs = w.End(now)
	}
}

// Set returns the usage of a key that is said to have used n units at now.
func (w *Window) Set(now int64, n uint32) (u Usage) {
	w.Add(&u, now, n)
	return u
}

// Count returns how much of the limit u uses: units, or the tokens that are
// missing from a full bucket. u must have been rolled to now.
func (w *Window) Count(u *Usage, now int64) uint32 {
	switch w.Algorithm {
	case SlidingWindowLog:
		return uint32(len(u.Log))
	case SlidingWindowCounter:
		return addSaturating(w.weighted(u.Prev, now), u.Used)
	case TokenBucket:
		return w.missing(u)
	default:
		return u.Used
	}
}

// Max returns the most units the window admits at once. A log that remembers
// fewer units than its limit, as a configuration that is on its way out may
// find it, admits no more than it can count.
func (w *Window) Max() uint32 {
	switch w.Algorithm {
	case TokenBucket:
		return w.Burst
	case SlidingWindowLog:
		return min(w.Limit, uint32(w.Units))
	default:
		return w.Limit
	}
}

// Remaining returns how many units still fit, at least 0. u must have been
// rolled to now.
func (w *Window) Remaining(u *Usage, now int64) uint32 {
	used, most := w.Count(u, now), w.Max()
	if w.Limit == 0 || used >= most {
		return 0
	}
	return most - used
}

// Reset returns when the window's count starts anew: the end of the aligned
// window, or of the key's open one; for a sliding counter the end of the bucket
// in which nothing counted so far counts any more; when the newest unit leaves a
// log; when a bucket is full. It is now for a window that has counted nothing
// and is not aligned. u must have been rolled to now.
func (w *Window) Reset(u *Usage, now int64) int64 {
	switch {
	case w.Algorithm == FixedWindow:
		return w.End(now)
	case w.Algorithm == SlidingWindowCounter && u.Used > 0:
		return w.End(now) + w.PeriodNs
	case w.Algorithm == SlidingWindowCounter:
		return w.End(now)
	case u.IsZero():
		return now
	case w.Algorithm == TokenBucket:
		return w.fullAt(u, now)
	}
	return w.Expiry(u, now)
}

// Refund takes a hit of cost units out of u that had left the window as after
// at the instant at. It reports whether none of its charge is left behind: it was
// taken back, or went with its window. opened says that the hit had opened
// the key's window. A window in which nothing is left closes; one that lost
// its opener slides from now on, because its true opening is not known any
// more: any hit counted so far may be the first one left, so it ends a whole
// period from now. u must have been rolled to now.
func (w *Window) Refund(u, after *Usage, at, now int64, cost uint32, opened bool) bool {
	switch w.Algorithm {
	case SlidingWindowLog:
		return w.refundLog(u, at, now, cost)
	case SlidingWindowCounter:
		return w.refundCounter(u, at, now, cost)
	case TokenBucket:
		w.refundTokens(u, at, now, cost)
		return true
	default: // a window as a whole
	}
	if w.endOf(after, at) <= now {
		return !u.Slides // a window that slid on still counts the hit
	}
	if w.Algorithm == FixedWindowPerKey && u.EndNs != after.EndNs && !u.Slides {
		return false
	}
	if u.Used < cost {
		return false
	}
	u.Used -= cost
	switch {
	case u.Used == 0:
		*u = Usage{}
	case opened:
		u.EndNs, u.Slides = now+w.PeriodNs, true
	}
	return true
}

// Shift moves u's instants by delta nanoseconds.
func (w *Window) Shift(u *Usage, delta int64) {
	switch {
	case u.EndNs == 0:
	case w.Algorithm == TokenBucket:
		u.EndNs = withStamp(u.EndNs+delta, stampOf(u.EndNs))
	default:
		u.EndNs += delta
	}
	for i := range u.Log {
		u.Log[i] += delta
	}
}

// Load is the part of a limit that is used, as a fraction to compare.
type Load struct{ Used, Limit uint32 }

// Load returns how much of the limit u uses. u must have been rolled to now.
func (w *Window) Load(u *Usage, now int64) Load { return Load{w.Count(u, now), max(w.Max(), 1)} }

// Less reports whether l is the smaller fraction.
func (l Load) Less(m Load) bool {
	return uint64(l.Used)*uint64(m.Limit) < uint64(m.Used)*uint64(l.Limit)
}

func addSaturating(a, b uint32) uint32 {
	sum, carry := bits.Add32(a, b, 0)
	if carry != 0 {
		return 1<<32 - 1
	}
	return sum
}
