package limit

import (
	"math/bits"
)

// Usage is what one window has counted for one key, as of the instant at which
// its record was last written. The zero value has counted nothing.
type Usage struct {
	Used uint32 // units; SlidingWindowCounter: of the current period; Concurrency: held now; Block: 1 while it runs
	Prev uint32 // SlidingWindowCounter: units of the previous period

	// EndNs depends on the algorithm:
	//   - FixedWindowPerKey: end of the open window, 0 = none is open
	//   - FixedWindow with jitter: end of the window
	//   - TokenBucket: when the bucket is full, with the Stamp in the low bits; 0 = it is full
	//   - Block: when it ends, 0 = none runs
	EndNs  int64
	Slides bool // FixedWindowPerKey: every counted hit moves the end to now+W

	Tokens Tokens  // TokenBucket, unless EndNs is 0
	Log    []int64 // SlidingWindowLog: when each unit was counted, oldest first
	Cut    bool    // SlidingWindowLog: older units were dropped for lack of room
}

// IsZero reports whether u has counted nothing.
func (u *Usage) IsZero() bool {
	return u.Used == 0 && u.Prev == 0 && u.EndNs == 0 && len(u.Log) == 0
}

// Roll brings u, written at last, to now: it drops what has left the window. now
// must not be before last.
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
	case Concurrency:
	default:
		w.rollFixed(u, last, now)
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
			return max(w.latestFull(u, last), after(last, w.FillNs))
		}
		return w.latestFull(u, last)
	default:
		return w.paid(u, last, 0)
	}
}

// Check returns the earliest instant at which a hit of cost units would pass if
// no other hit came: now if it passes at once, Never if it cannot pass. u must
// have been rolled to now.
func (w *Window) Check(u *Usage, now int64, cost uint32) int64 {
	if w.Unlimited {
		return now
	}
	switch {
	case w.Algorithm == Block: // whatever the cost
		return max(now, u.EndNs)
	case w.Limit == 0 || cost > w.Max():
		return Never
	case cost == 0: // also if more than the limit is used
		return now
	}
	switch w.Algorithm {
	case SlidingWindowLog:
		return w.checkLog(u, now, cost)
	case SlidingWindowCounter:
		return w.checkCounter(u, now, cost)
	case TokenBucket:
		return w.checkTokens(u, now, cost)
	default: // the fixed windows, and what is held
	}
	switch room := w.Limit - cost; {
	case u.Used <= room:
		return now
	case w.Algorithm == Concurrency:
		return now + HeldRetryNs
	default:
		return w.paid(u, now, room)
	}
}

// Shut reports whether one of the windows has a limit of 0. That denies every hit, also one
// of cost 0, which every other limit lets pass.
func Shut(windows []Window) bool {
	for i := range windows {
		if w := &windows[i]; w.Limit == 0 && !w.Unlimited {
			return true
		}
	}
	return false
}

// Add counts cost more units at now, saturating. u must have been rolled to
// now. It does not check the limit.
func (w *Window) Add(u *Usage, now int64, cost uint32) {
	switch w.Algorithm {
	case SlidingWindowLog:
		w.addLog(u, now, cost)
	case TokenBucket:
		w.takeTokens(u, now, cost)
	case Concurrency: // what is held lies apart: see Holds
	case Block: // counts denied hits: see Deny
	default:
		u.Used = AddSaturating(u.Used, cost)
		w.open(u, now)
	}
}

// Deny counts a denied hit at now. It begins a Block if none runs, or prolongs an elastic one. u
// must have been rolled to now. Other windows count denied hits by Add.
func (w *Window) Deny(u *Usage, now int64) {
	if w.Algorithm == Block && (u.EndNs == 0 || w.Elastic) {
		u.Used, u.EndNs = 1, max(u.EndNs, now+w.PeriodNs)
	}
}

// open sets the end of u's window if each key has its own.
func (w *Window) open(u *Usage, now int64) {
	switch {
	case w.Algorithm == FixedWindowPerKey && (u.EndNs == 0 || u.Slides || w.Elastic):
		u.EndNs, u.Slides = now+w.PeriodNs, u.Slides || w.Elastic
	case w.Algorithm == FixedWindow && w.Jitter > 0:
		u.EndNs = w.End(now)
	}
}

// Set returns the usage of a key that has used n units at now and nothing before.
func (w *Window) Set(now int64, n uint32) (u Usage) {
	w.Add(&u, now, n)
	return u
}

// Count returns how much of the limit u uses: units, or the tokens that a bucket
// lacks. u must have been rolled to now.
func (w *Window) Count(u *Usage, now int64) uint32 {
	switch w.Algorithm {
	case SlidingWindowLog:
		return uint32(len(u.Log))
	case SlidingWindowCounter:
		return AddSaturating(w.weighted(u.Prev, now), u.Used)
	case TokenBucket:
		return w.missing(u)
	default:
		return u.Used
	}
}

// Max returns how many units the window admits at once at most. During a policy
// change an old configuration may find a log that is shorter than its limit: it
// admits no more than the log can count.
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
	return w.Left(w.Count(u, now))
}

// Left returns how many units are left of the limit once so many are used.
func (w *Window) Left(used uint32) uint32 {
	limit := w.Max()
	if w.Limit == 0 || used >= limit {
		return 0
	}
	return limit - used
}

// Reset returns when the window has forgotten everything that it has counted so
// far: at the end of the aligned window or of the key's open one; for a sliding
// counter, at the end of the last period in which a unit counts; for a log, when
// its newest unit leaves; for a bucket, when it is full. A window that is not
// aligned and has counted nothing resets now, and so does a Concurrency. u must have been
// rolled to now.
func (w *Window) Reset(u *Usage, now int64) int64 {
	switch {
	case w.Algorithm == FixedWindow || w.Algorithm == Calendar:
		return max(w.End(now), w.paid(u, now, 0))
	case w.Algorithm == SlidingWindowCounter && u.Used > 0:
		return w.End(now) + w.PeriodNs
	case w.Algorithm == SlidingWindowCounter:
		return w.End(now)
	case u.IsZero() || w.Algorithm == Concurrency:
		return now
	case w.Algorithm == TokenBucket:
		return w.fullAt(u, now)
	}
	return w.Expiry(u, now)
}

// ResetWith is Reset as it would be if held more units were charged now.
func (w *Window) ResetWith(u *Usage, now int64, held uint32) int64 {
	switch {
	case held == 0:
		return w.Reset(u, now)
	case w.Algorithm == SlidingWindowLog: // Add would write into the log
		return now + w.PeriodNs
	}
	charged := *u
	w.Add(&charged, now, held)
	return w.Reset(&charged, now)
}

// Refund gives back a hit of cost units that was counted at the instant at and
// left the window as after. It reports whether u holds nothing of the hit any
// more: the units were subtracted, or their window has ended. opened says that
// the hit opened the key's window.
//
// A window in which nothing is left closes. A window that lost its opener slides
// from now on and ends a whole period from now, because any hit may now be its
// first. u must have been rolled to now.
//
// What has gone on into a later window as a debt (see Pays) stays. Nobody knows how much of the
// hit that still holds.
func (w *Window) Refund(u, after *Usage, at, now int64, cost uint32, opened bool) bool {
	switch w.Algorithm {
	case SlidingWindowLog:
		return w.refundLog(u, at, now, cost)
	case SlidingWindowCounter:
		return w.refundCounter(u, at, now, cost)
	case TokenBucket:
		w.refundTokens(u, at, now, cost)
		return true
	case Block: // has counted no hit
		return true
	default: // the fixed windows
	}
	if w.endOf(after, at) <= now {
		return !u.Slides // a sliding window whose end has moved since still counts the hit
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
		end := u.EndNs + min(delta, maxInstant-u.EndNs)
		u.EndNs = withStamp(max(end, notFull), stampOf(u.EndNs))
	default:
		u.EndNs += delta
	}
	for i := range u.Log {
		u.Log[i] += delta
	}
}

// SetBack moves u, a usage that was written at last, back to now, because
// the clock was set back. What is measured in elapsed time stays as it was. An aligned
// window, and a counter, counts in the period that holds now.
func (w *Window) SetBack(u *Usage, last, now int64) {
	switch {
	case w.Algorithm == SlidingWindowCounter:
		left := u.Prev - uint32(mulDiv(last-w.start(last), u.Prev, w.PeriodNs)) // rounded up
		*u = Usage{Used: AddSaturating(u.Used, left)}
	case w.Algorithm == FixedWindow && u.EndNs > now:
		u.EndNs -= (u.EndNs - now - 1) / w.PeriodNs * w.PeriodNs // on the key's own grid
	case w.Algorithm != FixedWindow:
		w.Shift(u, now-last)
	}
}

// Fraction is how much of a limit is used.
type Fraction struct{ Used, Limit uint32 }

// FractionUsed returns how much of the limit u uses. u must have been rolled to now.
func (w *Window) FractionUsed(u *Usage, now int64) Fraction {
	return Fraction{w.Count(u, now), max(w.Max(), 1)}
}

// Less reports whether l is the smaller fraction.
func (l Fraction) Less(m Fraction) bool {
	return uint64(l.Used)*uint64(m.Limit) < uint64(m.Used)*uint64(l.Limit)
}

// AddSaturating is a + b, at most 2³²−1.
func AddSaturating(a, b uint32) uint32 {
	sum, carry := bits.Add32(a, b, 0)
	if carry != 0 {
		return 1<<32 - 1
	}
	return sum
}

// Standing returns a usage that counts used units at now and resets after resetNs. It
// stands for another usage, of which only these two are known. A log is made in the memory
// of log.
func (w *Window) Standing(now int64, used uint32, resetNs int64, log []int64) Usage {
	u := Usage{Log: log[:0]}
	switch {
	case used == 0:
		return u
	case w.Algorithm == Block: // which Add does not begin
		u.Used, u.EndNs = 1, now+max(resetNs, 1)
		return u
	}
	if w.Algorithm == SlidingWindowCounter && resetNs <= w.End(now)-now {
		u.Prev = w.weighing(used, now)
		return u
	}
	w.Add(&u, now, used)
	switch w.Algorithm {
	case FixedWindowPerKey:
		u.EndNs = now + max(resetNs, 0)
		// resetNs lasts until the debt is paid. The window itself ends a period earlier for each
		// period that pays.
		if w.Pays > 0 && used > w.Pays {
			u.EndNs = max(u.EndNs-int64((used-1)/w.Pays)*w.PeriodNs, now+1)
		}
	case SlidingWindowLog:
		w.Shift(&u, min(resetNs-w.PeriodNs, 0))
	case TokenBucket:
		if gained := w.Reset(&u, now) - now - resetNs; gained > 0 {
			u = Usage{}
			w.Add(&u, now-gained, used)
			w.Roll(&u, now-gained, now)
		}
	default: // the grid says when
	}
	return u
}

// weighing is the count of the previous period that weighs used units at now.
func (w *Window) weighing(used uint32, now int64) uint32 {
	rest := uint64(max(w.End(now)-now, 1))
	hi, lo := bits.Mul64(uint64(used), uint64(w.PeriodNs))
	lo, carry := bits.Add64(lo, rest-1, 0)
	hi += carry
	if hi >= rest {
		return 1<<32 - 1
	}
	n, _ := bits.Div64(hi, lo, rest)
	return uint32(min(n, 1<<32-1))
}
