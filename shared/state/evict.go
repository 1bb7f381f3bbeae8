package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A key without a record takes a free slot of its page, else one whose record has expired.
// If all records are live, the one that uses least of the rule's limits is evicted: its
// usage is added to the page's floor, from which every key without a record starts. So an
// evicted key that comes back has at most what it had left.

// findSlot gives e a slot with an empty record: a free one, that of an expired record, or that of the record
// that uses least, which is evicted. It returns Full if only that is left and evict is not set.
func (t *Table) findSlot(e *Entry, evict bool) Status {
	if slot := t.freeSlot(e); slot >= 0 {
		// What has ended in the floor by now stays ended, also for a worker whose clock is behind.
		t.rollFloor(e, max(e.Now, e.page.floorTime()), false)
		t.place(e, slot, t.floorHoldsUnits(e))
		return OK
	}
	if slot := t.expiredSlot(e); slot >= 0 {
		t.remove(e, slot)
		t.place(e, slot, t.floorHoldsUnits(e))
		return OK
	}
	if !evict {
		return Full
	}
	slot := t.leastLoaded(e)
	shares := t.floorHoldsUnits(e) // of this key: not what the evicted record holds
	t.evict(e, slot)
	t.place(e, slot, shares)
	e.Evicted = true
	return OK
}

// evict adds what the slot's record uses and holds to the floor.
func (t *Table) evict(e *Entry, slot int) {
	last := t.recordTime(e, slot)
	at := max(e.Now, e.page.floorTime(), last)
	t.rollFloor(e, at, true)
	var lapses []lapse
	if t.layout.holds {
		lapses = t.moveHoldsToFloor(e, &e.memory.recordLapses, slot, last)
	}
	t.addToFloor(e, slot, last, at, lapses)
}

// place puts an empty record for e's key into the slot. shares says that the floor may hold
// units of the key.
func (t *Table) place(e *Entry, slot int, shares bool) {
	e.page.place(&t.layout, slot, e.fingerprint)
	if t.layout.holds {
		e.page.numberRecord(&t.layout, slot, shares)
	}
	e.slot = slot
}

// freeSlot returns a slot without a record, or -1.
func (t *Table) freeSlot(e *Entry) int {
	for slot := range t.layout.Slots {
		if e.page.free(&t.layout, slot) {
			return slot
		}
	}
	return -1
}

// expiredSlot returns a slot whose record has expired by the caller's clock, or -1.
func (t *Table) expiredSlot(e *Entry) int {
	for slot := range t.layout.Slots {
		if t.expiry(e, slot) <= e.CallerNs {
			return slot
		}
	}
	return -1
}

// expiry returns when the slot's record counts in no window any more. The record
// of a key that was reset does not expire while the floor counts or holds something: the
// key would start from it. What the floor holds is that of readKey or readPage: see floorHoldsUnits.
func (t *Table) expiry(e *Entry, slot int) int64 {
	if e.page.wasReset(&t.layout, slot) && t.floorLives(e, e.Now) {
		return math.MaxInt64
	}
	if t.layout.leases {
		return t.leaseExpiry(e, slot)
	}
	last := t.recordTime(e, slot)
	at := int64(0)
	var lapses []lapse
	if t.layout.holds {
		h := e.page.holds(&t.layout, slot)
		lapses = t.takeLapsed(e, &e.memory.otherLapses, &h, t.presentEighth(e), last)
		if newest, ok := h.Newest(); ok {
			at = max(t.lapsedAt(e, newest), e.Now+1) // what is held counts now, so the record does not expire at e.Now
		}
	}
	for i := range t.layout.counts {
		u := t.recordUsage(e, slot, i, last)
		asOf := chargeLapsesByRule(&e.rule[i], &u, last, lapses)
		at = max(at, e.rule[i].Expiry(&u, asOf))
	}
	return at
}

// Earliest returns when the first record of e's page expires: a new key waits for
// it if the page is full and the rule does not evict. It is limit.Never if no
// record expires by itself.
func (t *Table) Earliest(e *Entry) int64 {
	first := int64(math.MaxInt64)
	for slot := range t.layout.Slots {
		first = min(first, t.expiry(e, slot))
	}
	if first == math.MaxInt64 {
		return limit.Never
	}
	return first
}

// victim is a record that may be evicted.
type victim struct {
	slot   int
	load   limit.Load
	expiry int64
}

// goesBefore reports whether v is to be evicted rather than w: it uses less of the limits,
// or as much and expires first.
func (v *victim) goesBefore(w *victim) bool {
	return v.load.Less(w.load) || !w.load.Less(v.load) && v.expiry < w.expiry
}

// leastLoaded returns the slot whose record uses least of the rule's limits.
func (t *Table) leastLoaded(e *Entry) int {
	best := victim{slot: -1}
	for slot := range t.layout.Slots {
		v := victim{slot, t.loadOf(e, slot), t.expiry(e, slot)}
		if best.slot < 0 || v.goesBefore(&best) {
			best = v
		}
	}
	return best.slot
}

// loadOf is how much of the rule's limits the slot's record uses: the most that it uses of
// a window's.
func (t *Table) loadOf(e *Entry, slot int) limit.Load {
	last := t.recordTime(e, slot)
	at := max(e.Now, last)
	most := limit.Load{Limit: 1}
	for _, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		w := &e.rule[column]
		u := w.ByRule(t.recordUsage(e, slot, int(column), last), last, at)
		if load := w.Load(&u, at); most.Less(load) {
			most = load
		}
	}
	return most
}

// addToFloor adds the usage of the slot's record, written at last, to the floor, which was
// rolled to at. lapses are charged to the usage first. If the floor is ahead of the clock, the
// usage of a window that starts with its first hit moves ahead as far. So it is as old at the
// floor's time as it is now, and is not forgotten too early.
func (t *Table) addToFloor(e *Entry, slot int, last, at int64, lapses []lapse) {
	ahead := max(at-max(last, e.CallerNs), 0)
	for i := range t.layout.counts {
		w := &e.rule[i]
		u := t.recordUsage(e, slot, i, last)
		asOf := chargeLapsesByRule(w, &u, last, lapses)
		if !w.OnGrid() {
			w.Shift(&u, ahead)
			asOf += ahead
		}
		evicted := w.Floor(u, asOf, at)
		e.page.setFloor(&t.layout, i, w.MergeFloors(e.page.floor(&t.layout, i), evicted))
	}
}

// rollFloor brings the floor to at. It moves the floor's time only if something
// was removed: a record, or the usage of a window that has ended.
func (t *Table) rollFloor(e *Entry, at int64, removed bool) {
	last := e.page.floorTime()
	for i := range t.layout.counts {
		before := e.page.floor(&t.layout, i)
		after := e.rule[i].RollFloor(before, last, at)
		if after != before {
			e.page.setFloor(&t.layout, i, after)
			removed = true
		}
	}
	if removed {
		e.page.setFloorTime(at)
	}
}

// chargeFloor counts units in the floor at the instant at, or at the floor's time if that is later. windows
// has the limits of the key that used them, or the rule's if it is not known which key did.
func (t *Table) chargeFloor(e *Entry, windows []limit.Window, at int64, units uint32) {
	at = max(at, e.page.floorTime())
	t.rollFloor(e, at, true)
	for i := range t.layout.counts {
		f := e.page.floor(&t.layout, i)
		e.page.setFloor(&t.layout, i, e.rule[i].ChargeFloor(&windows[i], f, at, units, e.memory.otherLog[:0]))
	}
}

// floorLives reports whether the floor counts anything at at.
func (t *Table) floorLives(e *Entry, at int64) bool {
	last := e.page.floorTime()
	for i := range t.layout.counts {
		f := e.rule[i].RollFloor(e.page.floor(&t.layout, i), last, max(at, last))
		if !f.IsZero() {
			return true
		}
	}
	return t.floorHoldsUnits(e)
}

// floorHoldsUnits reports whether the floor holds units of keys that were evicted, as chargeFloorLapses has
// read them: only after readKey or readPage.
func (t *Table) floorHoldsUnits(e *Entry) bool {
	return t.layout.holds && e.floorHolds.Total() > 0
}

// remove frees the slot and sets the floor's time.
func (t *Table) remove(e *Entry, slot int) {
	at := max(e.Now, e.page.floorTime(), t.recordTime(e, slot))
	t.rollFloor(e, at, true)
	clear(e.page.record(&t.layout, slot))
}
