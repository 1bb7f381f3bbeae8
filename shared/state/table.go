package state

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A table is the pages of one counter. Its registration in the directory says which number its
// pages have in shared data, how many they are, and which windows their records have. A
// worker adopts the registration when it first uses the table, and again when it meets a page of a
// later epoch: another configuration has changed the windows.
//
// A table is closed until it is registered, and open from then on:
//
//	closed ──── registerAndAdopt: at the first Read, or withOthers ahead of it ───▶ open
//	       ◀─── Split: the configuration moves to tables of another owner ─────────
//
// A Look or a Survey of a closed table leaves it closed: it reads the pages by a table of its own, see unregistered.

// Table holds the records of one counter.
type Table struct {
	parent *Tables // the tables of the configuration, of which this is one
	def    Definition

	open bool // registered in the directory

	// Registrations by which a closed table is read; nil = there is none. See unregistered.
	looked   *directory.Registration // from PrepareLooks: as registerAndAdopt would make it now
	surveyed *directory.Registration // from PrepareSurveys: as another worker has made it

	// Where the pages are, and how the definition's windows lie in them, by a registration: see placeBy.
	number            uint16
	pages             uint32
	base              uint32
	epoch             uint32
	layout            *page.Layout
	empty             page.Page                    // to compare with and to copy, never written
	columnOf          [page.MaxWindows]page.Column // of each window of the definition
	columnsAreWindows bool                         // the columns are the definition's windows: see byColumn
	block             page.Column                  // of the definition's block, or page.NoColumn

	lastSpans []span // a cache, by column: the aligned window of the last hit, see readRecord
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// ensureOpen registers the table in the directory if it is not open, and opens it.
func (t *Table) ensureOpen(now int64) Status {
	if t.open {
		return OK
	}
	if status := t.parent.loadSeed(); status != OK {
		return status
	}
	return t.parent.registerAndAdopt(now, t.parent.withOthers(t))
}

// adopt opens the table with its registration in the directory.
func (t *Table) adopt(r *directory.Registration) {
	if t.open && t.number == r.Number && t.base == r.Base && t.epoch == r.Epoch {
		return // an epoch has one layout
	}
	t.open = true
	t.placeBy(r)
}

// unregistered returns a table that reads t's pages by r, once, while t stays closed. It is thrown away, because
// other workers may have registered thousands, and each takes a page of memory.
func (t *Table) unregistered(r *directory.Registration) *Table {
	once := &Table{parent: t.parent, def: t.def}
	once.placeBy(r)
	return once
}

// placeBy sets where the table's pages are, and how the windows lie in them.
func (t *Table) placeBy(r *directory.Registration) {
	windows := t.def.Windows
	t.number = r.Number
	t.pages = r.Geometry.Pages
	t.base = r.Base
	t.epoch = r.Epoch
	t.layout = page.NewLayout(r.Windows, int(r.Geometry.Slots))
	t.empty = page.New(t.layout, t.epoch)
	t.columnsAreWindows = len(r.Windows) == len(windows)
	t.block = page.NoColumn
	t.lastSpans = make([]span, len(r.Windows))
	for window := range windows {
		w := &windows[window]
		column := t.layout.ColumnOf(*w)
		t.columnOf[window] = column
		// A log has the Units of the layout, and a bucket the Stamp of the rule: see byColumn and setLimits.
		differs := w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
		t.columnsAreWindows = t.columnsAreWindows && int(column) == window && !differs
		if w.Algorithm == limit.Block {
			t.block = column
		}
	}
}

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// columns returns the column of each window of the definition, page.NoColumn if the pages lack it.
func (t *Table) columns() []page.Column { return t.columnOf[:len(t.def.Windows)] }

// lacksWindow reports whether the layout has no column for one of the
// definition's windows.
func (t *Table) lacksWindow() bool { return t.open && slices.Contains(t.columns(), page.NoColumn) }

// A page is loaded into a worker's memory, brought to the present there, changed, and written in one compare-and-swap.
// Three types have such a page, each with what the one before has:
//
//	loadedPage   the page, and how it is written. A LeaseEntry needs no more
//	presentPage  what it takes to judge and evict any of its records: clocks, and the rule's limits. A visit
//	             (operate.go) loads one page after the other, without a key
//	Entry        one key: its record, limits and usage
//
// A function takes the smallest that it needs. So a method of Entry is about its key, and one of presentPage about the
// page, or the record in some slot of it. A Table's needs the store, or the definition, too.

// loadedPage is a page in a worker's memory, by the layout of its table.
type loadedPage struct {
	pageKey [15]byte // in shared data
	page    page.Page
	missing bool // the page does not exist yet: page is the table's empty one, which startChange copies
	cas     uint32
	epoch   uint32 // of the table at that time, or noEpoch
}

// presentPage is a page as of now.
type presentPage struct {
	loadedPage

	// clock.go says which clock counts what.
	Now      int64     // at which the key is counted: never before the last write
	CallerNs int64     // the caller's clock, as settleClock left it
	heldNs   HeldTime  // if the table holds
	leaseNs  leaseTime // if it is a lease table, which is visited; it has none of the others

	rule columnWindows // with the rule's limits

	// Memory that is kept from page to page, so that a decision allocates nothing. It carries no result from one to
	// the next.
	ruleMemory []limit.Window // of byColumn, for rule
	logMemory  []int64        // for one log of any record: who decodes one is done with the one before
	lapses     lapses         // all lists of lapses, one behind the other, until the next page is read
}

// noEpoch is the epoch of an Entry after a Look: no table has it, so nothing may be written.
const noEpoch uint32 = math.MaxUint32

// pageOf returns the index of the page that a key's hash leads to, by its high bits.
func (t *Table) pageOf(hash uint64) uint32 { return uint32((hash >> 32) * uint64(t.pages) >> 32) }

// fingerprint is what a page has of a key's hash: its low bits.
func fingerprint(hash uint64) uint32 { return uint32(hash) }

// load loads the page of the key with that hash, converted to the table's layout. If its windows are newer, it adopts
// them first.
func (t *Table) load(p *loadedPage, hash uint64, now int64) Status {
	// A Split may have closed the table since its first Read.
	if status := t.ensureOpen(now); status != OK {
		return status
	}
	for range MaxRetries {
		newer, status := t.loadPage(p, t.pageOf(hash))
		if !newer {
			return status
		}
		if status := t.adoptNewer(now); status != OK {
			return status
		}
	}
	return Failed
}

// loadPage loads the page with that index by the layout that the table has. If the page has newer windows, it only
// reports so: adoptNewer, and load it again.
func (t *Table) loadPage(p *loadedPage, index uint32) (newer bool, status Status) {
	p.pageKey = t.pageKey(index)
	value, cas, status := t.parent.store.Get(p.pageKey[:])
	switch status {
	case OK:
		p.page, newer, status = t.convertIn(value)
		p.missing = false
		p.cas = cas
	case NotFound:
		p.page = t.empty
		p.missing = true
		p.cas = CreateOnly
		status = OK
	default:
		return false, Failed
	}
	p.epoch = t.epoch
	return newer, status
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

// convertIn converts a page that comes in to the table's layout. A newer page is of a later epoch than the table, and
// stays as it is.
func (t *Table) convertIn(value []byte) (converted page.Page, newer bool, status Status) {
	if same, ok := t.empty.ReadLike(value); ok {
		return same, false, OK
	}
	old, ok := page.Read(value)
	if !ok {
		return page.Page{}, false, Failed
	}
	switch epoch := old.Epoch(); {
	case epoch > t.epoch:
		return page.Page{}, true, OK
	case epoch < t.base: // the page of a vanished counter
		return page.New(t.layout, t.epoch), false, OK
	case epoch == t.epoch: // an epoch has one layout, and the page has another: it is damaged
		return page.Page{}, false, Failed
	default:
		return old.Convert(t.layout, t.epoch), false, OK
	}
}

// startChange is the first step of all that writes the page of a key. It returns Mismatch if the table's windows have
// changed since the page was loaded, or after a Look.
//
// A page that does not exist yet becomes one of its own: until then, all keys of such pages share an empty one. Two
// others do without it: Read has nothing to bring to the present in an empty page, and a visit passes pages over that
// do not exist, and writes the others as soon as they are loaded.
func (t *Table) startChange(p *loadedPage) Status {
	if p.epoch != t.epoch {
		return Mismatch
	}
	if p.missing {
		p.page = p.page.Clone()
		p.missing = false
	}
	return OK
}

// write writes the page, unless another worker has written it since it was loaded.
func (t *Table) write(p *loadedPage) Status {
	return t.parent.store.Set(p.pageKey[:], p.page.Bytes, p.cas)
}
