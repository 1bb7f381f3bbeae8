package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

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
	return t.finish(e, false)
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
	return t.finish(e, true)
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
	had = e.slot >= 0 && !e.page.wasReset(&t.layout, e.slot)
	placed := e.slot >= 0
	if t.layout.holds && placed && e.held.Total() > 0 {
		e.page.forget(&t.layout, e.slot)
	}
	if t.floorLives(e, e.Now) {
		if !placed {
			if status := t.findSlot(e, evict); status != OK {
				return false, status
			}
		}
		e.page.place(&t.layout, e.slot, e.fingerprint)
		if t.layout.holds {
			e.page.numberRecord(&t.layout, e.slot, false)
		}
		e.page.setTime(&t.layout, e.slot, e.Now)
		e.page.mark(&t.layout, e.slot, e.page.nextGeneration(), true)
		return had, t.write(e)
	}
	if !placed {
		return false, OK
	}
	t.remove(e, e.slot)
	e.page.nextGeneration()
	return had, t.write(e)
}

// remove frees the slot and sets the floor's time.
func (t *Table) remove(e *Entry, slot int) {
	at := max(e.Now, e.page.floorTime(), t.recordTime(e, slot))
	t.rollFloor(e, at, true)
	clear(e.page.record(&t.layout, slot))
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
	_, status = t.each(e, rule, now, func() (changes uint64) {
		s.Pages++
		s.Bytes += uint64(len(e.page))
		s.Keys += t.live(e)
		return 0
	})
	s.Slots = uint64(t.pages) * uint64(t.layout.Slots)
	return s, status
}

// live counts the keys of the entry's page that count something.
func (t *Table) live(e *Entry) (keys uint64) {
	for slot := range t.layout.Slots {
		if !e.page.free(&t.layout, slot) && t.expiry(e, slot) > e.CallerNs {
			keys++
		}
	}
	return keys
}

// Live counts the keys that count something in a page as it is stored; none of one
// that it cannot read.
func (t *Table) Live(e *Entry, rule []limit.Window, now int64, value []byte) uint64 {
	if e.CallerNs = now; t.show(e, rule, value) != OK {
		return 0
	}
	return t.live(e)
}

// Clean frees the slots of expired records and returns their number. It reads
// every page.
func (t *Table) Clean(e *Entry, rule []limit.Window, now int64) (freed uint64, status Status) {
	return t.each(e, rule, now, func() (changes uint64) {
		for slot := range t.layout.Slots {
			if !e.page.free(&t.layout, slot) && t.expiry(e, slot) <= e.CallerNs { // the floor may be ahead
				t.remove(e, slot)
				changes++
			}
		}
		return changes
	})
}

// each calls visit with every existing page in e, writes the pages that visit has
// changed, and returns the sum of the changes. It visits a page again if somebody
// else wrote it meanwhile.
func (t *Table) each(
	e *Entry, rule []limit.Window, now int64, visit func() (changes uint64),
) (sum uint64, status Status) {
	if status := t.opened(now); status != OK {
		return 0, status
	}
	e.CallerNs = now
	for index := uint32(0); index < t.pages; index++ {
		changes, status := uint64(0), Mismatch
		for retries := 0; status == Mismatch && retries < MaxRetries; retries++ {
			changes, status = t.visitPage(e, rule, index, visit)
		}
		if status != OK {
			return sum, Failed
		}
		sum += changes
	}
	return sum, OK
}

func (t *Table) visitPage(e *Entry, rule []limit.Window, index uint32, visit func() (changes uint64)) (uint64, Status) {
	e.key = t.pageKey(index)
	value, cas, status := t.tables.store.Get(e.key[:])
	switch status {
	case OK:
	case NotFound:
		return 0, OK
	default:
		return 0, Failed
	}
	e.cas = cas
	status = t.show(e, rule, value)
	if status == Mismatch { // the directory has newer windows
		if status := t.enter(e.CallerNs); status != OK {
			return 0, status
		}
		return 0, Mismatch
	}
	if status != OK {
		return 0, status
	}
	changes := visit()
	if changes == 0 {
		return 0, OK
	}
	return changes, t.write(e)
}

// show puts a page into the entry, as of the caller's clock.
func (t *Table) show(e *Entry, rule []limit.Window, value []byte) Status {
	b, status := t.read(value)
	if status != OK {
		return status
	}
	e.page, e.epoch, e.slot = b, t.epoch, -1
	t.define(e, &Key{Windows: rule, Rule: rule})
	e.looked = false
	if last := b.floorTime(); t.wasSetBack(e, last) {
		t.rebase(e, last)
	}
	e.Now = max(e.CallerNs, b.floorTime())
	switch {
	case t.layout.holds:
		e.HeldNs = t.tables.HeldNow()
		t.lapseFloor(e)
	case t.layout.leases:
		e.HeldNs = t.tables.store.Monotonic()
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
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		at := t.pageKey(s.next)
		value, _, status := t.tables.store.Get(at[:])
		switch status {
		case OK:
			s.found.Bytes += valueBytes(len(value))
			s.found.Keys += live(value)
			read += len(value)
		case NotFound:
		default:
			*s = Survey{}
			return Found{}, false, Failed
		}
		s.next++
	}
	if s.next < t.pages {
		return Found{}, false, OK
	}
	found = s.found
	*s = Survey{}
	return found, true, OK
}

// Peek looks in the directory for the tables that this worker has not used. Others
// have, so they can be surveyed. It registers nothing.
func (t *Tables) Peek() {
	var unused []*Table
	for _, table := range t.tables {
		if table.seen = nil; !table.open {
			unused = append(unused, table)
		}
	}
	if len(unused) == 0 {
		return
	}
	value, _, status := t.store.Get(directoryKey)
	if status != OK {
		return
	}
	d, _ := readDirectory(value) // one that cannot be read is empty
	d.prepare()
	for _, table := range unused {
		for _, i := range d.tablesOf(table.def.Counter) {
			if e := &d.tables[i]; e.foreign == nil && e.hasOwner(t.self.id) {
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

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }
