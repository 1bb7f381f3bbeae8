package limit

import "math/bits"

// Standing returns a usage that counts used units at now and resets after resetNs,
// as Count and Reset found them in another usage, which is not at hand. A log is
// made in the memory of log.
func (w *Window) Standing(now int64, used uint32, resetNs int64, log []int64) Usage {
	u := Usage{Log: log[:0]}
	if used == 0 {
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
		if w.Pays > 0 && used > w.Pays { // which is when all is paid
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
	if hi += carry; hi >= rest {
		return 1<<32 - 1
	}
	n, _ := bits.Div64(hi, lo, rest)
	return uint32(min(n, 1<<32-1))
}
