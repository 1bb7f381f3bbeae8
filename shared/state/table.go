package state

import (
	"math/bits"
	"slices"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Table holds the records of one counter.
type Table struct {
	tables *Tables
	def    Definition

	seen    *tableEntry // what Peek has found, if the table was not open then
	open    bool        // registered in the directory: the fields below are valid
	number  uint16
	pages   uint32
	base    uint32
	epoch   uint32
	layout  Layout
	header  page             // an empty page to compare with and to copy, never written
	columns [MaxWindows]int  // by window of the definition: its column in the layout, or -1
	direct  bool             // define need not copy a key's windows
	spans   [MaxWindows]span // by column: the aligned window of the last hit
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// adopt sets the table's fields from its entry in the directory.
func (t *Table) adopt(e *tableEntry) {
	if t.open && t.number == e.number && t.base == e.base && t.epoch == e.epoch {
		return // an epoch has one layout
	}
	t.open = true
	t.number, t.pages, t.base, t.epoch = e.number, e.geometry.Pages, e.base, e.epoch
	t.layout = NewLayout(e.windows, int(e.geometry.Slots))
	t.header = newPage(&t.layout, t.epoch)
	t.direct = len(e.windows) == len(t.def.Windows)
	for i, w := range t.def.Windows {
		t.columns[i] = -1
		for j, v := range e.windows {
			if w.Same(v) {
				t.columns[i] = j
			}
		}
		t.direct = t.direct && t.columns[i] == i && w.Algorithm != limit.SlidingWindowLog && w.Algorithm != limit.TokenBucket
	}
	t.spans = [MaxWindows]span{}
}

// lacksWindow reports whether the layout has no column for one of the
// definition's windows.
func (t *Table) lacksWindow() bool {
	return t.open && slices.Contains(t.columns[:len(t.def.Windows)], -1)
}

// enter registers the table in the directory, and loads the seed.
func (t *Table) enter(now int64) Status {
	if status := t.tables.loadSeed(); status != OK {
		return status
	}
	if t.open { // its entry has changed
		return t.tables.enter(now, []*Table{t})
	}
	return t.tables.enter(now, t.tables.withOthers(t))
}

// opened registers the table if it is not.
func (t *Table) opened(now int64) Status {
	if t.open {
		return OK
	}
	return t.enter(now)
}

func (t *Table) hash(key []byte) uint64 {
	return siphash.Hash(t.tables.seed[0], t.tables.seed[1], key)
}

func (t *Table) place(hash uint64) (at [15]byte, fingerprint uint32) {
	return t.pageKey(uint32(hash >> 32 * uint64(t.pages) >> 32)), uint32(hash)
}

// pageKey returns the key in shared data of the page with that index.
func (t *Table) pageKey(index uint32) (at [15]byte) {
	copy(at[:], pagePrefix)
	le.PutUint32(at[len(pagePrefix):], uint32(hexDigits(uint32(t.number)<<16)))
	le.PutUint64(at[len(pagePrefix)+4:], hexDigits(index))
	return at
}

// hexDigits returns the eight lower-case hexadecimal digits of v, the first one in
// the lowest byte.
func hexDigits(v uint32) uint64 {
	const each = 0x0101010101010101
	d := uint64(v)
	d = (d | d<<16) & 0x0000ffff0000ffff
	d = (d | d<<8) & 0x00ff00ff00ff00ff
	d = (d | d<<4) & (0x0f * each)
	letters := (d + 6*each) >> 4 & each
	return bits.ReverseBytes64(d + '0'*each + letters*('a'-'0'-10))
}

// load reads the page of the key with e's hash, converted to the table's layout.
func (t *Table) load(e *Entry, now int64) Status {
	if status := t.opened(now); status != OK {
		return status
	}
	for range MaxRetries {
		e.key, e.fingerprint = t.place(e.hash)
		value, cas, status := t.tables.store.Get(e.key[:])
		switch status {
		case OK:
		case NotFound:
			e.page, e.cas, e.epoch, e.fresh = t.header, CreateOnly, t.epoch, true
			return OK
		default:
			return Failed
		}
		b, status := t.read(value)
		if status == Mismatch { // the directory has newer windows
			before := t.epoch
			if status := t.enter(now); status != OK {
				return status
			}
			if t.epoch == before {
				return Failed
			}
			continue
		}
		e.page, e.cas, e.epoch, e.fresh = b, cas, t.epoch, false
		return status
	}
	return Failed
}

// read converts a page to the table's layout. It returns Mismatch if the directory
// has changed since the table adopted its entry.
func (t *Table) read(value []byte) (page, Status) {
	b := page(value)
	if t.fits(b) {
		return b, OK
	}
	if !b.readable() {
		return nil, Failed
	}
	switch epoch := b.epoch(); {
	case epoch > t.epoch:
		return nil, Mismatch
	case epoch < t.base: // the page of a vanished counter
		return newPage(&t.layout, t.epoch), OK
	case epoch == t.epoch:
		return nil, Failed
	default:
		from := b.layout()
		return b.convert(&from, &t.layout, t.epoch), OK
	}
}

// fits reports whether b has the table's layout and is readable. TinyGo's bytes.Equal
// would allocate.
func (t *Table) fits(b page) bool {
	return len(b) == len(t.header) && le.Uint64(b) == le.Uint64(t.header) && // to the end of the epoch
		le.Uint16(b[offSpare:]) == 0 && b.floorTime() >= 0 &&
		slices.Equal(b[headBytes:t.layout.floor], t.header[headBytes:t.layout.floor])
}

// aheadNs is how far ahead of a worker's clock a record or floor may be: the clocks of
// workers differ, and may be set back a little.
const aheadNs = 10_000_000_000

// wasSetBack reports whether the clock was set back since last, when a record or floor
// was written. The worker may only have stood still after it had read its clock, so it
// reads it once more.
func (t *Table) wasSetBack(e *Entry, last int64) bool {
	if last <= e.CallerNs+aheadNs {
		return false
	}
	if !e.looked {
		e.CallerNs, e.looked = max(e.CallerNs, t.tables.store.Now()), true
	}
	return last > e.CallerNs+aheadNs
}

// Read finds the key's record as of now, or the floor if the key has no record. If
// the worker's clock is behind the last write, e.Now is the time of that write.
func (t *Table) Read(e *Entry, key Key, now int64) Status {
	if status := t.opened(now); status != OK {
		return status
	}
	e.hash = t.hash(key.Bytes)
	return t.Reread(e, key, now)
}

// Reread is Read of the same key as before, after a lost race. It does not hash
// the key again.
func (t *Table) Reread(e *Entry, key Key, now int64) Status {
	if status := t.load(e, now); status != OK {
		return status
	}
	e.CallerNs, e.looked = now, false
	e.Evicted, e.Rebased, e.FromFloor, e.opened, e.Resets = false, false, false, 0, 0
	t.define(e, &key)
	e.slot = e.page.find(&t.layout, e.fingerprint)
	last := t.findTime(e)
	e.lapses = e.lapses[:0]
	if t.layout.holds {
		e.HeldNs = t.tables.HeldNow()
		if t.lapseFloor(e) {
			last = t.findTime(e)
		}
		t.readHeld(e, last)
	}
	if e.slot >= 0 {
		t.roll(e, last)
	} else {
		t.start(e, last)
	}
	return OK
}

// findTime sets e.Now, and returns when the key's record, or the floor, was written.
func (t *Table) findTime(e *Entry) (last int64) {
	last = e.page.floorTime()
	if e.slot >= 0 {
		last = e.page.time(&t.layout, e.slot)
	}
	if t.wasSetBack(e, last) {
		t.rebase(e, last)
		last = e.CallerNs
	}
	e.Now = max(e.CallerNs, last)
	return last
}

// roll reads the record, written at last, and brings its usage to e.Now.
func (t *Table) roll(e *Entry, last int64) {
	for i := range t.layout.counts {
		u := &e.usage[i]
		e.page.read(&t.layout, e.slot, i, e.log(i), u)
		if s := &t.spans[i]; s.start <= last && e.Now < s.end && len(e.lapses) == 0 {
			continue // within one aligned window the usage does not change
		}
		w := &e.windows[i]
		used := !u.IsZero()
		w.Roll(u, charged(w, u, last, e.lapses), e.Now)
		if used && u.IsZero() {
			e.Resets++
		}
		if w.OnGrid() {
			start, end := w.Span(e.Now)
			t.spans[i] = span{start, end}
		}
	}
}

// start reads the floor, written at last, from which a key without a record
// starts at e.Now.
func (t *Table) start(e *Entry, last int64) {
	for i := range t.layout.counts {
		floor := e.rule[i].RollFloor(e.page.floor(&t.layout, i), last, e.Now)
		e.usage[i] = e.windows[i].Start(floor, e.Now, e.log(i)[:0])
		e.FromFloor = e.FromFloor || !floor.IsZero()
	}
}

// define sets e.windows and e.rule: for each column of the layout the window with
// the key's limits, and with the rule's. A column that this configuration does not
// have gets no limits. If it is jittered, the key's grid is not known, so each hit
// counts in it for a whole period.
func (t *Table) define(e *Entry, key *Key) {
	if t.direct {
		e.windows, e.rule = key.Windows, key.Rule
		return
	}
	n := len(t.layout.Windows)
	e.windows, e.rule = e.own[0][:n], e.own[1][:n]
	copy(e.windows, t.layout.Windows)
	copy(e.rule, t.layout.Windows)
	for i := range e.windows {
		if w := &e.windows[i]; w.Jitter > 0 {
			w.Algorithm, w.Elastic = limit.FixedWindowPerKey, true
		}
	}
	for i, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		units := t.layout.Windows[column].Units
		e.windows[column], e.rule[column] = key.Windows[i], key.Rule[i]
		e.windows[column].Units, e.rule[column].Units = units, units
		e.windows[column].Stamp = e.rule[column].Stamp
	}
}

// rebase moves the record, or the floor, that was written at last back to e.CallerNs.
// The record gets a new generation: what it has counted may be in other windows now, so
// no hit from before is refunded from it.
func (t *Table) rebase(e *Entry, last int64) {
	e.Rebased = true
	for i := range t.layout.counts {
		w := &t.layout.Windows[i]
		if e.slot >= 0 {
			u := e.page.usage(&t.layout, e.slot, i, e.log(i))
			w.SetBack(&u, last, e.CallerNs)
			e.page.setUsage(&t.layout, e.slot, i, &u)
		} else {
			f := e.page.floor(&t.layout, i)
			w.SetFloorBack(&f, last, e.CallerNs)
			e.page.setFloor(&t.layout, i, f)
		}
	}
	if e.slot < 0 {
		e.page.setFloorTime(e.CallerNs)
		return
	}
	e.page.setTime(&t.layout, e.slot, e.CallerNs)
	e.page.mark(&t.layout, e.slot, e.page.nextGeneration(), e.page.wasReset(&t.layout, e.slot))
}
