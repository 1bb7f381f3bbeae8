package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Which clock counts what:
//
//	CallerNs  the worker's own wall clock, fixed since settleClock. Another key's record expires by it, because Now
//	          may be seconds ahead and would free a record that others still count by.
//	last      when a record or floor was written, by the clock of the worker that wrote it.
//	Now       the later of CallerNs and last. All that is counted for the key is counted at it
//	          and written with it, so the time of a key never goes back.
//	at        when units lapse, or the floor changes. The time of a floor never goes back either. For example, Now
//	          is 100 s, the floor was written at 103 s, and the record to evict at 102 s: it goes into the floor at
//	          103 s. evict.go says which instant each change takes.
//	steadyNs  if the table holds: the holds' clock, see HoldClock. It says in which eighth a hold
//	          was renewed. lapsedAt translates an eighth to the wall clock.
//	          If it leases: the store's monotonic clock, by which leases end; also LeaseEntry.NowNs. The time of a
//	          record is by this clock, too: remove compares it with times of the wall clock, but only for the floor,
//	          and there a lease table has nothing.
//
// The wall clocks of workers differ a little, and may be set back by much:
//
//   - If a record or floor was written a little after the worker's present, the key is
//     counted at the time of that write: a key's time never goes back.
//   - If it was written more than aheadNs after it, the clock was set back since. The record
//     or floor is rebased: what it has counted moves back to the present, with its age.
//
// Times in the directory have a rule of their own, see ForgetFuture in package directory.

// aheadNs is how far ahead of a worker's clock a record or floor may be.
const aheadNs = 10_000_000_000

// isAhead reports whether last is further ahead of the caller's clock than clocks differ.
func (p *loaded) isAhead(last int64) bool { return last > p.CallerNs+aheadNs }

// settleClock reads the caller's clock once more, into p.CallerNs, if newest is ahead of it: the worker may only have
// stood still since it read its clock. What is ahead after that was written before the clock was set back. It is
// called once for a page that was loaded, with the newest time of all that is read in it. After that, CallerNs stays.
func (t *Table) settleClock(p *loaded, newest int64) {
	if p.isAhead(newest) {
		p.CallerNs = max(p.CallerNs, t.parent.store.Now())
	}
}

// newestRead returns the newest time of what the call for e's key may read: the time of its record, or of the floor
// without one. Other keys' records are read in two cases: if the page is full, so that one has to make room, and if
// what the floor holds lapses. A page whose last slot is free is not full.
func (t *Table) newestRead(e *Entry) int64 {
	switch {
	case t.floorHoldsUnits(&e.loaded), e.slot < 0 && !e.page.IsFree(t.layout.Slots-1):
		return e.page.NewestTime()
	case e.slot < 0:
		return e.page.FloorTime()
	}
	return e.page.Time(e.slot)
}

// setNowOrRebase sets p.Now for what the slot's record has counted, or for the floor. It returns
// when that was written. What was written before the clock was set back is rebased: it moves back from
// last to the present, which then is when it was written.
func (t *Table) setNowOrRebase(p *loaded, slot int) (last int64) {
	last = p.page.FloorTime()
	if slot >= 0 {
		last = p.page.Time(slot)
	}
	if p.isAhead(last) {
		p.Rebased = true
		if slot >= 0 {
			t.rebaseRecord(p, slot, last)
		} else {
			t.rebaseFloor(p, last)
		}
		last = p.CallerNs
	}
	p.Now = max(p.CallerNs, last)
	return last
}

// rebaseRecord gives the record a new generation: what it has counted may be in other
// windows now, so no hit from before is refunded from it.
func (t *Table) rebaseRecord(p *loaded, slot int, last int64) {
	for column := range t.layout.Counting {
		u := t.decodeUsage(p, slot, column)
		t.layout.Windows[column].SetBack(&u, last, p.CallerNs)
		p.page.SetUsage(slot, column, &u)
	}
	p.page.SetTime(slot, p.CallerNs)
	p.page.SetGeneration(slot, p.page.NextGeneration())
}

func (t *Table) rebaseFloor(p *loaded, last int64) {
	for column := range t.layout.Counting {
		f := t.layout.Windows[column].SetFloorBack(p.page.Floor(column), last, p.CallerNs)
		p.page.SetFloor(column, f)
	}
	p.page.SetFloorTime(p.CallerNs)
}

// recordTime is when the slot's record was last written, or the present if the clock
// was set back since. The slot may be another key's: its record stays in the page as it is. The present is p.Now and
// not CallerNs, because the record goes into the floor at p.Now or later: it would age by the difference.
func (t *Table) recordTime(p *loaded, slot int) int64 {
	last := p.page.Time(slot)
	if p.isAhead(last) {
		return p.Now
	}
	return last
}

// recordUsage is the usage of a column in the slot's record as of last, its recordTime. If the clock was set
// back, it is moved back in a copy: the page stays as it is. It is valid until the next call.
func (t *Table) recordUsage(p *loaded, slot, column int, last int64) limit.Usage {
	u := t.decodeUsage(p, slot, column)
	if written := p.page.Time(slot); last < written {
		t.layout.Windows[column].SetBack(&u, written, last)
	}
	return u
}

// decodeUsage is the usage of a column in the slot's record as it was written. It is valid until the next call.
func (t *Table) decodeUsage(p *loaded, slot, column int) limit.Usage {
	var u limit.Usage
	p.page.ReadUsage(slot, column, p.pageMemory.otherLog, &u)
	if u.Log != nil {
		p.pageMemory.otherLog = u.Log
	}
	return u
}

// steadyNow reads the clock by which the table's holds or leases end, which nobody sets.
func (t *Table) steadyNow() int64 {
	switch {
	case t.layout.HasHolds:
		return t.parent.HoldClock()
	case t.layout.HasLeases:
		return t.parent.store.Monotonic()
	}
	return 0
}
