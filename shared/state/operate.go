package state

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// What operators do: operations on one key, as Read found it, and visits of all pages of a table.

// AllWindows is in the place of a window's index in the definition: the operation acts on each.
const AllWindows = -1

// Inc counts n units in the window, or in all, whatever their limits. It returns
// Mismatch and Full as Commit does.
func (t *Table) Inc(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.beginRecord(e, evict); status != OK {
		return status
	}
	for column := range e.page.Layout.Counting {
		if e.acts(window, column) {
			e.windows.at(column).Add(&e.usage[column], e.Now, n)
		}
	}
	return t.writeRecord(e)
}

// Set sets the usage of the window, or of all, to n units counted now. A block goes on. It
// returns Mismatch and Full as Commit does.
func (t *Table) Set(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.beginRecord(e, evict); status != OK {
		return status
	}
	for column := range e.page.Layout.Counting {
		if e.acts(window, column) {
			e.usage[column] = e.windows.at(column).Set(e.Now, n)
		}
	}
	e.page.BeginGeneration(e.slot)
	return t.writeRecord(e)
}

// acts reports whether an operation on the window changes the column.
func (e *Entry) acts(window int, column page.Column) bool {
	switch {
	case column == e.placement.block:
		return false
	case window == AllWindows: // of the definition: the layout may have others
		return slices.Contains(e.placement.columnOf, column)
	}
	return e.placement.columnOf[window] == column
}

// Reset forgets the key and reports whether it had a record. One that a Reset has left is none until it counts
// something. If the floor counts something, the key gets an empty record, so that it does not start from the floor; so
// Reset may return Full. It returns Mismatch as Commit does.
func (t *Table) Reset(e *Entry, evict bool) (had bool, status Status) {
	if status := t.startChange(&e.loadedPage); status != OK {
		return false, status
	}
	if e.HasRecord() {
		had = !e.page.WasReset(e.slot) || e.countsUntil(e.slot) > 0
		if e.page.Layout.HasHolds() && e.ownHolds.Total() > 0 {
			e.page.ForgetHolds(e.slot)
		}
	}
	if e.floorLives() {
		return had, t.writeEmptyRecord(e, evict)
	}
	if !e.HasRecord() {
		return false, OK
	}
	e.drop(e.slot)
	e.page.NextGeneration() // of the next record that is placed: no hit from before is refunded from that
	return had, t.write(&e.loadedPage)
}

// writeEmptyRecord gives the key a record that has counted nothing, in its slot or in one
// that it finds.
func (t *Table) writeEmptyRecord(e *Entry, evict bool) Status {
	slot := e.slot
	if !e.HasRecord() {
		slot = e.makeRoom(evict)
		if slot < 0 {
			return Full
		}
	}
	// Where the key had a record, it gets a new one with a new serial: no hold from before is found in that.
	// It shares nothing of what the floor holds.
	e.place(slot)
	e.page.BeginGeneration(e.slot)
	e.page.MarkReset(e.slot)
	return t.write(&e.loadedPage)
}

// A visit of all pages of a table, to clean them (Clean) or to count what they have (Stats). It reads each page
// as Read does, but for no key. A Survey (look.go) counts too, but a few pages at each tick.

// Clean frees the slots of expired records and returns their number. It reads
// every page.
func (t *Table) Clean(s *Scratch, rule []limit.Window, now int64) (freed uint64, status Status) {
	return t.visitPages(&s.entry.presentPage, rule, now, func(v visited) (changes uint64) {
		for slot := range v.page.Layout.Slots {
			if !v.page.IsFree(slot) && v.countsNoMore(slot) {
				v.free(slot)
				changes++
			}
		}
		return changes
	})
}

// Stats is the size of a table.
type Stats struct {
	Keys  uint64 // keys that count something
	Slots uint64 // keys that fit
	Pages uint64 // pages that exist in shared data
	Bytes uint64 // size of these pages
}

// Stats counts the table's live keys and pages. It reads every page.
func (t *Table) Stats(s *Scratch, rule []limit.Window, now int64) (stats Stats, status Status) {
	_, status = t.visitPages(&s.entry.presentPage, rule, now, func(v visited) (changes uint64) {
		stats.Pages++
		stats.Bytes += uint64(len(v.page.Bytes))
		stats.Keys += v.liveKeys()
		return 0
	})
	if status != OK {
		return Stats{}, status
	}
	stats.Slots = uint64(t.placement.pages) * uint64(t.placement.layout.Slots)
	return stats, status
}

// visited is a page that a visit or a Survey has loaded. It may be of leases, which have another clock and no floor.
type visited struct {
	*presentPage
	leaseNs int64 // the monotonic clock, if the page is of leases: then it has none of the other clocks
}

// countsNoMore reports whether the slot's record has expired.
func (v *visited) countsNoMore(slot int) bool {
	if v.page.Layout.HasLeases {
		return !v.leaseWouldBeMissed(slot, v.leaseNs)
	}
	return v.hasExpired(slot)
}

// free frees the slot of a record that countsNoMore.
func (v *visited) free(slot int) {
	if v.page.Layout.HasLeases {
		v.page.Clear(slot)
	} else {
		v.drop(slot)
	}
}

// liveKeys counts the keys of the page that count something.
func (v *visited) liveKeys() (keys uint64) {
	for slot := range v.page.Layout.Slots {
		if !v.page.IsFree(slot) && !v.countsNoMore(slot) {
			keys++
		}
	}
	return keys
}

// visitPages loads every existing page into p and calls visit with it, writes the pages that visit has
// changed, and returns the sum of the changes. It visits a page again if another worker
// wrote it meanwhile.
func (t *Table) visitPages(
	p *presentPage, rule []limit.Window, now int64, visit func(v visited) (changes uint64),
) (sum uint64, status Status) {
	if status := t.ensureOpen(now); status != OK {
		return 0, status
	}
	for index := uint32(0); index < t.placement.pages; index++ {
		changes, status := t.visitPage(p, rule, index, now, visit)
		if status != OK {
			return sum, Failed
		}
		sum += changes
	}
	return sum, OK
}

func (t *Table) visitPage(
	p *presentPage, rule []limit.Window, index uint32, now int64, visit func(v visited) (changes uint64),
) (changes uint64, status Status) {
	for range MaxRetries {
		status := t.loadPage(&p.loadedPage, t.placement, index)
		switch {
		case status == newer:
			if status := t.adoptNewer(now); status != OK {
				return 0, status
			}
			continue
		case status != OK || p.missing:
			return 0, status
		}
		p.readOnly = false
		changes = visit(t.readPage(p, rule, now))
		if changes == 0 {
			return 0, OK
		}
		if status := t.write(&p.loadedPage); status != Mismatch {
			return changes, status
		}
	}
	return 0, Failed
}

// readPage brings the loaded page to the present, as readKey does for a key. Leases need no more than their clock.
func (t *Table) readPage(p *presentPage, rule []limit.Window, now int64) visited {
	if p.page.Layout.HasLeases {
		return visited{p, t.parent.store.Monotonic()}
	}
	p.rule.set(p.placement, rule)
	t.readClocks(&p.timedPage, now, p.page.NewestTime())
	p.lapseFloor()
	p.Now, _ = p.rebaseIfAhead(noRecord)
	return visited{presentPage: p}
}
