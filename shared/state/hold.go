package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// A hold is units that a running request keeps of its key, because only its end says what it
// costs or frees its slot. It ends in one of two ways: Settle charges the cost, or the hold
// lapses, because no stream has renewed it for long, and its units are charged.
//
//	Hold          the units of one running request; its stream keeps it
//	limit.Holds   all units that a record or a floor holds, by eighth
//	Held          all units that are held of one key: by its record, and by the floor
//
// Units are counted by the eighth of the hold's length in which their stream was last known
// to run, see limit.Holds. They lie in the last column of a table, a Concurrency: in the
// record of their key, or in the page's floor if that record was evicted, never in both.
//
//	 Hold
//	  v        evicted: moveHoldsToFloor
//	record ----------------------------> floor     Renew moves the units to the present eighth, here as there
//	  | |                                 | |
//	  | + lapses: readHolds finds it,     | + lapses: lapseFloor finds it, chargeFloorLapses charges the floor,
//	  |   readRecord charges the units    |   and evicts each record whose key may have held them
//	  v                                   v
//	Settle: the units are held no more, and the cost is charged to the key
//
// If the key is reset, what its record holds is gone, and nothing is charged: whereIs tells Settle and Renew so.

// Hold is all that it takes to renew or settle units that are held. It stays with the
// stream.
type Hold struct {
	Units  uint32
	serial uint32 // of the key's record
	epoch  uint32 // of the table; 0 = the units are charged, and nothing is held
	eighth uint32 // in which the stream was last known to run
	eachNs int64  // how long an eighth was then
	hash   uint64 // of the key, under the tables' seed
}

// InTable reports whether units were held in a table.
func (h *Hold) InTable() bool { return h.epoch != 0 }

// Hold holds units of the key until Settle, in one compare-and-swap, whether Check lets the
// hit pass or not. It returns the hold, and the status that Commit would. If that is not OK, nothing is held, and the
// hold is the zero value. Where a later configuration holds nothing, it counts the units at once.
func (t *Table) Hold(e *Entry, units uint32, evict bool) (h Hold, status Status) {
	h = Hold{Units: units, hash: e.hash}
	if e.page.Layout.HasHolds() {
		status = t.putHold(e, &h, evict)
	} else {
		status = t.Commit(e, units, evict)
	}
	if status != OK {
		return Hold{}, status
	}
	return h, OK
}

// putHold puts h into the key's record, and writes that.
func (t *Table) putHold(e *Entry, h *Hold, evict bool) Status {
	if status := t.beginRecord(e, evict); status != OK {
		return status
	}
	e.ownHolds.Add(e.ownHolds.Eighth, h.Units)
	e.held.Used = limit.AddSaturating(e.held.Used, h.Units)
	h.serial = e.page.Serial(e.slot)
	h.epoch = e.placement.epoch
	h.eighth = e.ownHolds.Eighth
	h.eachNs = e.page.Layout.HoldsWindow.EighthNs()
	return t.writeRecord(e)
}

// Settle ends a hold and charges what its request really cost at now, without a check. The units may be charged
// already, because the hold has lapsed, or was never InTable. Then unitsCharged is set, and only what the cost is
// beyond them is charged. If the key has no record and there is no slot for one, the floor is charged. If status is not
// OK, nothing has changed.
func (t *Table) Settle(
	s *Scratch, limits Limits, h Hold, now int64, cost uint32,
) (unitsCharged bool, status Status) {
	return t.settle(&s.entry, limits, h, now, cost)
}

// RefundHold undoes a Hold, because another rule has denied the request. It reports whether the units are held no more.
// If so, e tells how the key stands without them.
func (t *Table) RefundHold(e *Entry, limits Limits, h Hold, now int64) bool {
	_, status := t.settle(e, limits, h, now, 0)
	e.readOnly = true
	if status == OK && e.page.Layout.HasHolds() {
		e.sumHeld()
	}
	return status == OK
}

func (t *Table) settle(
	e *Entry, limits Limits, h Hold, now int64, cost uint32,
) (unitsCharged bool, status Status) {
	e.hash = h.hash
	for range MaxRetries {
		if status := t.rereadToChange(e, limits, now); status != OK {
			return false, status
		}
		charge := cost
		where := e.whereIs(&h)
		switch where {
		case HeldInRecord, HeldInFloor:
			e.moveHold(where, &h, 0) // releases them
		case HoldCharged:
			charge -= min(cost, h.Units)
		case HoldGone: // nothing is held, and nothing was charged
		}
		if status := t.chargeAndWrite(e, where, charge); status != Mismatch {
			return where == HoldCharged, status
		}
	}
	return false, Failed
}

// Renew says that the stream of h is alive. It returns where it has found the units, if status is OK: if they are not
// held any more, nothing changes.
func (t *Table) Renew(s *Scratch, limits Limits, h *Hold, now int64) (found HoldState, status Status) {
	e := &s.entry
	e.hash = h.hash
	for range MaxRetries {
		if status := t.rereadToChange(e, limits, now); status != OK {
			return HoldGone, status
		}
		found = e.whereIs(h)
		if !found.isHeld() {
			return found, OK
		}
		eighth := e.moveHold(found, h, h.Units)
		status := t.chargeAndWrite(e, found, 0)
		if status == OK {
			h.eighth = eighth
			h.eachNs = e.page.Layout.HoldsWindow.EighthNs()
		}
		if status != Mismatch {
			return found, status
		}
	}
	return HoldGone, Failed
}

// rereadToChange is Reread, for a caller that writes the page.
func (t *Table) rereadToChange(e *Entry, limits Limits, now int64) Status {
	if status := t.Reread(e, limits, now); status != OK {
		return status
	}
	return t.startChange(&e.loadedPage)
}

// IsDue reports whether h has not been renewed in the present eighth, by the holds' clock. A Split closes the table,
// but a sibling may share it, so its holds count on. Then IsDue goes by the last placement, and Renew opens the table.
func (t *Table) IsDue(h *Hold, holdNs HoldTime) bool {
	if t.placement == nil || !t.placement.layout.HasHolds() || !h.InTable() {
		return false
	}
	w := t.placement.layout.HoldsWindow
	end := (int64(h.eighthBy(w)) + 1) * w.EighthNs()
	return int64(holdNs) >= end
}

// chargeAndWrite charges units to the key whose hold was in that state, and writes what this and moveHold have changed:
//
//	units   where                       what is written
//	> 0     any; the key has a record   that record
//	> 0     any; it has none            a new record, or the floor if the page has no slot for one
//	0       HeldInRecord                the key's record
//	0       HeldInFloor                 the floor
//	0       HoldCharged, HoldGone       nothing
func (t *Table) chargeAndWrite(e *Entry, where HoldState, units uint32) Status {
	if units == 0 {
		switch where {
		case HeldInRecord:
			return t.writeRecord(e)
		case HeldInFloor:
			return t.write(&e.loadedPage)
		default:
			return OK
		}
	}
	switch status := t.beginRecord(e, false); status {
	case OK:
	case Full:
		e.chargeFloor(&e.windows, e.Now, units)
		return t.write(&e.loadedPage)
	default:
		return status
	}
	for column := range e.page.Layout.Counting {
		e.windows.at(column).Add(&e.usage[column], e.Now, units)
	}
	return t.writeRecord(e)
}

// HoldState says where the units of a hold are, or why they are not held any more.
type HoldState uint8

// The states.
const (
	HeldInRecord HoldState = iota // by the key's record
	HeldInFloor                   // by the page's floor, because the record was evicted
	HoldCharged                   // not held any more: they were charged when the hold lapsed, or at once
	HoldGone                      // not held any more, and not charged: the key was reset, or the page stopped holding
)

func (s HoldState) isHeld() bool { return s <= HeldInFloor }

// whereIs returns the state of h as of Read.
func (e *Entry) whereIs(h *Hold) HoldState {
	if !h.InTable() {
		return HoldCharged
	}
	if !e.page.Layout.HasHolds() || h.epoch < e.page.HoldsSince() {
		return HoldGone
	}
	where := HeldInFloor
	switch {
	case e.slot >= 0 && e.page.Serial(e.slot) == h.serial:
		where = HeldInRecord
	case e.page.MayBeForgotten(h.serial): // then it is taken for reset
		return HoldGone
	}
	if e.hasLapsed(h) {
		return HoldCharged
	}
	return where
}

// moveHold takes h's units out of the record or the floor, and holds so many units there in
// the present eighth instead: all of them to renew, 0 to release. It returns that eighth. The floor's holds go into
// the page; the record's are written with its usage.
func (e *Entry) moveHold(where HoldState, h *Hold, units uint32) (eighth uint32) {
	holds := e.ownHolds
	if where == HeldInFloor {
		holds = e.page.FloorHolds()
		holds.AdvanceTo(e.presentEighth()) // what lapses, lapseFloor has removed
	}
	holds.Remove(h.eighthBy(e.page.Layout.HoldsWindow), h.Units)
	holds.Add(holds.Eighth, units)
	if where == HeldInFloor {
		e.page.SetFloorHolds(&holds)
	} else {
		e.ownHolds = holds
	}
	return holds.Eighth
}

// hasLapsed reports whether h's units are too old to be held, because nobody renewed them: by the length that h knows,
// or by the present one, if a policy has changed it since.
func (p *timedPage) hasLapsed(h *Hold) bool {
	byKnown := int32(eighthAt(p.holdNs, h.eachNs) - h.eighth)
	byPresent := int32(p.presentEighth() - h.eighthBy(p.page.Layout.HoldsWindow))
	return max(byKnown, byPresent) > limit.HoldParts
}

// eighthBy is the eighth of w, the window of holds, in which h's units lie unless they have lapsed. An eighth of
// another length may span several of the present ones: then it is the one in which it ends, for example 7 if the stream
// was last known to run in eighth 3 of 20 s, which ends at 80 s, and eighths are 10 s long now.
func (h *Hold) eighthBy(w *limit.Window) uint32 {
	return w.EighthBy((int64(h.eighth) + 1) * h.eachNs)
}
