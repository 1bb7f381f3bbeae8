package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// The holds' clock is one for all workers: the monotonic clock without the time in which
// the process stood still, because no stream could renew its hold then. It is one value in
// shared data, little endian:
//
//	0  i64  when some worker last read it, by the monotonic clock
//	8  i64  how long the process stood still in all
const (
	heldClockBytes = 16
	// readEveryNs is how often a worker tells the others that the process runs.
	readEveryNs = 500_000_000
	// stoodStillNs is the longest gap between two readings that counts as running.
	stoodStillNs = 2_000_000_000
	// heldSinceNs is what the holds' clock says when the monotonic one says 0: a hold that
	// begins then has eighths before it.
	heldSinceNs = 2 * limit.MaxPeriodNs
)

// HeldNow reads the holds' clock.
func (ts *Tables) HeldNow() int64 {
	now := ts.store.Monotonic()
	if now-ts.heldReadNs >= readEveryNs {
		ts.shareHeldClock(now)
	}
	return heldSinceNs + now - ts.stoodNs
}

// lookHeldNow is HeldNow without a trace.
func (ts *Tables) lookHeldNow() int64 {
	now, stoodNs := ts.store.Monotonic(), ts.stoodNs
	if now-ts.heldReadNs >= readEveryNs {
		value, _, status := ts.store.Get(heldClockKey)
		if _, stood, ok := readHeldClock(value, now); ok && status == OK {
			stoodNs = stood
		}
	}
	return heldSinceNs + now - stoodNs
}

// shareHeldClock tells the other workers that the process runs, and adds the time since
// the last of them has said so if it is too long.
func (ts *Tables) shareHeldClock(now int64) {
	for range MaxRetries { // not Update, whose change TinyGo would allocate
		value, cas, status := ts.store.Get(heldClockKey)
		ts.heldReadNs = now
		switch status {
		case OK:
			if read, stood, ok := readHeldClock(value, now); ok {
				ts.heldReadNs, ts.stoodNs = read, stood
			}
		case NotFound:
			cas = CreateOnly
		default:
			return
		}
		next := le.AppendUint64(ts.heldClock[:0], uint64(ts.heldReadNs))
		next = le.AppendUint64(next, uint64(ts.stoodNs))
		if ts.store.Set(heldClockKey, next, cas) != Mismatch {
			return
		}
	}
}

// readHeldClock returns when some worker last read the clock, now at the earliest, and how long the
// process has stood still until now.
func readHeldClock(value []byte, now int64) (readNs, stoodNs int64, ok bool) {
	if len(value) != heldClockBytes {
		return 0, 0, false
	}
	read := int64(le.Uint64(value))
	stood := int64(le.Uint64(value[8:]))
	return max(now, read), stood + max(0, now-read-stoodStillNs), true
}
