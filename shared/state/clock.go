package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Which clock counts what. The first six are of the wall clock:
//
//	name       what it is                            what is counted by it
//	CallerNs   the worker's own clock, fixed since   when another key's record expires, and how far the floor is ahead
//	           settleClock                           (addToFloor). Now may be seconds ahead: by that, a record would be
//	                                                 freed that others still count by
//	last       when the record or the floor was      nothing: see Now and asOf
//	           written, by the worker that did
//	Now        the later of these two for the key's  all of the key, and it is written with that: so the time of a
//	           record, or for the floor without one  key never goes back
//	asOf       of a record that is judged or         what that has counted
//	           evicted: last, or Now if the clock
//	           was set back since (recordIn)
//	at         when units lapsed                     these units
//	floorTime  last of the floor, as it shall be     what the floor has counted. It never goes back either. For
//	           written                               example, Now is 100 s, the floor was written at 103 s, and the
//	                                                 record to evict at 102 s: it goes into the floor at 103 s
//	holdNs     the holds' clock, a HoldTime          in which eighth a hold was renewed. lapsedAt translates an eighth
//	                                                 to the wall clock
//	leaseNs    the Store's monotonic clock, a        when leases end, and when their records were written, as by
//	           leaseTime                             LeaseEntry.NowNs
//
// An instant of the wall clock is an int64, as in package limit. The other clocks have types here, so that no instant
// of one meets an instant of another. In lease.go an int64 is of the monotonic clock, unless it is called
// wallNs: a lease table counts nothing by the wall clock, and has no floor.
//
// The wall clocks of workers differ a little, and may be set back by much:
//
//	last                      the clocks                Now       what the record or floor has counted
//	until CallerNs            run on                    CallerNs  stays
//	until CallerNs + aheadNs  differ                    last      stays
//	later                     were set back after last  CallerNs  is rebased: it moves back from last to the present,
//	                                                              with its age
//
// Times in the directory have a rule of their own, see ForgetFuture in package directory.

// HoldTime is an instant of the holds' clock, in nanoseconds; see HoldClock.
type HoldTime int64

// leaseTime is an instant of the Store's monotonic clock, in nanoseconds.
type leaseTime int64

// aheadNs is how far ahead of a worker's clock a record or floor may be.
const aheadNs = directory.RecordAheadNs

// isAhead reports whether last is further ahead of the caller's clock than clocks differ.
func (p *presentPage) isAhead(last int64) bool { return last > p.CallerNs+aheadNs }

// A loaded page is brought to the present in three steps:
//
//	readClocks      the holds' clock; the caller's is settled
//	lapseFloor      the floor: what its holds have lost is charged, and records may be evicted for that (evict.go)
//	setNowOrRebase  the one record that is read, or the floor if the key has none

// readClocks is the first step. CallerNs is the caller's clock, newest the newest time of all that the reader may read:
// see settleClock.
func (t *Table) readClocks(p *presentPage, newest int64) {
	p.lapses = p.lapses[:0]
	p.rebased = false
	t.readHoldClock(p)
	t.settleClock(p, newest)
}

// settleClock reads the caller's clock once more, into p.CallerNs, if newest is ahead of it: the worker may only have
// stood still since it read its clock. What is ahead after that was written before the clock was set back. It is
// called once for a page that was loaded, with the newest time of all that is read in it. After that, CallerNs stays.
func (t *Table) settleClock(p *presentPage, newest int64) {
	if p.isAhead(newest) {
		p.CallerNs = max(p.CallerNs, t.parent.store.Now())
	}
}

// newestRead returns the newest time of what the call for e's key may read: the time of its record, or of the floor
// without one. Other keys' records are read in two cases: if the page is full, so that one has to make room, and if
// what the floor holds lapses. A page whose last slot is free is not full.
func (e *Entry) newestRead() int64 {
	switch {
	case e.floorHoldsUnits(), e.slot < 0 && !e.page.IsFree(e.page.Layout.Slots-1):
		return e.page.NewestTime()
	case e.slot < 0:
		return e.page.FloorTime()
	}
	return e.page.Time(e.slot)
}

// setNowOrRebase sets p.Now for what the slot's record has counted, or the floor if slot is noRecord. What was written
// before the clock was set back is rebased: it moves back to the present, which then is when it was written.
func (p *presentPage) setNowOrRebase(slot int) {
	last := p.page.FloorTime()
	if slot >= 0 {
		last = p.page.Time(slot)
	}
	if !p.isAhead(last) {
		p.Now = max(p.CallerNs, last)
		return
	}
	p.rebased = true
	if slot >= 0 {
		p.rebaseRecord(slot)
	} else {
		p.rebaseFloor()
	}
	p.Now = p.CallerNs
}

// rebaseRecord gives the record a new generation: what it has counted may be in other
// windows now, so no hit from before is refunded from it.
func (p *presentPage) rebaseRecord(slot int) {
	last := p.page.Time(slot)
	for column := range p.page.Layout.Counting {
		u := p.decodeUsage(slot, column)
		p.page.Layout.Windows[column].SetBack(&u, last, p.CallerNs)
		p.page.SetUsage(slot, column, &u)
	}
	p.page.SetTime(slot, p.CallerNs)
	p.page.SetGeneration(slot, p.page.NextGeneration())
}

func (p *presentPage) rebaseFloor() {
	last := p.page.FloorTime()
	for column := range p.page.Layout.Counting {
		f := p.page.Layout.Windows[column].SetFloorBack(p.page.Floor(column), last, p.CallerNs)
		p.page.SetFloor(column, f)
	}
	p.page.SetFloorTime(p.CallerNs)
}

// decodeUsage is the usage of a column in the slot's record as it was written. A log lies in logMemory.
func (p *presentPage) decodeUsage(slot int, column page.Column) limit.Usage {
	var u limit.Usage
	p.page.ReadUsage(slot, column, p.logMemory, &u)
	if u.Log != nil {
		p.logMemory = u.Log
	}
	return u
}
