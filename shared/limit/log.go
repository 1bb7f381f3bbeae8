package limit

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
