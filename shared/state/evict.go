package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// findSlot gives e a slot. If it evicts a live record, it adds its usage to the
// floor.
func (t *Table) findSlot(e *Entry, evict bool) Status {
	slot, expired := t.vacant(e)
	if slot < 0 {
		if !evict {
			return Full
		}
		slot = t.leastLoaded(e)
		e.Evicted = true
	}
	at := max(e.Now, e.page.floorTime())
	last := int64(0)
	if e.Evicted || expired {
		last = t.recordTime(e, slot)
		at = max(at, last)
	}
	t.rollFloor(e, at, e.Evicted || expired)
	shares := t.layout.holds && e.floorHeld.Total() > 0 // before the victim's holds are there
	if e.Evicted {
		t.evictHolds(e, slot, last)
		t.addToFloor(e, slot, last, at)
	}
	e.page.place(&t.layout, slot, e.fingerprint)
	if t.layout.holds {
		e.page.numberRecord(&t.layout, slot, shares)
	}
	e.slot = slot
	return OK
}

// addToFloor adds the usage of the slot's record, written at last, and what has lapsed of
// what it held, to the floor, which was rolled to at. Where the floor is ahead of the clock, the usage keeps its age.
func (t *Table) addToFloor(e *Entry, slot int, last, at int64) {
	ahead := max(at-max(last, e.CallerNs), 0)
	for i := range t.layout.counts {
		w, u := &e.rule[i], t.recordUsage(e, slot, i, last)
		written := chargeAll(w, &u, last, e.lapses)
		if !w.OnGrid() {
			w.Shift(&u, ahead)
			written += ahead
		}
		victim := w.Floor(u, written, at)
		e.page.setFloor(&t.layout, i, w.MergeFloors(e.page.floor(&t.layout, i), victim))
	}
}

// rollFloor brings the floor to at. It moves the floor's time only if something
// was removed: a record, or the usage of a window that has ended.
func (t *Table) rollFloor(e *Entry, at int64, removed bool) {
	last := e.page.floorTime()
	for i := range t.layout.counts {
		before := e.page.floor(&t.layout, i)
		after := e.rule[i].RollFloor(before, last, at)
		if after.Used != before.Used || after.Prev != before.Prev || after.EndNs != before.EndNs {
			e.page.setFloor(&t.layout, i, after)
			removed = true
		}
	}
	if removed {
		e.page.setFloorTime(at)
	}
}

// floorLives reports whether the floor counts anything at at.
func (t *Table) floorLives(e *Entry, at int64) bool {
	last := e.page.floorTime()
	for i := range t.layout.counts {
		if f := e.rule[i].RollFloor(e.page.floor(&t.layout, i), last, max(at, last)); !f.IsZero() {
			return true
		}
	}
	return t.layout.holds && e.floorHeld.Total() > 0
}

// vacant returns a free slot, else one whose record has expired, else -1.
func (t *Table) vacant(e *Entry) (slot int, expired bool) {
	for i := range t.layout.Slots {
		if e.page.free(&t.layout, i) {
			return i, false
		}
	}
	for i := range t.layout.Slots {
		if t.expiry(e, i) <= e.CallerNs {
			return i, true
		}
	}
	return -1, false
}

// expiry returns when the slot's record counts in no window any more. The record
// of a key that was reset does not expire while the floor counts something: the
// key would start from it.
func (t *Table) expiry(e *Entry, slot int) int64 {
	if e.page.wasReset(&t.layout, slot) && t.floorLives(e, e.Now) {
		return math.MaxInt64
	}
	if t.layout.leases {
		return t.leaseExpiry(e, slot)
	}
	at, last := int64(0), t.recordTime(e, slot)
	e.otherLapses = e.otherLapses[:0]
	if t.layout.holds {
		h := e.page.held(&t.layout, slot)
		e.otherLapses = t.lapses(e, &h, e.eighth(t), last, e.otherLapses)
		if newest, ok := h.Newest(); ok {
			at = max(t.lapsedAt(e, newest), e.Now+1)
		}
	}
	for i := range t.layout.counts {
		u := t.recordUsage(e, slot, i, last)
		asOf := chargeAll(&e.rule[i], &u, last, e.otherLapses)
		at = max(at, e.rule[i].Expiry(&u, asOf))
	}
	return at
}

// leastLoaded returns the slot whose record uses least of the rule's limits. A
// record's load is the largest of its windows'; if two are equal, the one that
// expires first is taken.
func (t *Table) leastLoaded(e *Entry) int {
	best, bestLoad, bestExpiry := -1, limit.Load{}, int64(0)
	for slot := range t.layout.Slots {
		last := t.recordTime(e, slot)
		at := max(e.Now, last)
		load := limit.Load{Limit: 1}
		for _, column := range t.columns[:len(t.def.Windows)] {
			if column < 0 {
				continue
			}
			w := &e.rule[column]
			u := w.ByRule(t.recordUsage(e, slot, column, last), last, at)
			if l := w.Load(&u, at); load.Less(l) {
				load = l
			}
		}
		expiry := t.expiry(e, slot)
		if best < 0 || load.Less(bestLoad) || (!bestLoad.Less(load) && expiry < bestExpiry) {
			best, bestLoad, bestExpiry = slot, load, expiry
		}
	}
	return best
}
