package state

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A hold is units that a running request keeps of its key, because only its end says what it
// costs or frees its slot. It ends in one of two ways: Settle charges the cost, or the hold
// lapses, because no stream has renewed it for long, and its units are charged.
//
// Units are counted by the eighth of the hold's length in which their stream was last known
// to run, see limit.Holds. They lie in the last column of a table, a Concurrency: in the
// record of their key, or in the page's floor if that record was evicted, never in both.
//
//	 Hold
//	  ↓         evicted: moveHoldsToFloor
//	record ───────────────────────────────→ floor      Renew moves the units to the present eighth,
//	  │ │                                    │ │       here as there
//	  │ └ lapses: readHolds finds it,        │ └ lapses: chargeFloorLapses charges the floor, and evicts
//	  │   readRecord charges the units       │   each record whose key may have held the units
//	  ↓                                      ↓
//	Settle: the units are held no more, and the cost is charged to the key
//
// What is done with units, each by one name:
//
//	takeLapsed          takes those that have lapsed out of what is held, as a list of lapses
//	chargeLapses        charges a list of lapses to the usage of one window
//	chargeLapsesByRule  the same, if only the rule's limits are known
//	chargeFloorLapses   does both for the floor, and evicts the records that it concerns
//	chargeFloor         counts units in the floor's windows (evict.go)
//	chargeAndWrite      counts units in the record, or else in the floor, and writes the page
//	moveHold            takes one hold's units out, and holds them, or none, in the present eighth
//	moveHoldsToFloor    moves all holds of a record that is evicted
//
// If the key is reset, what its record holds is gone, and nothing is charged: holdState tells Settle so.
//
// A record's column, little endian:
//
//	0  u32  newest eighth
//	4  u32  number of the record in its page; top bit: the floor may hold units of the key
//	8       9 × u32 units
//
// The floor's:
//
//	 0  u32  newest eighth
//	 4  u32  number of the record that was placed last
//	 8       9 × u32 units
//	44  u32  epoch in which the page began to hold
//	48  u32  number up to which records that are gone may have been reset, 0 = none
const (
	offNumber       = 4
	offUnits        = 8
	holdsBytes      = offUnits + (limit.HoldParts+1)*4
	offSince        = holdsBytes
	offForgotten    = holdsBytes + 4
	holdsFloorBytes = holdsBytes + 8

	// sharesBit, in a record's number, says that the floor may hold units of the key.
	sharesBit = 1 << 31
	// firstNumber is that of records from before the page held.
	firstNumber = 1
	// ofFloor means the floor where the number of a slot is asked for.
	ofFloor = -1
)

// Hold is all that it takes to renew or settle units that are held. It stays with the
// stream.
type Hold struct {
	Units  uint32
	number uint32 // of the key's record
	epoch  uint32 // of the table; 0 = the units are charged, and nothing is held
	eighth uint32 // in which the stream was last known to run
	eachNs int64  // how long an eighth was then
	hash   uint64 // of the key, under the tables' seed
}

// InTable reports whether units were held in a table.
func (h *Hold) InTable() bool { return h.epoch != 0 }

// Hold holds units of the key until Settle, in one compare-and-swap, whether Check lets the
// hit pass or not. It returns the hold, and the status that Commit would.
func (t *Table) Hold(e *Entry, units uint32, evict bool) (Hold, Status) {
	h := Hold{Units: units, hash: e.hash}
	if !t.layout.holds { // a later configuration holds nothing
		return h, t.Commit(e, units, evict)
	}
	if status := t.begin(e, evict); status != OK {
		return h, status
	}
	e.holds.Add(e.holds.Eighth, units)
	t.setHeldUnits(e, limit.AddSaturating(t.heldUnits(e), units))
	h.number = e.page.number(&t.layout, e.slot) &^ sharesBit
	h.epoch = t.epoch
	h.eighth = e.holds.Eighth
	h.eachNs = t.holdWindow().EighthNs()
	return h, t.finish(e)
}

// Settle ends a hold and charges what its request really cost at now, without a check. If
// the hold has lapsed, its units are charged already. If the key has no record and there is
// no slot for one, the floor is charged. If status is not OK, nothing has changed.
func (t *Table) Settle(e *Entry, key Key, h Hold, now int64, cost uint32) (lapsed bool, status Status) {
	e.hash = h.hash
	for range MaxRetries {
		if status := t.Reread(e, key, now); status != OK {
			return false, status
		}
		e.unshare()
		charge := cost
		state := t.holdState(e, &h)
		switch state {
		case inRecord, inFloor:
			t.moveHold(e, state, &h, 0)
		case isCharged:
			charge -= min(cost, h.Units)
		case isGone: // nothing is held, and nothing was charged
		}
		if status := t.chargeAndWrite(e, charge); status != Mismatch {
			return state == isCharged, status
		}
	}
	return false, Failed
}

// Renew says that the stream of h is alive. It reports lapsed if the units are not held any
// more; then nothing has changed.
func (t *Table) Renew(e *Entry, key Key, h *Hold, now int64) (lapsed bool, status Status) {
	e.hash = h.hash
	for range MaxRetries {
		if status := t.Reread(e, key, now); status != OK {
			return false, status
		}
		e.unshare()
		state := t.holdState(e, h)
		if state != inRecord && state != inFloor {
			return true, OK
		}
		eighth := t.moveHold(e, state, h, h.Units)
		switch status := t.chargeAndWrite(e, 0); status {
		case OK:
			h.eighth = eighth
			h.eachNs = t.holdWindow().EighthNs()
			return false, OK
		case Mismatch:
		default:
			return false, status
		}
	}
	return false, Failed
}

// IsDue reports whether h has not been renewed in the present eighth, by the holds' clock.
func (t *Table) IsDue(h *Hold, heldNs int64) bool {
	if !t.open || !t.layout.holds || !h.InTable() {
		return false
	}
	end := (int64(t.eighthOf(h)) + 1) * t.holdWindow().EighthNs()
	return heldNs >= end
}

// Held is how many units of the key are held, by its record and by the floor, as of Read.
func (t *Table) Held(e *Entry) uint32 {
	if !t.layout.holds {
		return 0
	}
	return t.heldUnits(e)
}

// heldUnits is Held of a table that holds.
func (t *Table) heldUnits(e *Entry) uint32 { return e.usage[t.layout.counts].Used }

func (t *Table) setHeldUnits(e *Entry, units uint32) {
	e.usage[t.layout.counts] = limit.Usage{Used: units}
}

// chargeAndWrite counts units in the key's record, or in the floor if the page has no slot for a
// record, and writes the page.
func (t *Table) chargeAndWrite(e *Entry, units uint32) Status {
	if units > 0 && e.slot < 0 {
		status := t.begin(e, false) // finds a slot for the key's record
		if status != OK {
			t.chargeFloor(e, e.windows, e.Now, units)
		}
	}
	if e.slot < 0 {
		return t.write(e)
	}
	if units > 0 {
		for i := range t.layout.counts {
			e.windows[i].Add(&e.usage[i], e.Now, units)
		}
	}
	return t.finish(e)
}

// holdState says where the units of a hold are, or why they are not held any more.
type holdState uint8

const (
	inRecord  holdState = iota // held by the key's record
	inFloor                    // held by the page's floor, because the record was evicted
	isCharged                  // not held any more: they were charged when the hold lapsed, or at once
	isGone                     // not held any more, and not charged: the key was reset, or the page stopped holding
)

// holdState returns the state of h as of Read.
func (t *Table) holdState(e *Entry, h *Hold) holdState {
	if !h.InTable() {
		return isCharged
	}
	if !t.layout.holds || h.epoch < e.page.since(&t.layout) {
		return isGone
	}
	state := inFloor
	switch {
	case e.slot >= 0 && e.page.number(&t.layout, e.slot)&^sharesBit == h.number:
		state = inRecord
	case e.page.mayBeForgotten(&t.layout, h.number):
		return isGone
	}
	if t.hasLapsed(e, e.holdsIn(state), h) {
		return isCharged
	}
	return state
}

// holdsIn returns the holds of the key's record, or the floor's, as of Read.
func (e *Entry) holdsIn(state holdState) *limit.Holds {
	if state == inRecord {
		return &e.holds
	}
	return &e.floorHolds
}

// moveHold takes h's units out of the record or the floor, and holds so many units there in
// the present eighth instead. It returns that eighth. The floor's holds go into the page; the
// record's are written with its usage.
func (t *Table) moveHold(e *Entry, state holdState, h *Hold, units uint32) (eighth uint32) {
	holds := e.holdsIn(state)
	holds.Remove(t.eighthOf(h), h.Units)
	holds.Add(holds.Eighth, units)
	if state == inFloor {
		e.page.setHolds(&t.layout, ofFloor, holds)
	}
	return holds.Eighth
}

// hasLapsed reports whether h's units have left holds because nobody renewed them in time. It
// tells it in two ways, because a policy may have changed the hold's length since. By the
// length that h knows, they are too old. Or by the present length, their eighth is past and
// holds has nothing in it.
func (t *Table) hasLapsed(e *Entry, holds *limit.Holds, h *Hold) bool {
	age := int32(uint32(e.heldNs/h.eachNs) - h.eighth) // in eighths of the length that h knows
	if age > limit.HoldParts {
		return true
	}
	eighth := t.eighthOf(h)
	return !holds.Has(eighth) && int32(t.presentEighth(e)-eighth) >= limit.HoldParts
}

func (t *Table) holdWindow() *limit.Window { return &t.layout.Windows[t.layout.counts] }

// presentEighth is the eighth of the holds' clock as of Read.
func (t *Table) presentEighth(e *Entry) uint32 { return uint32(e.heldNs / t.holdWindow().EighthNs()) }

// eighthOf is the eighth in which h's units lie unless they have lapsed. An eighth of another
// length may span several of the present ones: then it is the earliest of these.
func (t *Table) eighthOf(h *Hold) uint32 {
	return t.holdWindow().EighthBy((int64(h.eighth) + 1) * h.eachNs)
}

// A hold lapses when its stream has not been known to run for eight whole eighths:
//
//	|  k  | k+1 |  ...  | k+8 | k+9 |
//	|---↑-|-----|- ... -|-----↑-----|
//	    renewed last          lapsedAt(k)
//
// A worker may find that much later. It charges the units as of lapsedAt(k).

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

// lapsedAt is when what was held in an eighth lapses, by the clock of the windows.
func (t *Table) lapsedAt(e *Entry, eighth uint32) int64 {
	each := t.holdWindow().EighthNs()
	since := int64(int32(t.presentEighth(e)-eighth)) - limit.HoldParts - 1 // eighths between then and the present one
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
// record that have lapsed, for readRecord to charge.
func (t *Table) readHolds(e *Entry, last int64) (lapses []lapse) {
	shared := uint32(0) // in the floor
	if e.slot < 0 || e.page.shares(&t.layout, e.slot) {
		shared = e.floorHolds.Total()
	}
	if e.slot >= 0 {
		e.holds = e.page.holds(&t.layout, e.slot)
		lapses = t.takeLapsed(e, &e.memory.recordLapses, &e.holds, t.presentEighth(e), last)
	} else {
		e.holds = limit.Holds{Eighth: t.presentEighth(e)}
	}
	t.setHeldUnits(e, limit.AddSaturating(shared, e.holds.Total()))
	return lapses
}

// chargeFloorLapses brings what the floor holds to the present, in e's page. The floor does not
// know which key held the units that have lapsed. So they are charged to the floor, and each key that may have
// held them is evicted, so that it starts from the floor. It reports whether it has charged any.
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
	for _, l := range lapses { // before evictSharer rolls the floor on
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
	lapses := t.moveHoldsToFloor(e, slot, last)
	for _, l := range floorLapses {
		lapses = append(lapses, lapse{max(l.at, last), l.units})
	}
	e.memory.recordLapses = lapses // they lie in this memory, and append may have moved it
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
// there by then, and returns what has lapsed in the record, for its caller to charge.
func (t *Table) moveHoldsToFloor(e *Entry, slot int, last int64) (lapses []lapse) {
	h := e.page.holds(&t.layout, slot)
	newest := t.presentEighth(e)
	for _, known := range [...]uint32{h.Eighth, e.floorHolds.Eighth} {
		if int32(known-newest) > 0 {
			newest = known
		}
	}
	for _, l := range t.takeLapsed(e, &e.memory.otherLapses, &e.floorHolds, newest, 0) {
		t.chargeFloor(e, e.rule, l.at, l.units)
	}
	lapses = t.takeLapsed(e, &e.memory.recordLapses, &h, newest, last)
	e.floorHolds.Join(&h)
	e.page.setHolds(&t.layout, ofFloor, &e.floorHolds)
	return lapses
}

// holdsOf returns the bytes of what a slot, or the floor, holds.
func (b page) holdsOf(l *Layout, slot int) []byte {
	if slot == ofFloor {
		return b[l.floorAt[l.counts]:][:holdsFloorBytes]
	}
	return b.usageOf(l, slot, l.counts)
}

// holds reads what the slot's record holds, or the floor.
func (b page) holds(l *Layout, slot int) (h limit.Holds) {
	p := b.holdsOf(l, slot)
	h.Eighth = le.Uint32(p)
	for i := range h.Units {
		h.Units[i] = le.Uint32(p[offUnits+4*i:])
	}
	return h
}

func (b page) setHolds(l *Layout, slot int, h *limit.Holds) {
	p := b.holdsOf(l, slot)
	le.PutUint32(p, h.Eighth)
	for i, n := range h.Units {
		le.PutUint32(p[offUnits+4*i:], n)
	}
}

// number is the number of the slot's record; with ofFloor, of the record placed last.
func (b page) number(l *Layout, slot int) uint32 { return le.Uint32(b.holdsOf(l, slot)[offNumber:]) }

func (b page) setNumber(l *Layout, slot int, n uint32) {
	le.PutUint32(b.holdsOf(l, slot)[offNumber:], n)
}

// numberRecord numbers a record that was placed. shares says that the key may be one of
// those whose holds the floor has.
func (b page) numberRecord(l *Layout, slot int, shares bool) {
	n := (b.number(l, ofFloor) + 1) &^ sharesBit
	b.setNumber(l, ofFloor, n)
	if shares {
		n |= sharesBit
	}
	b.setNumber(l, slot, n)
}

// shares reports whether the floor may hold units of the slot's key.
func (b page) shares(l *Layout, slot int) bool { return b.number(l, slot)&sharesBit != 0 }

// since is the epoch in which the page began to hold: what was held before is gone.
func (b page) since(l *Layout) uint32 { return le.Uint32(b.holdsOf(l, ofFloor)[offSince:]) }

// beginHolds has a page hold that did not.
func (b page) beginHolds(l *Layout) {
	le.PutUint32(b.holdsOf(l, ofFloor)[offSince:], b.epoch())
	b.setNumber(l, ofFloor, firstNumber)
}

// forget notes that the slot's record, which holds units, is reset: its holds are not in
// the floor.
func (b page) forget(l *Layout, slot int) {
	n := b.number(l, slot) &^ sharesBit
	if !b.mayBeForgotten(l, n) {
		le.PutUint32(b.holdsOf(l, ofFloor)[offForgotten:], n)
	}
}

// mayBeForgotten reports whether a record with that number that is gone may have been
// reset instead of evicted. The page only notes the last record that was, so this is not
// known of those before it. Numbers begin anew after the largest: a number is before last if it
// is less than half of all numbers behind it.
func (b page) mayBeForgotten(l *Layout, number uint32) bool {
	last := le.Uint32(b.holdsOf(l, ofFloor)[offForgotten:])
	return last != 0 && (last-number)&^sharesBit < sharesBit/2
}

// convertHolds copies what is held in a slot, or the floor, from a page of another layout.
func (b page) convertHolds(l *Layout, slot int, old page, from *Layout) {
	copy(b.holdsOf(l, slot), old.holdsOf(from, slot))
	h := old.holds(from, slot)
	h.Scale(&from.Windows[from.counts], &l.Windows[l.counts])
	b.setHolds(l, slot, &h)
}
