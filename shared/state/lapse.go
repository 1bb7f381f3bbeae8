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
// A worker may find that much later, and charges the units as of lapsedAt(k) then. Who charges what:
//
//	the units were held by   who takes them out   to what they are charged
//	the key's record         readHolds            its usage: readRecord
//	the floor                lapseFloor           the floor, and each record whose key may have held them, which
//	                                              evictSharer evicts: chargeFloorLapses
//	a record to evict        moveHoldsToFloor     its usage, before that is added to the floor: addToFloor
//	any record               expiry (evict.go)    a copy of its usage, which tells when the record expires

// lapse is units whose hold no stream has renewed in time.
type lapse struct {
	at    int64 // when they lapsed, by the clock of the windows
	units uint32
}

// lapses are what has lapsed of some holds, the earliest first. All lists of a page lie in presentPage.lapses, one
// behind the other: takeLapsed and joinLapses append to it and return what they have appended, which nobody changes.
// bringToPresent empties it, when the next page is read.
type lapses []lapse

// readHolds reads what is held of the key. Its record holds some of it. The floor holds some too if the key may have
// been evicted. readHolds returns the units of the record that have lapsed, for readRecord to charge.
func (e *Entry) readHolds() (lapsed lapses) {
	if e.slot >= 0 {
		e.holds = e.page.Holds(e.slot)
		lapsed = e.takeLapsed(&e.holds, e.page.Time(e.slot))
	} else {
		e.holds = limit.Holds{Eighth: e.presentEighth()}
	}
	e.sumHeld()
	return lapsed
}

// sumHeld sets what Held returns.
func (e *Entry) sumHeld() {
	shared := uint32(0) // in the floor
	if e.slot < 0 || e.page.Shares(e.slot) {
		floor := e.page.FloorHolds()
		shared = floor.Total()
	}
	e.setHeld(limit.AddSaturating(shared, e.holds.Total()))
}

// lapseFloor brings what the floor holds to the present: it takes out and charges what has lapsed. It reports
// whether it has charged any.
func (p *presentPage) lapseFloor() (charged bool) {
	if !p.floorHoldsUnits() {
		return false
	}
	holds := p.page.FloorHolds()
	lapsed := p.takeLapsed(&holds, noBound)
	if len(lapsed) == 0 {
		return false
	}
	p.page.SetFloorHolds(&holds)
	if p.page.Layout.Counting == 0 { // no window to charge
		return false
	}
	p.chargeFloorLapses(lapsed)
	return true
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
func (p *presentPage) chargeFloorLapses(lapsed lapses) {
	for _, l := range lapsed {
		p.chargeFloor(p.rule, l.at, l.units)
	}
	for slot := range p.page.Layout.Slots {
		if !p.page.IsFree(slot) && p.page.Shares(slot) {
			p.evictSharer(slot, lapsed)
		}
	}
}

// evictSharer evicts the slot's record, because its key may have held what has lapsed in the
// floor: these units are charged to its usage too, before that goes into the floor. It frees the slot.
func (p *presentPage) evictSharer(slot int, floorLapsed lapses) {
	r := p.recordIn(slot)
	lapsed := p.joinLapses(p.moveHoldsToFloor(r), floorLapsed, r.last)
	latest := lapsed[len(lapsed)-1] // there is one: floorLapsed is not empty
	p.rollFloor(latest.at)
	p.addToFloor(r, lapsed)
	p.page.Remove(slot)
}

// moveHoldsToFloor moves what the record holds to the floor, which lapseFloor has brought to the present. It returns
// what has lapsed in the record, for its caller to charge.
//
// The floor holds all as of the newest eighth of the two. Where the hold's length was shortened, either may be ahead of
// the present. An example: now is eighth 9, and the record is as of 11. The floor has 5 units of eighth 2. As of 11,
// the oldest eighth is 3, so the 5 lie there: they are held until 12 begins, which is one eighth longer.
func (p *presentPage) moveHoldsToFloor(r record) (lapsed lapses) {
	h, floor := p.page.Holds(r.slot), p.page.FloorHolds()
	lapsed = p.takeLapsed(&h, r.last)
	joined := limit.Holds{Eighth: h.Eighth}
	joined.AdvanceTo(floor.Eighth)
	joined.Join(&floor)
	joined.Join(&h)
	p.page.SetFloorHolds(&joined)
	return lapsed
}

// noBound is for takeLapsed of the floor, which does not know when its holds were written.
const noBound int64 = 0

// takeLapsed removes from h the units that have lapsed by the present, and returns them.
// last is when h was written, or noBound: no unit lapses before that.
func (p *presentPage) takeLapsed(h *limit.Holds, last int64) lapses {
	present := p.presentEighth()
	all := &p.lapses
	first := len(*all)
	for {
		eighth, units, ok := h.Lapse(present)
		if !ok {
			return (*all)[first:]
		}
		*all = append(*all, lapse{max(last, p.lapsedAt(eighth)), units})
	}
}

// lapsedAt is when what was held in an eighth lapses, by the clock of the windows: when the ninth eighth
// after it begins. The present eighth began heldNs%each ago.
func (p *presentPage) lapsedAt(eighth uint32) int64 {
	each := p.page.Layout.HoldsWindow().EighthNs()
	ninth := eighth + limit.HoldParts + 1
	since := int64(int32(p.presentEighth() - ninth)) // how many eighths ago that one began
	return p.CallerNs - int64(p.heldNs)%each - since*each
}

// charge charges each lapse in turn, at its instant, to u, which was written at last. It
// returns the instant of u afterwards. w has the key's limits.
func (ls lapses) charge(w *limit.Window, u *limit.Usage, last int64) int64 {
	for _, l := range ls {
		w.Roll(u, last, l.at)
		w.Add(u, l.at, l.units)
		last = l.at
	}
	return last
}

// chargeByRule is charge for a key whose own limits are not known: w has the rule's.
func (ls lapses) chargeByRule(w *limit.Window, u *limit.Usage, last int64) int64 {
	for _, l := range ls {
		w.ChargeByRule(u, last, l.at, l.units)
		last = l.at
	}
	return last
}

// joinLapses returns both lists as one, the earliest first. Of others no unit lapses before last.
func (p *presentPage) joinLapses(ls, others lapses, last int64) lapses {
	all := &p.lapses
	first := len(*all)
	*all = append(*all, ls...)
	for _, l := range others {
		*all = append(*all, lapse{max(l.at, last), l.units})
	}
	joined := (*all)[first:]
	slices.SortStableFunc(joined, func(a, b lapse) int { return cmp.Compare(a.at, b.at) })
	return joined
}

// presentEighth is the eighth of the holds' clock as of Read. That clock is read after the page, so what the page
// holds is of no later eighth, unless the hold's length was changed: see limit.Holds.Scale.
func (p *presentPage) presentEighth() uint32 {
	return eighthAt(p.heldNs, p.page.Layout.HoldsWindow().EighthNs())
}

// eighthAt is the eighth of that length in which an instant lies.
func eighthAt(heldNs HeldTime, eachNs int64) uint32 { return uint32(int64(heldNs) / eachNs) }

// readHoldClock reads the holds' clock, if the table holds.
func (t *Table) readHoldClock(p *presentPage) {
	if t.layout.HasHolds {
		p.heldNs = t.parent.HoldClock()
	}
}

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
func (ts *Tables) HoldClock() HeldTime {
	now := ts.store.Monotonic()
	if ts.holdClock.isOld(now) {
		ts.holdClock.share(ts.store, now)
	}
	return ts.holdClock.at(now)
}

// lookHoldClock is HoldClock without a trace.
func (ts *Tables) lookHoldClock() HeldTime {
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
func (c *holdClock) at(now int64) HeldTime { return HeldTime(heldSinceNs + now - c.stoodNs) }

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
