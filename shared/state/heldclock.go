package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// The holds' clock is one for all workers: the monotonic clock without the time in which
// the process stood still. Nobody could say then that a stream was alive.
//
//	0  i64  when some worker last read it
//	8  i64  how long the process stood still in all
const (
	heldClockBytes = 16
	// readEveryNs is how often a worker tells the others that the process runs.
	readEveryNs = 500_000_000
	// stoodStillNs is the longest gap between two readings that counts.
	stoodStillNs = 2_000_000_000
	// heldSinceNs is what the holds' clock says when the monotonic one says 0: a hold that
	// begins then has eighths before it.
	heldSinceNs = 2 * limit.MaxPeriodNs
)

var heldClockKey = []byte("sl/held")

// HeldNow reads the holds' clock.
func (t *Tables) HeldNow() int64 {
	now := t.store.Monotonic()
	if now-t.heldReadNs < readEveryNs {
		return heldSinceNs + now - t.stoodNs
	}
	for range MaxRetries { // not Update, whose change TinyGo would allocate
		value, cas, status := t.store.Get(heldClockKey)
		t.heldReadNs = now
		switch {
		case status == NotFound:
			cas = CreateOnly
		case status != OK:
			return heldSinceNs + now - t.stoodNs
		case len(value) == heldClockBytes:
			read := int64(le.Uint64(value))
			t.stoodNs = int64(le.Uint64(value[8:])) + max(0, now-read-stoodStillNs)
			t.heldReadNs = max(now, read)
		}
		next := le.AppendUint64(t.heldClock[:0], uint64(t.heldReadNs))
		if t.store.Set(heldClockKey, le.AppendUint64(next, uint64(t.stoodNs)), cas) != Mismatch {
			break
		}
	}
	return heldSinceNs + now - t.stoodNs
}
