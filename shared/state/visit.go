package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// A visit of all pages of a table, to clean them (Clean) or to count what they have (Stats). It reads each page
// as Read does, but for no key. A Survey (survey.go) counts too, but a few pages at each tick. The Entry that they
// take is only memory to work in: Read it again before it is written.

// Clean frees the slots of expired records and returns their number. It reads
// every page. e is memory only.
func (t *Table) Clean(e *Entry, rule []limit.Window, now int64) (freed uint64, status Status) {
	return t.visitPages(&e.loaded, rule, now, func(p *loaded) (changes uint64) {
		for slot := range t.layout.Slots {
			if !p.page.IsFree(slot) && t.hasExpired(p, slot) {
				t.remove(p, slot)
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

// Stats counts the table's live keys and pages. It reads every page. e is memory only.
func (t *Table) Stats(e *Entry, rule []limit.Window, now int64) (s Stats, status Status) {
	_, status = t.visitPages(&e.loaded, rule, now, func(p *loaded) (changes uint64) {
		s.Pages++
		s.Bytes += uint64(len(p.page.Bytes))
		s.Keys += t.liveKeys(p)
		return 0
	})
	s.Slots = uint64(t.pages) * uint64(t.layout.Slots)
	return s, status
}

// liveKeys counts the keys of the page that count something.
func (t *Table) liveKeys(p *loaded) (keys uint64) {
	for slot := range t.layout.Slots {
		if !p.page.IsFree(slot) && !t.hasExpired(p, slot) {
			keys++
		}
	}
	return keys
}

// visitPages loads every existing page into p and calls visit with it, writes the pages that visit has
// changed, and returns the sum of the changes. It visits a page again if another worker
// wrote it meanwhile.
func (t *Table) visitPages(
	p *loaded, rule []limit.Window, now int64, visit func(p *loaded) (changes uint64),
) (sum uint64, status Status) {
	if status := t.ensureOpen(now); status != OK {
		return 0, status
	}
	p.CallerNs = now
	for index := uint32(0); index < t.pages; index++ {
		changes, status := t.visitPage(p, rule, index, visit)
		if status != OK {
			return sum, Failed
		}
		sum += changes
	}
	return sum, OK
}

func (t *Table) visitPage(
	p *loaded, rule []limit.Window, index uint32, visit func(p *loaded) (changes uint64),
) (changes uint64, status Status) {
	for range MaxRetries {
		newer, status := t.loadPage(p, index)
		switch {
		case newer:
			if status := t.adoptNewer(p.CallerNs); status != OK {
				return 0, status
			}
			continue
		case status != OK || p.missing:
			return 0, status
		}
		t.readPage(p, rule)
		changes = visit(p)
		if changes == 0 {
			return 0, OK
		}
		if status := t.write(p); status != Mismatch {
			return changes, status
		}
	}
	return 0, Failed
}

// readPage brings the loaded page to the present as of p.CallerNs, as readKey does for a key.
func (t *Table) readPage(p *loaded, rule []limit.Window) {
	p.steadyNs = t.steadyNow()
	t.defineRule(p, rule)
	t.settleClock(p, p.page.NewestTime())
	t.setNowOrRebase(p, noRecord)
	if t.floorHoldsUnits(p) {
		t.lapseFloor(p)
	}
}
