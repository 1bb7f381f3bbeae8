package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// A visit of all pages of a table, to clean them or to count what they have (survey.go). It reads each page
// as Read does, but for no key.

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
