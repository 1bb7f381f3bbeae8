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
//	a record to evict        moveHoldsToFloor     its usage, before that is added to the floor: usageIn
//	any record               expiry (evict.go)    a copy of its usage, which tells when the record expires: usageIn

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
// floor: these units are charged to its usage too, before that goes into the floor.
func (p *presentPage) evictSharer(slot int, floorLapsed lapses) {
	r := p.recordIn(slot)
	r.lapsed = p.joinLapses(p.moveHoldsToFloor(&r), floorLapsed, r.asOf)
	latest := r.lapsed[len(r.lapsed)-1] // there is one: floorLapsed is not empty
	p.addToFloor(&r, latest.at)
	p.page.Clear(slot)
}

// moveHoldsToFloor moves what the record holds to the floor, which lapseFloor has brought to the present. It returns
// what has lapsed in the record, for its caller to charge.
//
// The floor holds all as of the newest eighth of the two. Where the hold's length was shortened, either may be ahead of
// the present. An example: now is eighth 9, and the record is as of 11. The floor has 5 units of eighth 2. As of 11,
// the oldest eighth is 3, so the 5 lie there: they are held until 12 begins, which is one eighth longer.
func (p *presentPage) moveHoldsToFloor(r *record) (lapsed lapses) {
	h, floor := p.page.Holds(r.slot), p.page.FloorHolds()
	lapsed = p.takeLapsed(&h, r.asOf)
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
