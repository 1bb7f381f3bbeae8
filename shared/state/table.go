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
