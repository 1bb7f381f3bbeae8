package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Operations on counters: on one key, as Read found it, and on all pages of a table.

// AllWindows makes an operation act on every window of the definition.
const AllWindows = -1

// Inc counts n units in the window, or in all, whatever their limits. It returns
// Mismatch and Full as Commit does.
func (t *Table) Inc(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for i := range t.layout.counts {
		if t.acts(window, i) {
			e.windows[i].Add(&e.usage[i], e.Now, n)
		}
	}
	return t.finish(e)
}

// Set sets the usage of the window, or of all, to n units counted now. A block goes on. It
// returns Mismatch and Full as Commit does.
func (t *Table) Set(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for i := range t.layout.counts {
		if t.acts(window, i) {
			e.usage[i] = e.windows[i].Set(e.Now, n)
		}
	}
	return t.writeRecord(e, e.page.nextGeneration())
}

// acts reports whether an operation on the window changes the column.
func (t *Table) acts(window, column int) bool {
	if column == int(t.block) {
		return false
	}
	for i := range t.def.Windows {
		if int(t.columns[i]) == column {
			return window == AllWindows || window == i
		}
	}
	return false
}

// Reset forgets the key and reports whether it had a record. If the floor counts
// something, the key gets an empty record, so that it does not start from the
// floor; so Reset may return Full. It returns Mismatch as Commit does.
func (t *Table) Reset(e *Entry, evict bool) (had bool, status Status) {
	if e.epoch != t.epoch {
		return false, Mismatch
	}
	if e.HasRecord() {
		had = !e.page.wasReset(&t.layout, e.slot)
		if t.layout.holds && e.holds.Total() > 0 {
			e.page.forget(&t.layout, e.slot)
		}
	}
	if t.floorLives(e, e.Now) {
		return had, t.writeEmptyRecord(e, evict)
	}
	if !e.HasRecord() {
		return false, OK
	}
	t.remove(e, e.slot)
	e.page.nextGeneration()
	return had, t.write(e)
}

// writeEmptyRecord gives the key a record that has counted nothing, in its slot or in one
// that it finds.
func (t *Table) writeEmptyRecord(e *Entry, evict bool) Status {
	if !e.HasRecord() {
		if status := t.findSlot(e, evict); status != OK {
			return status
		}
	}
	t.place(e, e.slot, false)
	e.page.setTime(&t.layout, e.slot, e.Now)
	e.page.mark(&t.layout, e.slot, e.page.nextGeneration(), true)
	return t.write(e)
}

// Clean frees the slots of expired records and returns their number. It reads
// every page.
func (t *Table) Clean(e *Entry, rule []limit.Window, now int64) (freed uint64, status Status) {
	return t.visitPages(e, rule, now, func() (changes uint64) {
		for slot := range t.layout.Slots {
			if !e.page.free(&t.layout, slot) && t.expiry(e, slot) <= e.CallerNs { // not e.Now: see clock.go
				t.remove(e, slot)
				changes++
			}
		}
		return changes
	})
}

// visitPages calls visit with every existing page in e, writes the pages that visit has
// changed, and returns the sum of the changes. It visits a page again if another worker
// wrote it meanwhile.
func (t *Table) visitPages(
	e *Entry, rule []limit.Window, now int64, visit func() (changes uint64),
) (sum uint64, status Status) {
	if status := t.ensureRegistered(now); status != OK {
		return 0, status
	}
	e.CallerNs = now
	for index := uint32(0); index < t.pages; index++ {
		changes, status := t.visitPage(e, rule, index, visit)
		for retries := 1; status == Mismatch && retries < MaxRetries; retries++ {
			changes, status = t.visitPage(e, rule, index, visit)
		}
		if status != OK {
			return sum, Failed
		}
		sum += changes
	}
	return sum, OK
}

func (t *Table) visitPage(
	e *Entry, rule []limit.Window, index uint32, visit func() (changes uint64),
) (changes uint64, status Status) {
	e.pageKey = t.pageKey(index)
	value, cas, status := t.parent.store.Get(e.pageKey[:])
	switch status {
	case OK:
	case NotFound:
		return 0, OK
	default:
		return 0, Failed
	}
	e.cas = cas
	status = t.readPage(e, rule, value)
	if status == Mismatch { // the directory has newer windows
		if status := t.adoptNewer(e.CallerNs); status != OK {
			return 0, status
		}
		return 0, Mismatch
	}
	if status != OK {
		return 0, status
	}
	changes = visit()
	if changes == 0 {
		return 0, OK
	}
	return changes, t.write(e)
}

// readPage puts a page into the entry, as of the caller's clock: as Reread does for a key, see Entry.
func (t *Table) readPage(e *Entry, rule []limit.Window, value []byte) Status {
	b, status := t.fit(value)
	if status != OK {
		return status
	}
	e.page = b
	e.epoch = t.epoch
	e.slot = -1
	e.clockRead = false
	t.define(e, &Key{Windows: rule, OfRule: rule})
	t.setNowOrRebase(e)
	switch {
	case t.layout.holds:
		e.heldNs = t.parent.HeldNow()
		t.chargeFloorLapses(e)
	case t.layout.leases:
		e.monotonicNs = t.parent.store.Monotonic()
	}
	return OK
}
