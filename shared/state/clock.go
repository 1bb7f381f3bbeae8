package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Which clock counts what. All but the last are of the wall clock:
//
//	name      what it is                            what is counted by it
//	last      when the record or the floor was      what it has counted stands as of then
//	          written, by the worker that did
//	CallerNs  the worker's own clock, fixed since   when another key's record expires, and how far the floor is ahead
//	          readClocks                            (addToFloor). Now may be seconds ahead: by that, a record would be
//	                                                freed that others still count by
//	Now       the later of these two for the key's  all of the key, and it is written with that: so the time of a
//	          record, or for the floor without one  key never goes back
//	asOf      last of a record, or Now if the       a record that may be another key's: it is judged and evicted as it
//	          clock was set back since              stands, see record (evict.go)
//	holdNs    the holds' clock, a HoldTime          in which eighth a hold was renewed. lapsedAt translates an eighth
//	                                                to the wall clock
//
// The floor's time never goes back either. For example, Now is 100 s, the floor was written at 103 s, and the record to
// evict at 102 s: it goes into the floor at 103 s.
//
// An instant of the wall clock is an int64, as in package limit. Leases have the Store's monotonic clock alone: in
// lease.go an int64 is of that, unless it is called wallNs.
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

// aheadNs is how far ahead of a worker's clock a record or floor may be.
const aheadNs = directory.RecordAheadNs

// isAhead reports whether last is further ahead of the caller's clock than clocks differ.
func (p *timedPage) isAhead(last int64) bool { return last > p.CallerNs+aheadNs }

// readClocks reads the clocks by which a loaded page is brought to the present. now is the caller's, and newest the
// newest time of all that is read in the page. If that is ahead of the caller's clock, the worker may only have stood
// still since it read it: then it is read once more. What is ahead after that was written before the clock was set
// back.
func (t *Table) readClocks(p *timedPage, now, newest int64) {
	p.lapses = p.lapses[:0]
	t.readHoldClock(p)
	p.CallerNs = now
	if p.isAhead(newest) {
		p.CallerNs = max(now, t.parent.store.Now())
	}
}

// newestRead returns the newest time of what the call for e's key may read: the time of its record, or of the floor
// without one. Other keys' records are read in two cases: if the page is full, so that one has to make room, and if
// what the floor holds lapses. A page whose last slot is free is not full.
func (e *Entry) newestRead() int64 {
	switch {
	case e.page.FloorIsHolding(), e.slot < 0 && !e.page.IsFree(e.page.Layout.Slots-1):
		return e.page.NewestTime()
	case e.slot < 0:
		return e.page.FloorTime()
	}
	return e.page.Time(e.slot)
}

// rebaseIfAhead returns the present of the slot's record, or of the floor if slot is noRecord: CallerNs, or the time of
// the last write if that is a little later. What was written before the clock was set back is rebased: it moves back to
// the present, which then is when it was written.
func (p *timedPage) rebaseIfAhead(slot int) (now int64, rebased bool) {
	last := p.page.FloorTime()
	if slot >= 0 {
		last = p.page.Time(slot)
	}
	if !p.isAhead(last) {
		return max(p.CallerNs, last), false
	}
	if slot >= 0 {
		p.rebaseRecord(slot)
	} else {
		p.rebaseFloor()
	}
	return p.CallerNs, true
}

// rebaseRecord begins a generation of the record, because what it has counted may be in other windows now.
func (p *timedPage) rebaseRecord(slot int) {
	last := p.page.Time(slot)
	for column := range p.page.Layout.Counting {
		u := p.decodeUsage(slot, column)
		p.rule.at(column).SetBack(&u, last, p.CallerNs)
		p.page.SetUsage(slot, column, &u)
	}
	p.page.SetTime(slot, p.CallerNs)
	p.page.BeginGeneration(slot)
}

func (p *timedPage) rebaseFloor() {
	last := p.page.FloorTime()
	for column := range p.page.Layout.Counting {
		f := p.rule.at(column).SetFloorBack(p.page.Floor(column), last, p.CallerNs)
		p.page.SetFloor(column, f)
	}
	p.page.SetFloorTime(p.CallerNs)
}

// decodeUsage is the usage of a column in the slot's record as it was written. A log lies in logMemory.
func (p *timedPage) decodeUsage(slot int, column page.Column) limit.Usage {
	var u limit.Usage
	p.page.ReadUsage(slot, column, p.logMemory, &u)
	if u.Log != nil {
		p.logMemory = u.Log
	}
	return u
}
