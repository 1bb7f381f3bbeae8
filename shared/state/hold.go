package state

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A rule that learns only from the answer what a request costs holds units until then.
// They lie in the last column of its table, a Concurrency: in the record of the key that
// holds them, and in the page's floor if that record was evicted. A unit lies in one of
// the two only, until it is settled, renewed into the present eighth of the hold, or
// lapses; what lapses is charged.

// Receipt is all that it takes to settle units that are held. It stays with the stream.
type Receipt struct {
	Units  uint32
	number uint32 // of the key's record
	epoch  uint32 // of the table; 0 = the units are charged, and nothing is held
	eighth uint32 // in which the stream was last known to run
	eachNs int64  // how long an eighth was then
	hash   uint64 // of the key, under the tables' seed
}

// InTable reports whether units were held in a table.
func (r *Receipt) InTable() bool { return r.epoch != 0 }

// Hold holds units of the key until Settle, in one compare-and-swap, whether Check lets the
// hit pass or not. It returns the same as Commit, and the receipt.
func (t *Table) Hold(e *Entry, units uint32, evict bool) (Receipt, Status) {
	r := Receipt{Units: units, hash: e.hash}
	if !t.layout.holds { // a later configuration holds nothing
		return r, t.Commit(e, units, evict)
	}
	if status := t.begin(e, evict); status != OK {
		return r, status
	}
	e.held.Add(e.held.Eighth, units)
	e.usage[t.layout.counts].Used = limit.AddSaturating(e.usage[t.layout.counts].Used, units)
	r.number, r.epoch = e.page.number(&t.layout, e.slot)&^sharesBit, t.epoch
	r.eighth, r.eachNs = e.held.Eighth, t.holdWindow().EighthNs()
	return r, t.finish(e, false)
}

// Settle ends the hold of r and charges what it really cost at now, without a check. What
// has lapsed is charged already. The charge of a key without a record for which there is no
// slot goes to the floor. Where status is not OK nothing has changed.
func (t *Table) Settle(e *Entry, key Key, r Receipt, now int64, cost uint32) (lapsed bool, status Status) {
	return t.answer(e, key, &r, now, cost, false)
}

// Renew says that the stream of r is alive. It reports whether the hold has lapsed, or was
// reset: then nothing has changed.
func (t *Table) Renew(e *Entry, key Key, r *Receipt, now int64) (lapsed bool, status Status) {
	return t.answer(e, key, r, now, 0, true)
}

// IsDue reports whether r has not been renewed in the present eighth, by the holds' clock.
func (t *Table) IsDue(r *Receipt, heldNs int64) bool {
	return t.open && t.layout.holds && r.epoch != 0 && heldNs >= (int64(t.eighthOf(r))+1)*t.holdWindow().EighthNs()
}

// answer is Settle, or Renew.
func (t *Table) answer(e *Entry, key Key, r *Receipt, now int64, cost uint32, renew bool) (lapsed bool, status Status) {
	e.hash = r.hash
	for range MaxRetries {
		if status := t.Reread(e, key, now); status != OK {
			return false, status
		}
		e.unshare()
		charge, held := cost, t.ringOf(e, r)
		if lapsed = r.epoch == 0 || held != nil && t.hasLapsed(e, held, r); lapsed {
			charge -= min(cost, r.Units)
		}
		switch {
		case lapsed || held == nil:
			if renew {
				return true, OK
			}
		default:
			t.endHold(e, held, r, renew)
		}
		if status = t.charge(e, charge); status != Mismatch {
			if renew && status == OK {
				r.eighth, r.eachNs = held.Eighth, t.holdWindow().EighthNs()
			}
			return lapsed, status
		}
	}
	return false, Failed
}

// ringOf returns where r's units lie if they have not lapsed: the key's record, or the floor
// as of now; nil where they are forgotten.
func (t *Table) ringOf(e *Entry, r *Receipt) *limit.Held {
	switch {
	case r.epoch == 0 || !t.layout.holds || r.epoch < e.page.since(&t.layout):
		return nil
	case e.slot >= 0 && e.page.number(&t.layout, e.slot)&^sharesBit == r.number:
		return &e.held
	case e.page.mayBeForgotten(&t.layout, r.number):
		return nil
	}
	return &e.floorHeld
}

// eighthOf is where r's units lie, if they do; where the hold's length has changed, at the
// earliest.
func (t *Table) eighthOf(r *Receipt) uint32 {
	return t.holdWindow().EighthBy((int64(r.eighth) + 1) * r.eachNs)
}

// hasLapsed reports whether r's units are no more among those held. Where the hold's length
// has changed, they may have lapsed before; where it was shortened, they may be found by age
// alone.
func (t *Table) hasLapsed(e *Entry, held *limit.Held, r *Receipt) bool {
	if int32(uint32(e.HeldNs/r.eachNs)-r.eighth) > limit.HoldParts {
		return true
	}
	eighth := t.eighthOf(r)
	return !held.Has(eighth) && int32(e.eighth(t)-eighth) >= limit.HoldParts
}

// endHold removes r's units from where they lie; with renew, into the present eighth.
func (t *Table) endHold(e *Entry, held *limit.Held, r *Receipt, renew bool) {
	held.Remove(t.eighthOf(r), r.Units)
	if renew {
		held.Add(held.Eighth, r.Units)
	}
	if held == &e.floorHeld {
		e.page.setHeld(&t.layout, ofFloor, held)
	}
}

// charge counts units in the key's record, or in the floor where the page has no slot for
// one, and writes.
func (t *Table) charge(e *Entry, units uint32) Status {
	if units > 0 && e.slot < 0 && t.begin(e, false) != OK {
		t.chargeFloor(e, e.windows, e.Now, units)
	}
	if e.slot < 0 {
		return t.write(e)
	}
	if units > 0 {
		for i := range t.layout.counts {
			e.windows[i].Add(&e.usage[i], e.Now, units)
		}
	}
	return t.finish(e, false)
}

func (t *Table) holdWindow() *limit.Window { return &t.layout.Windows[t.layout.counts] }

// eighth is the present one.
func (e *Entry) eighth(t *Table) uint32 { return uint32(e.HeldNs / t.holdWindow().EighthNs()) }

// lapse is units whose hold nobody has renewed in time.
type lapse struct {
	at    int64
	units uint32
}

// lapses has h lapse to an eighth, and appends what has lapsed after last, when its
// record was written.
func (t *Table) lapses(e *Entry, h *limit.Held, to uint32, last int64, list []lapse) []lapse {
	for {
		eighth, units, ok := h.Lapse(to)
		if !ok {
			return list
		}
		list = append(list, lapse{max(last, min(e.Now, t.lapsedAt(e, eighth))), units})
	}
}

// lapsedAt is when what was held in an eighth lapses, by the clock of the windows.
func (t *Table) lapsedAt(e *Entry, eighth uint32) int64 {
	each := t.holdWindow().EighthNs()
	since := int64(int32(e.eighth(t)-eighth)) - limit.HoldParts - 1 // eighths between then and the present one
	return e.CallerNs - e.HeldNs%each - since*each
}

// charged rolls u, written at last, to each lapse in turn and charges it. It returns when u
// is as of.
func charged(w *limit.Window, u *limit.Usage, last int64, lapses []lapse) int64 {
	for _, l := range lapses {
		w.Roll(u, last, l.at)
		w.Add(u, l.at, l.units)
		last = l.at
	}
	return last
}

// chargeAll is charged where w has the rule's limits, and u is of some key.
func chargeAll(w *limit.Window, u *limit.Usage, last int64, lapses []lapse) int64 {
	for _, l := range lapses {
		w.Charge(u, last, l.at, l.units)
		last = l.at
	}
	return last
}

// lapseFloor brings what the floor holds to the present. What has lapsed is charged to the
// floor, and the keys that it may be of start from there: their records are evicted. It
// reports whether the floor has changed.
func (t *Table) lapseFloor(e *Entry) (changed bool) {
	l := &t.layout
	e.floorHeld = e.page.held(l, ofFloor)
	lapses := t.lapses(e, &e.floorHeld, e.eighth(t), 0, e.floorLapses[:0])
	if e.floorLapses = lapses; len(lapses) == 0 {
		return false
	}
	e.page.setHeld(l, ofFloor, &e.floorHeld)
	if l.counts == 0 {
		return false
	}
	for _, lapse := range lapses { // before the floor is rolled on to what its sharers have lost
		t.chargeFloor(e, e.rule, lapse.at, lapse.units)
	}
	for slot := range l.Slots {
		if e.page.free(l, slot) || !e.page.shares(l, slot) {
			continue
		}
		last := t.recordTime(e, slot)
		t.evictHolds(e, slot, last)
		for _, l := range lapses { // they may be its own
			e.lapses = append(e.lapses, lapse{max(l.at, last), l.units})
		}
		slices.SortStableFunc(e.lapses, func(a, b lapse) int { return cmp.Compare(a.at, b.at) })
		at := max(e.lapses[len(e.lapses)-1].at, e.page.floorTime())
		t.rollFloor(e, at, true)
		t.addToFloor(e, slot, last, at)
		clear(e.page.record(l, slot))
		if slot == e.slot {
			e.slot = -1
		}
	}
	return true
}

// chargeFloor counts units in the floor, which has no record's limits: windows has those
// of the key, or the rule's where the key is not known.
func (t *Table) chargeFloor(e *Entry, windows []limit.Window, at int64, units uint32) {
	at = max(at, e.page.floorTime())
	t.rollFloor(e, at, true)
	for i := range t.layout.counts {
		f := e.page.floor(&t.layout, i)
		e.page.setFloor(&t.layout, i, e.rule[i].ChargeFloor(&windows[i], f, at, units, e.other[:0]))
	}
}

// evictHolds moves what the slot's record holds to the floor, as of the newest of the
// eighths that the two and the worker know. What has lapsed of it is in e.lapses then.
func (t *Table) evictHolds(e *Entry, slot int, last int64) {
	if e.lapses = e.lapses[:0]; !t.layout.holds {
		return
	}
	h, f, to := e.page.held(&t.layout, slot), &e.floorHeld, e.eighth(t)
	for _, known := range [...]uint32{h.Eighth, f.Eighth} {
		if int32(known-to) > 0 {
			to = known
		}
	}
	e.otherLapses = t.lapses(e, f, to, 0, e.otherLapses[:0])
	for _, l := range e.otherLapses {
		t.chargeFloor(e, e.rule, l.at, l.units)
	}
	e.lapses = t.lapses(e, &h, to, last, e.lapses)
	f.Join(&h)
	e.page.setHeld(&t.layout, ofFloor, f)
}

// Held is how many units of the key are held, as of Read.
func (t *Table) Held(e *Entry) uint32 {
	if !t.layout.holds {
		return 0
	}
	return e.usage[t.layout.counts].Used
}

// readHeld reads what is held of the key: by its record, written at last, and by the floor
// if the key may be one of those that were evicted.
func (t *Table) readHeld(e *Entry, last int64) {
	units := uint32(0)
	if e.slot < 0 || e.page.shares(&t.layout, e.slot) {
		units = e.floorHeld.Total()
	}
	e.held, e.lapses = limit.Held{Eighth: e.eighth(t)}, e.lapses[:0]
	if e.slot >= 0 {
		e.held = e.page.held(&t.layout, e.slot)
		e.lapses = t.lapses(e, &e.held, e.eighth(t), last, e.lapses)
	}
	e.usage[t.layout.counts] = limit.Usage{Used: limit.AddSaturating(units, e.held.Total())}
}
