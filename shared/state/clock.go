package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Which clock counts what:
//
//	CallerNs  the worker's own wall clock. Another key's record expires by it, because Now may
//	          be seconds ahead and would free a record that others still count by.
//	last      when a record or floor was written, by the clock of the worker that wrote it.
//	Now       the later of CallerNs and last. All that is counted for the key is counted at it
//	          and written with it, so the time of a key never goes back.
//	at        when the floor changes: the latest of Now, the floor's last and the last of the
//	          record that is moved there. The time of a floor never goes back either.
//	heldNs    the holds' clock, which is monotonic: see HeldNow. It says in which eighth a hold
//	          was renewed. lapsedAt translates an eighth to the wall clock.
//	monotonicNs, LeaseEntry.NowNs
//	          the store's monotonic clock, by which leases end: see lease.go.
//
// The wall clocks of workers differ a little, and may be set back by much:
//
//   - If a record or floor was written a little after the worker's present, the key is
//     counted at the time of that write: a key's time never goes back.
//   - If it was written more than aheadNs after it, the clock was set back since. The record
//     or floor is rebased: what it has counted moves back to the present, with its age.
//
// Times in the directory have a rule of their own, see directory.forgetFuture.

// aheadNs is how far ahead of a worker's clock a record or floor may be.
const aheadNs = 10_000_000_000

// isAhead reports whether last is further ahead of the caller's clock than clocks differ.
func (e *Entry) isAhead(last int64) bool { return last > e.CallerNs+aheadNs }

// foundSetBack reports whether the clock was set back since last, when a record or floor
// was written. The worker may only have stood still after it had read its clock, so the
// first call that suspects it reads the clock once more, into e.CallerNs.
func (t *Table) foundSetBack(e *Entry, last int64) bool {
	if !e.isAhead(last) {
		return false
	}
	if !e.clockRead {
		e.clockRead = true
		e.CallerNs = max(e.CallerNs, t.parent.store.Now())
	}
	return e.isAhead(last)
}

// rebase moves the key's record, or the floor if it has none, back from last, when it was
// written, to e.CallerNs.
func (t *Table) rebase(e *Entry, last int64) {
	e.Rebased = true
	if e.slot >= 0 {
		t.rebaseRecord(e, last)
	} else {
		t.rebaseFloor(e, last)
	}
}

// rebaseRecord gives the record a new generation: what it has counted may be in other
// windows now, so no hit from before is refunded from it.
func (t *Table) rebaseRecord(e *Entry, last int64) {
	for i := range t.layout.counts {
		u := e.page.usage(&t.layout, e.slot, i, e.log(i))
		t.layout.Windows[i].SetBack(&u, last, e.CallerNs)
		e.page.setUsage(&t.layout, e.slot, i, &u)
	}
	e.page.setTime(&t.layout, e.slot, e.CallerNs)
	e.page.mark(&t.layout, e.slot, e.page.nextGeneration(), e.page.wasReset(&t.layout, e.slot))
}

func (t *Table) rebaseFloor(e *Entry, last int64) {
	for i := range t.layout.counts {
		f := t.layout.Windows[i].SetFloorBack(e.page.floor(&t.layout, i), last, e.CallerNs)
		e.page.setFloor(&t.layout, i, f)
	}
	e.page.setFloorTime(e.CallerNs)
}

// recordTime is when the slot's record was last written, or the present if the clock
// was set back since. The slot may be another key's: its record stays as it is.
func (t *Table) recordTime(e *Entry, slot int) int64 {
	last := e.page.time(&t.layout, slot)
	if t.foundSetBack(e, last) {
		return max(e.Now, e.CallerNs)
	}
	return last
}

// recordUsage is the usage of column i in the slot's record at its recordTime. It is
// valid until the next call.
func (t *Table) recordUsage(e *Entry, slot, i int, at int64) limit.Usage {
	u := e.page.usage(&t.layout, slot, i, e.memory.otherLog)
	if u.Log != nil {
		e.memory.otherLog = u.Log
	}
	if last := e.page.time(&t.layout, slot); at < last {
		t.layout.Windows[i].SetBack(&u, last, at)
	}
	return u
}

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
