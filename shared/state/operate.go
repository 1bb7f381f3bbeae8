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

// Set sets the usage of the window, or of all, to n units counted now. It returns
// Mismatch and Full as Commit does.
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
	for i := range t.def.Windows {
		if t.columns[i] == column {
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

// Stats is the size of a table.
type Stats struct {
	Keys  uint64 // keys that count something
	Slots uint64 // keys that fit
	Pages uint64 // pages that exist in shared data
	Bytes uint64 // size of these pages
}

// Stats counts the table's live keys and pages. It reads every page.
func (t *Table) Stats(e *Entry, rule []limit.Window, now int64) (s Stats, status Status) {
	_, status = t.visitPages(e, rule, now, func() (changes uint64) {
		s.Pages++
		s.Bytes += uint64(len(e.page))
		s.Keys += t.liveKeys(e)
		return 0
	})
	s.Slots = uint64(t.pages) * uint64(t.layout.Slots)
	return s, status
}

// Live counts the keys that count something in a page as it is stored. It returns 0 for a
// page that it cannot read.
func (t *Table) Live(e *Entry, rule []limit.Window, now int64, value []byte) uint64 {
	e.CallerNs = now
	if t.readPage(e, rule, value) != OK {
		return 0
	}
	return t.liveKeys(e)
}

// liveKeys counts the keys of the entry's page that count something.
func (t *Table) liveKeys(e *Entry) (keys uint64) {
	for slot := range t.layout.Slots {
		if !e.page.free(&t.layout, slot) && t.expiry(e, slot) > e.CallerNs {
			keys++
		}
	}
	return keys
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
	e.key = t.pageKey(index)
	value, cas, status := t.parent.store.Get(e.key[:])
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

// readPage puts a page into the entry, as of the caller's clock.
func (t *Table) readPage(e *Entry, rule []limit.Window, value []byte) Status {
	b, status := t.fit(value)
	if status != OK {
		return status
	}
	e.page = b
	e.epoch = t.epoch
	e.slot = -1
	e.clockRead = false
	t.define(e, &Key{Windows: rule, Rule: rule})
	t.setNow(e)
	switch {
	case t.layout.holds:
		e.HeldNs = t.parent.HeldNow()
		t.lapseFloor(e)
	case t.layout.leases:
		e.HeldNs = t.parent.store.Monotonic()
	}
	return OK
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

// Step continues the survey of a table, whose pages' keys live counts. When it has
// read the last page, it returns done and what it has found, and the survey starts
// again. It skips a table that neither this worker has used nor Peek has seen.
func (s *Survey) Step(t *Table, live func(value []byte) uint64) (found Found, done bool, status Status) {
	if !t.open {
		if t.seen == nil {
			*s = Survey{}
			return Found{}, false, OK
		}
		t.adopt(t.seen)
		defer func() { t.open = false }() // it is not registered
	}
	if status := s.addPages(t, live); status != OK {
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

// addPages adds the next pages.
func (s *Survey) addPages(t *Table, live func(value []byte) uint64) Status {
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		key := t.pageKey(s.next)
		value, _, status := t.parent.store.Get(key[:])
		switch status {
		case OK:
			s.found.Bytes += valueBytes(len(value))
			s.found.Keys += live(value)
			read += len(value)
		case NotFound:
		default:
			return Failed
		}
		s.next++
	}
	return OK
}

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }

// Peek looks in the directory for the tables that this worker has not used. Other workers
// have, so they can be surveyed. It registers nothing.
func (ts *Tables) Peek() {
	var unused []*Table
	for _, table := range ts.tables {
		table.seen = nil
		if !table.open {
			unused = append(unused, table)
		}
	}
	if len(unused) == 0 {
		return
	}
	d, status := ts.directory()
	if status != OK {
		return
	}
	d.prepare()
	for _, table := range unused {
		for _, i := range d.tablesOf(table.def.Counter) {
			if e := &d.tables[i]; e.foreign == nil && e.hasOwner(ts.self.id) {
				seen := *e
				table.seen = &seen
			}
		}
	}
}

// Used reports whether this worker has used the table.
func (t *Table) Used() bool { return t.open }

// Known reports whether a survey reads the table: this worker has used it, or Peek has
// seen it.
func (t *Table) Known() bool { return t.open || t.seen != nil }
