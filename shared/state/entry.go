package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Entry is one key's place in its bucket, as Table.Read found it. The zero
// value is ready to be read into; it is re-used from request to request.
type Entry struct {
	Now       int64 // the instant at which the key is counted
	FromFloor bool  // the key has no record and starts from the bucket's floor
	Evicted   bool  // Commit evicted a live record
	Rebased   bool  // Read moved what a wild clock had written to the present

	key         [15]byte
	fingerprint uint32
	bucket      bucket
	cas         uint32
	epoch       uint32
	slot        int // -1 without a record
	callerNs    int64
	usage       [MaxWindows]limit.Usage // a column of the layout each, as of Now

	// What TakeBack needs to know of the Commit.
	generation uint16
	opened     uint16 // bit i: the hit opened the window of column i
}

// Usage returns what window i of the table's definition has counted, as of e.Now.
func (t *Table) Usage(e *Entry, i int) limit.Usage {
	if column := t.columns[i]; column >= 0 {
		return e.usage[column]
	}
	return limit.Usage{} // a configuration made later has dropped this window
}

// Check returns the earliest instant at which a hit of cost units passes every
// window if nobody else comes: at or before e.Now when it passes at once,
// limit.Never when it cannot. windows are the definition's, with the limits to
// apply.
func (t *Table) Check(e *Entry, windows []limit.Window, cost uint32) int64 {
	at := e.Now
	for i, w := range windows {
		pass := w.Check(t.Usage(e, i), e.Now, cost)
		if pass == limit.Never {
			return limit.Never
		}
		at = max(at, pass)
	}
	return at
}

// Commit counts a hit that Check has passed, by compare-and-swap. A key without
// a record takes a free slot, else an expired one; where the bucket is full of
// live records and evict is set, the one that uses least of windows' limits
// goes, and the bucket's floor remembers what it used. Mismatch: somebody wrote
// first, so Read and Check again.
func (t *Table) Commit(e *Entry, windows []limit.Window, cost uint32, evict bool) Status {
	if e.epoch != t.epoch {
		return Mismatch // another rule's read of this counter has met a new layout
	}
	usage := e.usage
	if e.slot < 0 {
		if status := t.settle(e, windows, evict); status != OK {
			return status
		}
		for i, w := range t.layout.Windows {
			if usage[i] != (limit.Usage{}) {
				usage[i] = w.Inherit(usage[i], e.Now)
			}
		}
	}
	// The hit counts in every window of the record, also in one that only a
	// configuration made later has.
	for i, w := range t.layout.Windows {
		if w.Algorithm == limit.FixedWindowPerKey && usage[i].EndNs == 0 {
			e.opened |= 1 << i
		}
		usage[i] = w.Add(usage[i], e.Now, cost)
	}
	for i := range t.layout.Windows {
		e.bucket.setUsage(&t.layout, e.slot, i, usage[i])
	}
	e.bucket.setTime(&t.layout, e.slot, e.Now)
	e.generation = e.bucket.recordGeneration(&t.layout, e.slot)
	e.usage = usage
	return t.write(e)
}

// Persist writes a denied key's entry where Read had to move it to the present,
// so that a wild clock cannot lock the key out. A race is lost in silence:
// whoever won has seen the same.
func (t *Table) Persist(e *Entry) {
	if e.Rebased {
		t.write(e)
	}
}

func (t *Table) write(e *Entry) Status {
	return t.tables.store.Set(e.key[:], e.bucket, e.cas)
}

// settle gives e a slot, and leaves in the floor what whoever had it used.
func (t *Table) settle(e *Entry, windows []limit.Window, evict bool) Status {
	slot, expired := t.vacant(e)
	if slot < 0 {
		if !evict {
			return Full
		}
		slot = t.leastLoaded(e, windows)
		e.Evicted = true
	}
	at := max(e.Now, e.bucket.floorTime())
	last := int64(0)
	if e.Evicted || expired {
		last = t.recordTime(e, slot)
		at = max(at, last)
	}
	t.rollFloor(e, at, e.Evicted || expired)
	if e.Evicted {
		for i, w := range t.layout.Windows {
			victim := w.Roll(t.recordUsage(e, slot, i), last, at)
			e.bucket.setFloor(&t.layout, i, w.Join(e.bucket.floor(&t.layout, i), victim))
		}
	}
	e.bucket.place(&t.layout, slot, e.fingerprint)
	e.slot = slot
	return OK
}

// rollFloor brings the floor to at. Its time moves only when something was
// removed: a record, or a part of the floor that died with its window.
func (t *Table) rollFloor(e *Entry, at int64, removed bool) {
	last := e.bucket.floorTime()
	for i, w := range t.layout.Windows {
		before := e.bucket.floor(&t.layout, i)
		after := w.Roll(before, last, at)
		if after != before {
			e.bucket.setFloor(&t.layout, i, after)
			removed = true
		}
	}
	if removed {
		e.bucket.setFloorTime(at)
	}
}

// vacant returns a free slot, else one whose record has expired, else -1.
func (t *Table) vacant(e *Entry) (slot int, expired bool) {
	slot = -1
	for i := range t.layout.Slots {
		if e.bucket.free(&t.layout, i) {
			return i, false
		}
		if slot < 0 && t.expiry(e, i) <= e.Now {
			slot, expired = i, true
		}
	}
	return slot, expired
}

// expiry returns when the slot's record stops counting in every window.
func (t *Table) expiry(e *Entry, slot int) int64 {
	at := int64(0)
	last := t.recordTime(e, slot)
	for i, w := range t.layout.Windows {
		at = max(at, w.Expiry(t.recordUsage(e, slot, i), last))
	}
	return at
}

// recordTime is when the slot's record was last written, taking what a wild
// clock wrote for written now.
func (t *Table) recordTime(e *Entry, slot int) int64 {
	last := e.bucket.time(&t.layout, slot)
	if last > e.callerNs+t.horizonNs() {
		return e.callerNs
	}
	return last
}

// recordUsage is what the slot's record holds of column i, as of recordTime.
func (t *Table) recordUsage(e *Entry, slot, i int) limit.Usage {
	u := e.bucket.usage(&t.layout, slot, i)
	if last := e.bucket.time(&t.layout, slot); last > e.callerNs+t.horizonNs() {
		return t.layout.Windows[i].Shift(u, e.callerNs-last)
	}
	return u
}

// leastLoaded returns the slot whose record uses least of the limits, counting
// the window it uses most of; of equals the one that expires first.
func (t *Table) leastLoaded(e *Entry, windows []limit.Window) int {
	best, bestLoad, bestExpiry := -1, limit.Load{}, int64(0)
	for slot := range t.layout.Slots {
		last := t.recordTime(e, slot)
		load := limit.Load{Limit: 1}
		for i, w := range windows {
			column := t.columns[i]
			if column < 0 {
				continue
			}
			u := w.Roll(t.recordUsage(e, slot, column), last, max(e.Now, last))
			if l := w.Load(u); load.Less(l) {
				load = l
			}
		}
		expiry := t.expiry(e, slot)
		if best < 0 || load.Less(bestLoad) || (!bestLoad.Less(load) && expiry < bestExpiry) {
			best, bestLoad, bestExpiry = slot, load, expiry
		}
	}
	return best
}

// Earliest returns when the first record of e's bucket expires, which is how
// long a newcomer to a full bucket waits where the rule does not evict.
func (t *Table) Earliest(e *Entry) int64 {
	first := limit.Never
	for slot := range t.layout.Slots {
		if at := t.expiry(e, slot); first == limit.Never || at < first {
			first = at
		}
	}
	return first
}

// TakeBack undoes a Commit whose request was denied by another rule: key is the
// key it was read with, cost what it counted. It reports whether every window
// gave the hit back; one that could not keeps it until the window ends, which
// is never too loose. e must be as Commit left it.
func (t *Table) TakeBack(e *Entry, key []byte, now int64, cost uint32) bool {
	committed := *e
	for range maxTries {
		if t.load(e, key, now) != OK || e.epoch != committed.epoch {
			return false
		}
		e.callerNs = now
		e.slot = e.bucket.find(&t.layout, e.fingerprint)
		if e.slot < 0 || e.bucket.recordGeneration(&t.layout, e.slot) != committed.generation {
			return false
		}
		complete := t.takeBack(e, &committed, cost)
		switch t.write(e) {
		case OK:
			return complete
		case Mismatch:
		default:
			return false
		}
	}
	return false
}

func (t *Table) takeBack(e, committed *Entry, cost uint32) bool {
	last := e.bucket.time(&t.layout, e.slot)
	at := max(e.callerNs, last)
	complete := true
	for i, w := range t.layout.Windows {
		u := w.Roll(e.bucket.usage(&t.layout, e.slot, i), last, at)
		opened := committed.opened&(1<<i) != 0
		u, taken := w.TakeBack(u, committed.usage[i], committed.Now, at, cost, opened)
		complete = complete && taken
		e.bucket.setUsage(&t.layout, e.slot, i, u)
		e.usage[i] = u
	}
	e.bucket.setTime(&t.layout, e.slot, at)
	e.Now = at
	return complete
}
