package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// aheadNs is how far ahead of a worker's clock a record or floor may be: the clocks of
// workers differ, and may be set back a little.
const aheadNs = 10_000_000_000

// wasSetBack reports whether the clock was set back since last, when a record or floor
// was written. The worker may only have stood still after it had read its clock, so it
// reads it once more.
func (t *Table) wasSetBack(e *Entry, last int64) bool {
	if last <= e.CallerNs+aheadNs {
		return false
	}
	if !e.looked {
		e.CallerNs, e.looked = max(e.CallerNs, t.tables.store.Now()), true
	}
	return last > e.CallerNs+aheadNs
}

// rebase moves the record, or the floor, that was written at last back to e.CallerNs.
// The record gets a new generation: what it has counted may be in other windows now, so
// no hit from before is refunded from it.
func (t *Table) rebase(e *Entry, last int64) {
	e.Rebased = true
	for i := range t.layout.counts {
		w := &t.layout.Windows[i]
		if e.slot >= 0 {
			u := e.page.usage(&t.layout, e.slot, i, e.log(i))
			w.SetBack(&u, last, e.CallerNs)
			e.page.setUsage(&t.layout, e.slot, i, &u)
		} else {
			f := e.page.floor(&t.layout, i)
			w.SetFloorBack(&f, last, e.CallerNs)
			e.page.setFloor(&t.layout, i, f)
		}
	}
	if e.slot < 0 {
		e.page.setFloorTime(e.CallerNs)
		return
	}
	e.page.setTime(&t.layout, e.slot, e.CallerNs)
	e.page.mark(&t.layout, e.slot, e.page.nextGeneration(), e.page.wasReset(&t.layout, e.slot))
}

// recordTime is when the slot's record was last written, or the present if the clock
// was set back since.
func (t *Table) recordTime(e *Entry, slot int) int64 {
	last := e.page.time(&t.layout, slot)
	if t.wasSetBack(e, last) {
		return max(e.Now, e.CallerNs)
	}
	return last
}

// recordUsage is the usage of column i in the slot's record at its recordTime. It is
// valid until the next call.
func (t *Table) recordUsage(e *Entry, slot, i int, at int64) limit.Usage {
	u := e.page.usage(&t.layout, slot, i, e.other)
	if u.Log != nil {
		e.other = u.Log
	}
	if last := e.page.time(&t.layout, slot); at < last {
		t.layout.Windows[i].SetBack(&u, last, at)
	}
	return u
}

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
