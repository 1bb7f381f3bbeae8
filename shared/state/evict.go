package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A key without a record takes a free slot of its page, else one whose record has expired.
// If all records are live, the one that uses least of the rule's limits is evicted: its
// usage is added to the page's floor, from which every key without a record starts. So an
// evicted key that comes back has at most what it had left.
//
// The arithmetic is that of limit.Window, a method for each step:
//
//	record --Floor, MergeFloors--> floor --Start--> usage --Inherit--> record
//	of a key that is evicted       of the page      of a key without   that the key gets
//	                                                a record, to check at its next hit
//
//	method        what it does                                          called by
//	Shift         moves the usage ahead as far as the floor is ahead    addToFloor
//	Floor         makes a floor of one record's usage                   addToFloor
//	MergeFloors   makes one floor that covers two                       addToFloor
//	RollFloor     drops what has ended by an instant                    endFloors, floorLives, startFromFloor
//	Start         makes a usage of the floor                            startFromFloor (entry.go)
//	Inherit       makes of that usage what a new record begins with     beginRecord (entry.go)
//	ChargeFloor   counts units whose key has no record                  chargeFloor
//	ChargeByRule  counts units that have lapsed in a record of          countedIn
//	              a key whose own limits are not known
//	ByRule        measures a record by the rule's limits                useOf
//
// A record ends in one of three ways, each of which frees its slot:
//
//	function     of which record                         what it has counted  the floor is rolled to
//	evict        the one that uses least                 goes into the floor  its record.now
//	evictSharer  of a key that may have held what has    goes into the floor  when the last of its units lapsed
//	             lapsed in the floor
//	drop         one that has expired, or of a key that  is forgotten         its record.now
//	             is reset
//
// Reset puts an empty record in place of the key's own, if the key would start from the floor (writeEmptyRecord).
//
// The floor's time never goes back: rollFloor goes on from there if an instant is earlier.

// makeRoom returns a free slot for a record of e's key. If there is none, it drops a record that has expired, or else
// evicts the one that uses least. It returns -1 if only that is left and evict is not set.
func (e *Entry) makeRoom(evict bool) int {
	if slot := e.page.FreeSlot(); slot >= 0 {
		// What has ended in the floor by now stays ended, also for a worker whose clock is behind. If nothing has, its
		// time may stay: no record goes.
		if floorTime, changed := e.endFloors(e.Now); changed {
			e.page.SetFloorTime(floorTime)
		}
		return slot
	}
	if slot := e.expiredSlot(); slot >= 0 {
		e.drop(slot)
		return slot
	}
	if !evict {
		return -1
	}
	slot := e.leastUsed()
	e.evict(slot)
	e.Evicted = true
	return slot
}

// expiredSlot returns a slot whose record has expired, or -1. No slot may be free.
func (p *presentPage) expiredSlot() int {
	for slot := range p.page.Layout.Slots {
		if p.hasExpired(slot) {
			return slot
		}
	}
	return -1
}

// hasExpired reports whether the slot's record has expired, by the caller's clock: Now may be ahead of it.
func (p *presentPage) hasExpired(slot int) bool { return p.expiry(slot) <= p.CallerNs }

// expiry returns when the slot's record expires: when it counts no more. That of a key that was reset, and has counted
// nothing since, does not expire while the floor counts or holds something: the key would start from it.
func (p *presentPage) expiry(slot int) int64 {
	end := p.countsUntil(slot)
	if end == 0 && p.page.WasReset(slot) && p.floorLives() {
		return math.MaxInt64
	}
	return end
}

// countsUntil returns when the slot's record counts in no window any more, 0 if it has counted nothing. If it holds,
// that is the earliest instant: its holds may be renewed, and what is charged for them counts on.
func (p *presentPage) countsUntil(slot int) (end int64) {
	r := p.recordIn(slot, p.Now)
	if p.page.Layout.HasHolds() {
		h := p.page.Holds(slot)
		r.lapsed = p.takeLapsed(&h, r.asOf)
		if newest, ok := h.Newest(); ok {
			// What is held counts now, so the record does not expire at p.Now.
			end = max(p.lapsedAt(newest), p.Now+1)
		}
	}
	for column := range p.page.Layout.Counting {
		c := p.countedIn(&r, column)
		end = max(end, p.rule.at(column).Expiry(&c.usage, c.asOf))
	}
	return end
}

// record is a record that is judged or evicted. It may be another key's, so it stays in the page as it is.
type record struct {
	slot   int
	asOf   int64  // as of when its usage stands: when it was written, or now if the clock was set back since
	now    int64  // the present, or asOf if that is later: no usage is rolled back
	lapsed lapses // of what it holds: countedIn charges it
}

// recordIn returns the slot's record at now. If the clock was set back since it was written, it is as of now and not of
// CallerNs, because it goes into the floor at now or later: it would age by the difference.
func (p *timedPage) recordIn(slot int, now int64) record {
	asOf := p.page.Time(slot)
	if p.isAhead(asOf) {
		asOf = now
	}
	return record{slot: slot, asOf: asOf, now: max(now, asOf)}
}

// counted is a usage, and as of when it stands.
type counted struct {
	usage limit.Usage
	asOf  int64
}

// countedIn returns what the record has counted in a column, as of r.asOf or the last lapse. If the clock was set back,
// it is moved back in a copy. What has lapsed is charged by the rule's limits, because the key's own are not known. A
// log lies in logMemory.
func (p *timedPage) countedIn(r *record, column page.Column) counted {
	w := p.rule.at(column)
	c := counted{p.decodeUsage(r.slot, column), p.page.Time(r.slot)}
	if r.asOf < c.asOf {
		w.SetBack(&c.usage, c.asOf, r.asOf)
		c.asOf = r.asOf
	}
	for _, l := range r.lapsed {
		w.ChargeByRule(&c.usage, c.asOf, l.at, l.units)
		c.asOf = l.at
	}
	return c
}

// Earliest returns when the first record of e's page expires: a new key waits for
// it if the page is full and the rule does not evict. It is limit.Never if no
// record expires by itself, and 0 if a slot is free: that one counts nothing.
func (e *Entry) Earliest() int64 {
	first := int64(math.MaxInt64)
	for slot := range e.page.Layout.Slots {
		first = min(first, e.expiry(slot))
	}
	if first == math.MaxInt64 {
		return limit.Never
	}
	return first
}

// drop forgets the slot's record, and sets the floor's time even if the record has expired. The key starts from the
// floor from now on, and is counted at the floor's time at the earliest. So a worker whose clock is behind, by which
// the record still counts, does not give the key new units before those of the record have ended.
func (p *presentPage) drop(slot int) {
	p.rollFloor(p.recordIn(slot, p.Now).now)
	p.page.Clear(slot)
}

// leastUsed returns the slot whose record uses least of the rule's limits; of several, the one that expires first.
func (p *presentPage) leastUsed() (least int) {
	var leastUse limit.Fraction
	var leastExpiry int64
	for slot := range p.page.Layout.Slots {
		use := p.useOf(slot)
		expiry := p.expiry(slot)
		if slot == 0 || use.Less(leastUse) || !leastUse.Less(use) && expiry < leastExpiry {
			least = slot
			leastUse = use
			leastExpiry = expiry
		}
	}
	return least
}

// useOf is how much of the rule's limits the slot's record uses: the most that it uses of a window's. Of a concurrency,
// that is what it holds. Beside other windows a concurrency is Unlimited, so each unit that is held counts as a whole
// limit. A record that holds stays longest therefore: in the floor, its holds would count for each key that starts
// there.
func (p *presentPage) useOf(slot int) limit.Fraction {
	r := p.recordIn(slot, p.Now)
	most := limit.Fraction{Limit: 1}
	for _, column := range p.placement.columnOf {
		if column == page.NoColumn {
			continue
		}
		var u limit.Usage
		w := p.rule.at(column)
		if column < p.page.Layout.Counting {
			c := p.countedIn(&r, column) // r.lapsed is empty: what is held counts below
			u = w.ByRule(c.usage, c.asOf, r.now)
		} else {
			h := p.page.Holds(slot)
			u.Used = h.Total()
		}
		if use := w.FractionUsed(&u, r.now); most.Less(use) {
			most = use
		}
	}
	return most
}

// evict adds what the slot's record uses and holds to the floor, and frees the slot.
func (p *presentPage) evict(slot int) {
	r := p.recordIn(slot, p.Now)
	if p.page.Layout.HasHolds() {
		r.lapsed = p.moveHoldsToFloor(&r)
	}
	p.addToFloor(&r, r.now)
	p.page.Clear(slot)
}

// lapseFloor takes out of the floor's holds what has lapsed, and charges it. It reports whether it has charged any:
// then any key may have lost its record. Before that, it rebases the floor if the clock was set back: what is evicted
// into it has counted in aligned windows, and these have ended by the time of a floor that is hours ahead.
func (p *timedPage) lapseFloor() (charged, rebased bool) {
	if !p.page.FloorIsHolding() {
		return false, false
	}
	holds := p.page.FloorHolds()
	lapsed := p.takeLapsed(&holds, noBound)
	if len(lapsed) == 0 {
		return false, false
	}
	p.page.SetFloorHolds(&holds)
	if p.page.Layout.Counting == 0 { // no window to charge
		return false, false
	}
	now, rebased := p.rebaseIfAhead(noRecord)
	rebasedRecord := p.chargeFloorLapses(lapsed, now)
	return true, rebased || rebasedRecord
}

// chargeFloorLapses charges what has lapsed of the floor's holds. The floor does not know which key held
// these units. So they are charged to the floor, and each key that may have held them is evicted, so that it
// starts from the floor.
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
func (p *timedPage) chargeFloorLapses(lapsed lapses, now int64) (rebased bool) {
	for _, l := range lapsed {
		p.chargeFloor(&p.rule, l.at, l.units)
	}
	for slot := range p.page.Layout.Slots {
		if !p.page.IsFree(slot) && p.page.Shares(slot) {
			rebased = p.evictSharer(slot, lapsed, now) || rebased
		}
	}
	return rebased
}

// evictSharer evicts the slot's record, because its key may have held what has lapsed in the
// floor: these units are charged to its usage too, before that goes into the floor. It reports whether the record was
// rebased for that.
func (p *timedPage) evictSharer(slot int, floorLapsed lapses, now int64) (rebased bool) {
	r := p.recordIn(slot, now)
	rebased = r.asOf < p.page.Time(slot)
	r.lapsed = p.joinLapses(p.moveHoldsToFloor(&r), floorLapsed, r.asOf)
	latest := r.lapsed[len(r.lapsed)-1] // there is one: floorLapsed is not empty
	p.addToFloor(&r, latest.at)
	p.page.Clear(slot)
	return rebased
}

// moveHoldsToFloor moves what the record holds to the floor. lapseFloor has taken out what has lapsed there. What has
// lapsed in the record is returned, for the caller to charge.
//
// The floor holds all as of the newest eighth of the two. Where the hold's length was shortened, either may be ahead of
// the present. An example: now is eighth 9, and the record is as of 11. The floor has 5 units of eighth 2. As of 11,
// the oldest eighth is 3, so the 5 lie there: they are held until 12 begins, which is one eighth longer.
func (p *timedPage) moveHoldsToFloor(r *record) (lapsed lapses) {
	h, floor := p.page.Holds(r.slot), p.page.FloorHolds()
	lapsed = p.takeLapsed(&h, r.asOf)
	joined := limit.Holds{Eighth: h.Eighth}
	joined.AdvanceTo(floor.Eighth)
	joined.Join(&floor)
	joined.Join(&h)
	p.page.SetFloorHolds(&joined)
	return lapsed
}

// addToFloor rolls the floor to an instant that is not before the usage of the record, and adds that.
//
// The floor may be ahead of this worker's clock. Then the usage of a window that starts with its first hit moves
// ahead as far, or the floor would forget it too early:
//
//	                                at     after CallerNs  after the floor's time
//	CallerNs                        100 s
//	the floor, by a clock ahead     103 s  3 s
//	the record's window ends        102 s  2 s             not: it would have ended already
//	it ends, moved ahead by 3 s     105 s                  2 s, too
func (p *timedPage) addToFloor(r *record, at int64) {
	floorTime := p.rollFloor(at)
	present := max(r.asOf, p.CallerNs) // of the record; the floor's time is ahead of that
	ahead := max(floorTime-present, 0)
	for column := range p.page.Layout.Counting {
		w := p.rule.at(column)
		c := p.countedIn(r, column)
		if !w.OnGrid() {
			w.Shift(&c.usage, ahead)
			c.asOf += ahead
		}
		evicted := w.Floor(c.usage, c.asOf, floorTime)
		p.page.SetFloor(column, w.MergeFloors(p.page.Floor(column), evicted))
	}
}

// rollFloor brings the floor and its time to an instant, or leaves both as they are if that is earlier. It returns the
// floor's time.
func (p *timedPage) rollFloor(to int64) (floorTime int64) {
	floorTime, _ = p.endFloors(to)
	p.page.SetFloorTime(floorTime)
	return floorTime
}

// endFloors brings the floor to an instant, or to its own time if that is later, and returns what its time should be.
// It reports whether the usage of a window has changed: then the caller has to set that.
func (p *timedPage) endFloors(to int64) (floorTime int64, changed bool) {
	last := p.page.FloorTime()
	floorTime = max(to, last)
	for column := range p.page.Layout.Counting {
		before := p.page.Floor(column)
		after := p.rule.at(column).RollFloor(before, last, floorTime)
		if after != before {
			p.page.SetFloor(column, after)
			changed = true
		}
	}
	return floorTime, changed
}

// chargeFloor counts units in the floor at an instant, or at the floor's time if that is later. windows
// has the limits of the key that used them, or the rule's if it is not known which key did.
func (p *timedPage) chargeFloor(windows *columnWindows, at int64, units uint32) {
	floorTime := p.rollFloor(at)
	for column := range p.page.Layout.Counting {
		f := p.page.Floor(column)
		p.page.SetFloor(column, p.rule.at(column).ChargeFloor(windows.at(column), f, floorTime, units, p.logMemory[:0]))
	}
}

// floorLives reports whether the floor counts or holds anything.
func (p *presentPage) floorLives() bool {
	last := p.page.FloorTime()
	for column := range p.page.Layout.Counting {
		f := p.rule.at(column).RollFloor(p.page.Floor(column), last, max(p.Now, last))
		if !f.IsZero() {
			return true
		}
	}
	return p.page.FloorIsHolding()
}
