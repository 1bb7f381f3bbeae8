package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Which clock counts what:
//
//	field     clock                             what is counted by it
//	CallerNs  the worker's own wall clock,      when another key's record expires. Now may be seconds ahead, and would
//	          fixed since settleClock           free a record that others still count by
//	last      the wall clock of the worker      nothing more: it is when a record or floor was written
//	          that wrote
//	Now       the later of these two            all of the key, and it is written with that: so the time of a key
//	                                            never goes back
//	at        see evict.go                      what lapses, and changes of the floor. The time of a floor never
//	                                            goes back either. For example, Now is 100 s, the floor was written
//	                                            at 103 s, and the record to evict at 102 s: it goes into the floor
//	                                            at 103 s
//	heldNs    the holds' clock, a HeldTime      in which eighth a hold was renewed. lapsedAt translates an eighth to
//	                                            the wall clock
//	leaseNs   the Store's monotonic clock, a    when leases end, and when their records were written, as by
//	          leaseTime                         LeaseEntry.NowNs
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

// HeldTime is an instant of the holds' clock, in nanoseconds; see HoldClock.
type HeldTime int64

// leaseTime is an instant of the Store's monotonic clock, in nanoseconds.
type leaseTime int64

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
func (t *Table) setNowOrRebase(p *loaded, slot int) (last int64, rebased bool) {
	last = p.page.FloorTime()
	if slot >= 0 {
		last = p.page.Time(slot)
	}
	if p.isAhead(last) {
		rebased = true
		if slot >= 0 {
			t.rebaseRecord(p, slot, last)
		} else {
			t.rebaseFloor(p, last)
		}
		last = p.CallerNs
	}
	p.Now = max(p.CallerNs, last)
	return last, rebased
}

// rebaseRecord gives the record a new generation: what it has counted may be in other
// windows now, so no hit from before is refunded from it.
func (t *Table) rebaseRecord(p *loaded, slot int, last int64) {
	for column := range t.layout.Counting {
		u := p.decodeUsage(slot, column, &p.pageMemory.otherLog)
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
func (p *loaded) recordTime(slot int) int64 {
	last := p.page.Time(slot)
	if p.isAhead(last) {
		return p.Now
	}
	return last
}

// recordUsage is the usage of a column in the slot's record as of last, its recordTime. If the clock was set
// back, it is moved back in a copy: the page stays as it is. A log lies in memory.
func (t *Table) recordUsage(p *loaded, slot int, column page.Column, last int64, memory *logMemory) limit.Usage {
	u := p.decodeUsage(slot, column, memory)
	if written := p.page.Time(slot); last < written {
		t.layout.Windows[column].SetBack(&u, written, last)
	}
	return u
}

// decodeUsage is the usage of a column in the slot's record as it was written. A log lies in memory.
func (p *loaded) decodeUsage(slot int, column page.Column, memory *logMemory) limit.Usage {
	var u limit.Usage
	p.page.ReadUsage(slot, column, *memory, &u)
	if u.Log != nil {
		*memory = u.Log
	}
	return u
}
