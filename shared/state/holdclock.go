package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// The holds' clock is one for all workers: the monotonic clock without the time in which
// the process stood still, because no stream could renew its hold then. It is one value in
// shared data, little endian:
//
//	0  i64  when some worker last read it, by the monotonic clock
//	8  i64  how long the process stood still in all
const (
	holdClockBytes = 16
	// readEveryNs is how often a worker tells the others that the process runs.
	readEveryNs = 500_000_000
	// stoodStillNs is the longest gap between two readings that counts as running.
	stoodStillNs = 2_000_000_000
	// heldSinceNs is what the holds' clock says when the monotonic one says 0: a hold that
	// begins then has eighths before it.
	heldSinceNs = 2 * limit.MaxPeriodNs
)

// HoldClock reads the holds' clock. If no worker has read it for readEveryNs, it writes down that this one has: so the
// process runs.
func (ts *Tables) HoldClock() int64 {
	now := ts.store.Monotonic()
	if ts.holdClock.isOld(now) {
		ts.holdClock.share(ts.store, now)
	}
	return ts.holdClock.at(now)
}

// lookHoldClock is HoldClock without a trace.
func (ts *Tables) lookHoldClock() int64 {
	now, clock := ts.store.Monotonic(), ts.holdClock
	if clock.isOld(now) {
		value, _, status := ts.store.Get(holdClockKey)
		if status == OK {
			clock.read(value, now)
		}
	}
	return clock.at(now)
}

// holdClock is the holds' clock as this worker has read it.
type holdClock struct {
	readNs  int64 // when some worker last read it, by the monotonic clock
	stoodNs int64 // how long the process stood still in all
	memory  [holdClockBytes]byte
}

func (c *holdClock) isOld(now int64) bool { return now-c.readNs >= readEveryNs }

// at is what the clock says when the monotonic one says now.
func (c *holdClock) at(now int64) int64 { return heldSinceNs + now - c.stoodNs }

// share tells the other workers that the process runs, and adds the time since
// the last of them has said so if it is too long.
func (c *holdClock) share(store Store, now int64) {
	for range MaxRetries { // not Update, whose change TinyGo would allocate
		value, cas, status := store.Get(holdClockKey)
		c.readNs = now
		switch status {
		case OK:
			c.read(value, now)
		case NotFound:
			cas = CreateOnly
		default:
			return
		}
		next := le.AppendUint64(c.memory[:0], uint64(c.readNs))
		next = le.AppendUint64(next, uint64(c.stoodNs))
		if store.Set(holdClockKey, next, cas) != Mismatch {
			return
		}
	}
}

// read takes over what another worker has shared, and adds the time since then if it is too long. It takes nothing
// from a value that it cannot read.
func (c *holdClock) read(value []byte, now int64) {
	if len(value) != holdClockBytes {
		return
	}
	read := int64(le.Uint64(value))
	c.readNs = max(now, read)
	c.stoodNs = int64(le.Uint64(value[8:])) + max(0, now-read-stoodStillNs)
}
