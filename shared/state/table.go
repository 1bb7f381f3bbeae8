package state

import (
	"slices"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A table is the pages of one counter. Its registration in the directory says which number its
// pages have in shared data, how many they are, and which windows their records have. A
// worker adopts the registration when it first uses the table, and again when it meets a page of a
// later epoch: another configuration has changed the windows.
//
//	Read
//	 ├─ ensureRegistered     if the table is not open: loadSeed, then registerAndAdopt. The hash of the key,
//	 │                       which comes next, needs the seed
//	 └─ Reread               also by itself, if the hash is known: after a lost race, and by Settle and Renew
//	     ├─ load
//	     │   ├─ ensureRegistered   again: Settle, Renew and Refund have no Read before them, and a Split
//	     │   │                     may have closed the table since the hit
//	     │   └─ until a page fits
//	     │       ├─ loadPage       gets the page from the store
//	     │       │   └─ convertIn  OK: the page has the table's layout, or an older one, from which it
//	     │       │                 was converted. Mismatch: it has a newer one
//	     │       └─ adoptNewer     after a Mismatch: registerAndAdopt
//	     └─ readKey          in entry.go: brings the page to the present, and reads the key
//
//	registerAndAdopt        in tables.go: writes the directory if it lacks something,
//	 └─ adopt               opens the table
//	     └─ setLayout       and takes number, pages, epoch and layout from its registration
//
// A table is closed until it is registered, and open from then on:
//
//	closed ──── registerAndAdopt: at the first Read, or withOthers ahead of it ───▶ open
//	       ◀─── Split: the configuration moves to tables of another owner ─────────
//
// Pages of a closed table may be read all the same, by a registration that the table does not adopt:
//
//	field      set by           what it is                                    read with it
//	surveyed   PrepareSurveys   as another worker has registered the table    Survey.Step, as another table: forStep
//	looked     PrepareLooks     as registerAndAdopt would register it now     Look, for which the table borrows the
//	                                                                          layout: Usage, Held, BlockEnd need it

// Table holds the records of one counter.
type Table struct {
	parent *Tables // the tables of the configuration, of which this is one
	def    Definition

	open bool // registered in the directory

	// Of a closed table. nil: there is none.
	surveyed *registration
	looked   *registration
	layoutOf *registration // a looked one, whose layout the table has

	// If the table is open, the fields from number to spans are those of its registration in the directory. If it is
	// closed, they are those of layoutOf, for Look; or from before a Split, which may close the table between a Read
	// and its Commit; or zero.
	number  uint16
	pages   uint32
	base    uint32
	epoch   uint32
	layout  Layout
	header  page             // an empty page to compare with and to copy, never written
	columns [MaxWindows]int8 // by window of the definition: its column in the layout, or -1
	direct  bool             // define need not copy a key's windows
	block   int8             // the column of the definition's block, or -1

	spans []span // by column: the aligned window of the last hit
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// adopt opens the table with its registration in the directory.
func (t *Table) adopt(r *registration) {
	if t.open && t.number == r.number && t.base == r.base && t.epoch == r.epoch {
		return // an epoch has one layout
	}
	t.open = true
	t.layoutOf = nil
	t.setLayout(r)
}

// borrowLooked gives a closed table the layout of its looked registration. The table stays closed.
func (t *Table) borrowLooked() {
	if t.layoutOf != t.looked {
		t.layoutOf = t.looked
		t.setLayout(t.looked)
	}
}

// setLayout sets where the table's pages are and what they have.
func (t *Table) setLayout(r *registration) {
	t.number = r.number
	t.pages = r.geometry.Pages
	t.base = r.base
	t.epoch = r.epoch
	t.layout = NewLayout(r.windows, int(r.geometry.Slots))
	t.header = newPage(&t.layout, t.epoch)
	t.spans = make([]span, len(r.windows))
	t.direct = len(r.windows) == len(t.def.Windows)
	t.block = -1
	for window := range t.def.Windows {
		w := &t.def.Windows[window]
		column := slices.IndexFunc(r.windows, w.Same)
		t.columns[window] = int8(column)
		// define changes a log's Units to the layout's, and a bucket's Stamp to the rule's.
		changes := w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
		t.direct = t.direct && column == window && !changes
		if w.Algorithm == limit.Block {
			t.block = int8(column)
		}
	}
}

// lacksWindow reports whether the layout has no column for one of the
// definition's windows.
func (t *Table) lacksWindow() bool {
	return t.open && slices.Contains(t.columns[:len(t.def.Windows)], -1)
}

// ensureRegistered registers the table in the directory if it is not open, and opens it.
func (t *Table) ensureRegistered(now int64) Status {
	if t.open {
		return OK
	}
	if status := t.parent.loadSeed(); status != OK {
		return status
	}
	return t.parent.registerAndAdopt(now, t.parent.withOthers(t))
}

func (t *Table) hash(key []byte) uint64 {
	return siphash.Hash(t.parent.seed[0], t.parent.seed[1], key)
}

// locate returns the key of the page that a hash belongs to, by its high bits, and its
// fingerprint in the page, its low bits.
func (t *Table) locate(hash uint64) (pageKey [15]byte, fingerprint uint32) {
	index := hash >> 32 * uint64(t.pages) >> 32
	return t.pageKey(uint32(index)), uint32(hash)
}

// load reads the page of the key with e's hash, converted to the table's layout.
func (t *Table) load(e *Entry, now int64) Status {
	if status := t.ensureRegistered(now); status != OK {
		return status
	}
	for range MaxRetries {
		status := t.loadPage(e)
		if status != Mismatch {
			return status
		}
		if status := t.adoptNewer(now); status != OK {
			return status
		}
	}
	return Failed
}

// loadPage is load by the layout that the table has. It returns Mismatch if the page has a newer
// one.
func (t *Table) loadPage(e *Entry) Status {
	e.pageKey, e.fingerprint = t.locate(e.hash)
	value, cas, status := t.parent.store.Get(e.pageKey[:])
	switch status {
	case OK:
		e.page, status = t.convertIn(value)
		e.missing = false
		e.cas = cas
	case NotFound:
		e.page = t.header
		e.missing = true
		e.cas = CreateOnly
		status = OK
	default:
		return Failed
	}
	e.epoch = t.epoch
	return status
}

// adoptNewer reads the directory again, because a page is of a later epoch than the table.
func (t *Table) adoptNewer(now int64) Status {
	before := t.epoch
	if status := t.parent.registerAndAdopt(now, []*Table{t}); status != OK {
		return status
	}
	if t.epoch == before { // the directory does not know the page's epoch
		return Failed
	}
	return OK
}

// convertIn converts a page that comes in to the table's layout. It returns Mismatch if the page is of a later epoch
// than the registration that the table has adopted.
func (t *Table) convertIn(value []byte) (page, Status) {
	b := page(value)
	if t.hasLayout(b) {
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
	case epoch == t.epoch: // an epoch has one layout, and the page has another: it is damaged
		return nil, Failed
	default:
		from := b.layout()
		return b.convert(&from, &t.layout, t.epoch), OK
	}
}

// hasLayout reports whether b has the table's layout and is readable. TinyGo's bytes.Equal
// would allocate.
func (t *Table) hasLayout(b page) bool {
	if len(b) != len(t.header) {
		return false
	}
	sameHead := le.Uint64(b) == le.Uint64(t.header) // to the end of the epoch
	floors := t.layout.floorsAt
	return sameHead && le.Uint16(b[offSpare:]) == 0 && b.floorTime() >= 0 &&
		slices.Equal(b[headBytes:floors], t.header[headBytes:floors])
}
