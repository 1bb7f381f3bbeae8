package state

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A hold lapses when its stream has not been known to run for eight whole eighths:
//
//	|  k  | k+1 |  ...  | k+8 | k+9 |
//	|---↑-|-----|- ... -|-----↑-----|
//	    renewed last          lapsedAt(k)
//
// A worker may find that much later. It charges the units as of lapsedAt(k).
//
// Each list of lapses lies in memory of the entry, and is valid until the next one is taken into the same.
// A function whose list its caller charges takes it into the memory that the caller names:
//
//	memory        it has the lapses of         who names it       who charges them
//	floorLapses   the floor                    chargeFloorLapses  itself, and evictSharer for each record
//	recordLapses  the key's record             readKey            readRecord
//	              a record that is evicted     evictSharer        itself: addToFloor
//	                                           evict (evict.go)   itself: addToFloor
//	otherLapses   the floor                    moveHoldsToFloor   itself, at once
//	              any record                   expiry (evict.go)  itself, at once
//
// So readKey calls chargeFloorLapses, which evicts records, before readHolds.

// lapse is units whose hold no stream has renewed in time.
type lapse struct {
	at    int64 // when they lapsed, by the clock of the windows
	units uint32
}

// takeLapsed removes from h the units that have lapsed when the eighth by begins, and returns them, in
// memory. last is when h was written: no unit lapses before that. 0 sets no such bound.
func (t *Table) takeLapsed(e *Entry, memory *[]lapse, h *limit.Holds, by uint32, last int64) []lapse {
	*memory = (*memory)[:0]
	for {
		eighth, units, ok := h.Lapse(by)
		if !ok {
			return *memory
		}
		at := max(last, min(e.Now, t.lapsedAt(e, eighth)))
		*memory = append(*memory, lapse{at, units})
	}
}

// lapsedAt is when what was held in an eighth lapses, by the clock of the windows: when the ninth eighth
// after it begins. The present eighth began heldNs%each ago.
func (t *Table) lapsedAt(e *Entry, eighth uint32) int64 {
	each := t.holdWindow().EighthNs()
	ninth := eighth + limit.HoldParts + 1
	since := int64(int32(t.presentEighth(e) - ninth)) // how many eighths ago that one began
	return e.CallerNs - e.heldNs%each - since*each
}

// chargeLapses charges each lapse in turn, at its instant, to u, which was written at last. It
// returns the instant of u afterwards. w has the key's limits.
func chargeLapses(w *limit.Window, u *limit.Usage, last int64, lapses []lapse) int64 {
	for _, l := range lapses {
		w.Roll(u, last, l.at)
		w.Add(u, l.at, l.units)
		last = l.at
	}
	return last
}

// chargeLapsesByRule is chargeLapses for a key whose own limits are not known: w has the rule's.
func chargeLapsesByRule(w *limit.Window, u *limit.Usage, last int64, lapses []lapse) int64 {
	for _, l := range lapses {
		w.Charge(u, last, l.at, l.units)
		last = l.at
	}
	return last
}

// readHolds reads what is held of the key. Its record, written at last, holds some of it. The
// floor holds some too if the key may have been evicted. readHolds returns the units of the
// record that have lapsed, in memory, for readRecord to charge.
func (t *Table) readHolds(e *Entry, memory *[]lapse, last int64) (lapses []lapse) {
	shared := uint32(0) // in the floor
	if e.slot < 0 || e.page.shares(&t.layout, e.slot) {
		shared = e.floorHolds.Total()
	}
	if e.slot >= 0 {
		e.holds = e.page.holds(&t.layout, e.slot)
		lapses = t.takeLapsed(e, memory, &e.holds, t.presentEighth(e), last)
	} else {
		e.holds = limit.Holds{Eighth: t.presentEighth(e)}
	}
	t.setHeldUnits(e, limit.AddSaturating(shared, e.holds.Total()))
	return lapses
}

// chargeFloorLapses brings what the floor holds to the present, in e's page. The floor does not
// know which key held the units that have lapsed. So they are charged to the floor, and each key that may have
// held them is evicted, so that it starts from the floor. It reports whether it has charged any.
//
// An example: 5 units that the floor holds have lapsed. The floor has used 20, record A 30, and B 10. A shares
// what the floor holds, because its key came back while the floor held; B was there before, and does not.
//
//	                         floor  A        B
//	before                   20     30       10
//	chargeFloor              25     30       10   the 5 may be of any key that was evicted
//	evictSharer, A + 5 = 35  35     evicted  10   the 5 may be A's: the floor covers 25 and 35, and A starts from it
//
// The order matters: a floor that covers A already would be charged the same 5 once more, and at a later
// instant than that of the lapse, because evictSharer rolls the floor on.
func (t *Table) chargeFloorLapses(e *Entry) bool {
	e.floorHolds = e.page.holds(&t.layout, ofFloor)
	lapses := t.takeLapsed(e, &e.memory.floorLapses, &e.floorHolds, t.presentEighth(e), 0)
	if len(lapses) == 0 {
		return false
	}
	e.page.setHolds(&t.layout, ofFloor, &e.floorHolds)
	if t.layout.counts == 0 { // no window to charge
		return false
	}
	for _, l := range lapses {
		t.chargeFloor(e, e.rule, l.at, l.units)
	}
	for slot := range t.layout.Slots {
		if !e.page.free(&t.layout, slot) && e.page.shares(&t.layout, slot) {
			t.evictSharer(e, slot, lapses)
		}
	}
	return true
}

// evictSharer evicts the slot's record, because its key may have held what has lapsed in the
// floor: these units are charged to its usage too, before that goes into the floor.
func (t *Table) evictSharer(e *Entry, slot int, floorLapses []lapse) {
	last := t.recordTime(e, slot)
	lapses := t.moveHoldsToFloor(e, &e.memory.recordLapses, slot, last)
	for _, l := range floorLapses {
		lapses = append(lapses, lapse{max(l.at, last), l.units})
	}
	e.memory.recordLapses = lapses // append may have replaced the memory by a larger one, to be kept
	slices.SortStableFunc(lapses, func(a, b lapse) int { return cmp.Compare(a.at, b.at) })
	at := max(lapses[len(lapses)-1].at, e.page.floorTime())
	t.rollFloor(e, at, true)
	t.addToFloor(e, slot, last, at, lapses)
	clear(e.page.record(&t.layout, slot))
	if slot == e.slot {
		e.slot = -1
	}
}

// moveHoldsToFloor moves what the slot's record, written at last, holds to the floor, as of the
// newest eighth that one of the two or the worker knows. It charges to the floor what has lapsed
// there by then, and returns what has lapsed in the record, in memory, for its caller to charge.
func (t *Table) moveHoldsToFloor(e *Entry, memory *[]lapse, slot int, last int64) (lapses []lapse) {
	h := e.page.holds(&t.layout, slot)
	newest := t.presentEighth(e)
	for _, known := range [...]uint32{h.Eighth, e.floorHolds.Eighth} {
		if int32(known-newest) > 0 { // also where eighths begin anew after the largest
			newest = known
		}
	}
	for _, l := range t.takeLapsed(e, &e.memory.otherLapses, &e.floorHolds, newest, 0) {
		t.chargeFloor(e, e.rule, l.at, l.units)
	}
	lapses = t.takeLapsed(e, memory, &h, newest, last)
	e.floorHolds.Join(&h)
	e.page.setHolds(&t.layout, ofFloor, &e.floorHolds)
	return lapses
}
