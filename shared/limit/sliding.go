package limit

import (
	"math/bits"
)

// live returns the units of a log that lie in the window at now.
func (w *Window) live(log []int64, now int64) []int64 {
	low, high := 0, len(log)
	for low < high {
		if middle := (low + high) / 2; log[middle] <= now-w.PeriodNs {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return log[low:]
}

// checkLog: the hit passes once enough of the oldest units have left the window.
func (w *Window) checkLog(u *Usage, now int64, cost uint32) int64 {
	over := int64(len(u.Log)) + int64(cost) - int64(w.Max())
	if over <= 0 {
		return now
	}
	return u.Log[over-1] + w.PeriodNs
}

// addLog appends cost units of now and keeps the newest that the log can hold.
// Units that it drops are older than those it keeps. So when a kept unit leaves
// the window, the dropped ones have left it too, and the log is complete again.
func (w *Window) addLog(u *Usage, now int64, cost uint32) {
	room := int(w.Units)
	n := int(min(cost, uint32(room)))
	u.Cut = u.Cut || int64(len(u.Log))+int64(cost) > int64(room)
	if drop := len(u.Log) + n - room; drop > 0 {
		u.Log = u.Log[drop:]
	}
	for range n {
		u.Log = append(u.Log, now)
	}
}

// refundLog removes cost units of the instant at from the log. A log that has
// dropped units is left alone: those would have to come back.
func (w *Window) refundLog(u *Usage, at, now int64, cost uint32) bool {
	if at+w.PeriodNs <= now {
		return true
	}
	if u.Cut {
		return false
	}
	kept, taken := u.Log[:0], uint32(0)
	for _, t := range u.Log {
		if t == at && taken < cost {
			taken++
			continue
		}
		kept = append(kept, t)
	}
	u.Log = kept
	return taken == cost
}

// rollCounter moves u from the period that holds last to the one that holds now.
func (w *Window) rollCounter(u *Usage, last, now int64) {
	switch (w.start(now) - w.start(last)) / w.PeriodNs {
	case 0:
	case 1:
		*u = Usage{Prev: u.Used}
	default:
		*u = Usage{}
	}
}

// weighted is how much of the previous period's count still counts at now:
// ⌊prev·(W−e)/W⌋, where e is the time since the current period began.
func (w *Window) weighted(prev uint32, now int64) uint32 {
	if prev == 0 {
		return 0
	}
	return uint32(mulDiv(w.End(now)-now, prev, w.PeriodNs))
}

// checkCounter: allow iff ⌊prev·(W−e)/W⌋ + cur + cost ≤ limit. The wait is
// exact. With A = limit−cost−cur it is ⌊W·(prev−A−1)/prev⌋+1−e if A ≥ 0.
// Otherwise, with B = limit−cost, it is the rest of this period and
// ⌊W·(cur−B−1)/cur⌋+1 of the next.
func (w *Window) checkCounter(u *Usage, now int64, cost uint32) int64 {
	room := w.Limit - cost
	if u.Used > room {
		return w.End(now) + mulDiv(w.PeriodNs, u.Used-room-1, int64(u.Used)) + 1
	}
	if a := room - u.Used; u.Prev > a && w.weighted(u.Prev, now) > a {
		return w.start(now) + mulDiv(w.PeriodNs, u.Prev-a-1, int64(u.Prev)) + 1
	}
	return now
}

// counterExpiry is the end of the last period in which u, written at last,
// counts.
func (w *Window) counterExpiry(u *Usage, last int64) int64 {
	switch {
	case u.Used > 0:
		return w.End(last) + w.PeriodNs
	case u.Prev > 0:
		return w.End(last)
	}
	return 0
}

// refundCounter subtracts the hit from the current period, or from the previous
// one if a period has ended since.
func (w *Window) refundCounter(u *Usage, at, now int64, cost uint32) bool {
	from := &u.Used
	switch (w.start(now) - w.start(at)) / w.PeriodNs {
	case 0:
	case 1:
		from = &u.Prev
	default:
		return true
	}
	if *from < cost {
		return false
	}
	*from -= cost
	return true
}

// mulDiv is ⌊a·b/c⌋, which must fit; a ≥ 0, c > 0.
func mulDiv(a int64, b uint32, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}
