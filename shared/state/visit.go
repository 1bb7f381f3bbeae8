package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A visit of all pages of a table, to clean them (Clean) or to count what they have (Stats). It reads each page
// as Read does, but for no key. A Survey counts too, but a few pages at each tick.

// Clean frees the slots of expired records and returns their number. It reads
// every page.
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

// Stats counts the table's live keys and pages. It reads every page.
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
		for retries := 1; status == Mismatch && retries < MaxRetries; retries++ {
			changes, status = t.visitPage(p, rule, index, visit)
		}
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
	switch status := t.loadPage(p, index); {
	case status == Mismatch: // the directory has newer windows
		if status := t.adoptNewer(p.CallerNs); status != OK {
			return 0, status
		}
		return 0, Mismatch
	case status != OK || p.missing:
		return 0, status
	}
	t.readPage(p, rule)
	changes = visit(p)
	if changes == 0 {
		return 0, OK
	}
	return changes, t.write(p)
}

// readPage brings the loaded page to the present as of p.CallerNs, as readKey does for a key.
func (t *Table) readPage(p *loaded, rule []limit.Window) {
	p.clockRead = false
	p.steadyNs = t.steadyNow()
	t.defineRule(p, rule)
	t.setNowOrRebase(p, noRecord)
	if t.layout.HasHolds {
		t.lapseFloor(p)
	}
}

// Survey adds up the memory and the live keys of a table, a few pages at a time, so
// that no tick blocks a worker for long. The zero value is ready.
type Survey struct {
	next  uint32
	found Found
}

// Found is what a survey has added up.
type Found struct {
	Bytes uint64 // that the existing pages take in Envoy, as HostBytes counts them
	Keys  uint64
}

// A step ends after this many pages, or this many bytes read.
const (
	surveyPages = 64
	surveyBytes = 48 << 10
)

// Step continues the survey of a table, whose rule has these windows. When it has read the last page, it returns
// done and what it has found, and the survey starts again. It skips a table that no worker has registered, as far as
// PrepareSurveys has found.
func (s *Survey) Step(t *Table, e *Entry, rule []limit.Window) (found Found, done bool, status Status) {
	if !t.open {
		if t.surveyed == nil {
			*s = Survey{}
			return Found{}, false, OK
		}
		t = t.forStep()
	}
	if status := s.addPages(t, &e.loaded, rule); status != OK {
		*s = Survey{}
		return Found{}, false, status
	}
	if s.next < t.pages {
		return Found{}, false, OK
	}
	found = s.found
	*s = Survey{}
	return found, true, OK
}

// forStep is a table by the registration that another worker has made of t. It lasts for one step: a layout
// takes a page of memory, and other workers may have registered thousands of tables.
func (t *Table) forStep() *Table {
	other := &Table{parent: t.parent, def: t.def}
	other.setLayout(t.surveyed)
	return other
}

// addPages adds the next pages.
func (s *Survey) addPages(t *Table, p *loaded, rule []limit.Window) Status {
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		key := t.pageKey(s.next)
		value, _, status := t.parent.store.Get(key[:])
		switch status {
		case OK:
			s.found.Bytes += page.PageHostBytes(len(value))
			s.found.Keys += t.liveIn(p, rule, value)
			read += len(value)
		case NotFound:
		default:
			return Failed
		}
		s.next++
	}
	return OK
}

// liveIn counts the keys that count something in a page as it is stored. It returns 0 for a
// page that it cannot read.
func (t *Table) liveIn(p *loaded, rule []limit.Window, value []byte) uint64 {
	p.CallerNs = t.parent.store.Now()
	var status Status
	p.page, status = t.convertIn(value)
	if status != OK {
		return 0
	}
	t.readPage(p, rule)
	return t.liveKeys(p)
}

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }

// PrepareSurveys finds in the directory the tables that only other workers have registered, so that this one
// can survey them, too. It registers nothing.
func (ts *Tables) PrepareSurveys() {
	for _, table := range ts.tables {
		table.surveyed = nil
	}
	closed := ts.closed()
	if len(closed) == 0 {
		return
	}
	d, status := ts.directory()
	if status != OK {
		return
	}
	for _, table := range closed {
		// An older and a newer configuration of the owner may have one each: then it is the last.
		for _, i := range d.TablesOf(table.def.Counter) {
			if r := &d.Tables[i]; r.IsKnown() && r.HasOwner(ts.self.ID) {
				found := *r
				table.surveyed = &found
			}
		}
	}
}
