package state

import (
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
// A Look or a Survey of a closed table leaves it closed: it reads the pages by a placement that it throws away, because
// other workers may have registered thousands of tables, and each takes a page of memory.

// Table holds the records of one counter.
type Table struct {
	parent *Tables // the tables of the configuration, of which this is one
	def    Definition

	open bool // registered in the directory

	placement *placement // by the registration that it has adopted last; nil before the first

	// Registrations by which Look and Survey read a closed table; nil = there is none.
	looked   *directory.Registration // from PrepareLooks: as registerAndAdopt would make it now
	surveyed *directory.Registration // from PrepareSurveys: as another worker has made it
}

// placement is where the pages of a table are, and how the definition's windows lie in them, by one registration. A
// table that adopts another registration gets another placement, so one never changes, but for its cache.
//
// A Table has a placement, and each page in a worker's memory has the one by which it was loaded. The table may adopt
// newer windows after that, because another key's page has them. So a function that has a page goes by the page's
// placement and Layout. One that has no page, such as IsDue, goes by the table's. A page whose placement is no longer
// the table's is only read: startChange refuses to change it.
type placement struct {
	number            uint16 // in the keys of the pages
	pages             uint32
	base              uint32
	epoch             uint32
	layout            *page.Layout
	empty             page.Page     // to compare with and to copy, never written
	columnOf          []page.Column // of each window of the definition, page.NoColumn if the pages lack it
	columnsAreWindows bool          // the definition's windows as they are: see lacksOfColumn
	block             page.Column   // of the definition's block, or page.NoColumn

	lastSpans []span // a cache, by column: the aligned window of the last hit, see readRecord
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// openFor is ensureOpen, for a call that loads a page into p. Until that is there, p has another one.
func (t *Table) openFor(p *loadedPage, now int64) Status {
	p.readOnly = true
	return t.ensureOpen(now)
}

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
	if t.open && t.placement.isBy(r) {
		return
	}
	t.open = true
	t.placement = newPlacement(&t.def, r)
}

// EmptyPage returns a page as it is before it is first written. The table must be open, as it is after a Read.
func (t *Table) EmptyPage() []byte { return t.placement.empty.Clone().Bytes }

// isBy reports whether the placement is by that registration. An epoch has one layout.
func (pl *placement) isBy(r *directory.Registration) bool {
	return pl.number == r.Number && pl.base == r.Base && pl.epoch == r.Epoch
}

// newPlacement is that of a table with the definition, by a registration.
func newPlacement(def *Definition, r *directory.Registration) *placement {
	pl := new(placement)
	pl.number = r.Number
	pl.pages = r.Geometry.Pages
	pl.base = r.Base
	pl.epoch = r.Epoch
	pl.layout = page.NewLayout(r.Windows, int(r.Geometry.Slots))
	pl.empty = page.New(pl.layout, pl.epoch)
	pl.columnOf = make([]page.Column, len(def.Windows))
	pl.columnsAreWindows = len(r.Windows) == len(def.Windows)
	pl.block = page.NoColumn
	pl.lastSpans = make([]span, len(r.Windows))
	for window := range def.Windows {
		w := &def.Windows[window]
		column := pl.layout.ColumnOf(*w)
		pl.columnOf[window] = column
		pl.columnsAreWindows = pl.columnsAreWindows && int(column) == window && !lacksOfColumn(w)
		if w.Algorithm == limit.Block {
			pl.block = column
		}
	}
	return pl
}

// placementOr returns the table's placement, or if it is closed, one by that registration; nil if there is none.
func (t *Table) placementOr(r *directory.Registration) *placement {
	switch {
	case t.open:
		return t.placement
	case r == nil:
		return nil
	}
	return newPlacement(&t.def, r)
}

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// A page is loaded into a worker's memory, brought to the present there, changed, and written in one compare-and-swap.
// Four types have such a page, each with what the one before has:
//
//	loadedPage   the page, and how it is written. A LeaseEntry needs no more
//	timedPage    what it takes to bring it to the present: clocks, and the rule's limits
//	presentPage  Now, since that is done: any of its records can be judged and evicted. A visit (operate.go) loads one
//	             page after the other, without a key
//	Entry        one key: its record, limits and usage
//
// A function takes the smallest that it needs. So a method of Entry is about its key, and one of a smaller type about
// the page, or the record in some slot of it. A Table's needs the store, or the definition, too.

// loadedPage is a page in a worker's memory.
type loadedPage struct {
	placement *placement // of the table when the page was loaded: the page has its layout and epoch

	pageKey  [15]byte // in shared data; unless it is read-only, that of page
	page     page.Page
	missing  bool // the page does not exist yet: page is the placement's empty one, which startChange copies
	readOnly bool // it was loaded by a Look or a Refund, or the load of another page in its place has failed
	cas      uint32
}

// timedPage is a page with the clocks of now. clock.go says which clock counts what.
type timedPage struct {
	loadedPage

	CallerNs int64    // the caller's clock
	holdNs   HoldTime // if the page has holds

	rule columnWindows // with the rule's limits

	// Memory that is kept from page to page, so that a decision allocates nothing. It carries no result from one to
	// the next.
	logMemory []int64 // for one log of any record: who decodes one is done with the one before
	lapses    lapses  // all lists of lapses, one behind the other, until the next page is read
}

// presentPage is a page as of now.
type presentPage struct {
	timedPage

	// Now is when the key is counted: never before the last write. Code that runs before it is set takes a timedPage,
	// because Now is still that of the page before.
	Now int64
}

// pageOf returns the index of the page that a key's hash leads to, by its high bits.
func (pl *placement) pageOf(hash uint64) uint32 { return uint32((hash >> 32) * uint64(pl.pages) >> 32) }

// fingerprint is what a page has of a key's hash: its low bits.
func fingerprint(hash uint64) uint32 { return uint32(hash) }

// load loads the page of the key with that hash, converted to the table's layout. If its windows are newer, it adopts
// them first.
func (t *Table) load(p *loadedPage, hash uint64, now int64) Status {
	// A Split may have closed the table since its first Read.
	if status := t.openFor(p, now); status != OK {
		return status
	}
	for range MaxRetries {
		if status := t.loadPage(p, t.placement, t.placement.pageOf(hash)); status != newer {
			p.readOnly = status != OK
			return status
		}
		if status := t.adoptNewer(now); status != OK {
			return status
		}
	}
	return Failed
}

// loadPage loads the page with that index by a placement: the table's, unless a Look reads a closed table. If the page
// has newer windows, it only says so: adoptNewer, and load it again. Then, or if it fails, p keeps the page that it had
// and the placement of that, because its caller may go on to tell what it has read there. The page is read-only until
// the caller says otherwise.
func (t *Table) loadPage(p *loadedPage, by *placement, index uint32) Status {
	p.readOnly = true
	p.pageKey = by.pageKey(index)
	value, cas, status := t.parent.store.Get(p.pageKey[:])
	loaded, missing := by.empty, false
	switch status {
	case OK:
		loaded, status = by.convert(value)
		if status != OK {
			return status
		}
	case NotFound:
		missing = true
		cas = CreateOnly
	default:
		return Failed
	}
	p.placement = by
	p.page = loaded
	p.missing = missing
	p.cas = cas
	return OK
}

// adoptNewer reads the directory again, because a page is of a later epoch than the table.
func (t *Table) adoptNewer(now int64) Status {
	before := t.placement.epoch
	if status := t.parent.registerAndAdopt(now, []*Table{t}); status != OK {
		return status
	}
	if t.placement.epoch == before { // the directory does not know the page's epoch
		return Failed
	}
	return OK
}

// convert returns a page as it is stored, converted to the placement's layout. It does not take one of a later epoch,
// which is newer, nor one that it cannot read.
func (pl *placement) convert(value []byte) (p page.Page, status Status) {
	if same, ok := pl.empty.ReadLike(value); ok {
		return same, OK
	}
	old, ok := page.Read(value)
	if !ok {
		return p, Failed
	}
	switch epoch := old.Epoch(); {
	case epoch > pl.epoch:
		return p, newer
	case epoch < pl.base: // the page of a vanished counter
		return page.New(pl.layout, pl.epoch), OK
	case epoch == pl.epoch: // an epoch has one layout, and the page has another: it is damaged
		return p, Failed
	}
	return old.Convert(pl.layout, pl.epoch), OK
}

// startChange is the first step of all that writes the page of a key. It returns Mismatch if the table has got another
// placement since the page was loaded, and ReadOnly after a Look, a Refund, or a load that failed.
//
// A page that does not exist yet becomes one of its own: until then, all keys of such pages share an empty one. Two
// others do without it: Read has nothing to bring to the present in an empty page, and a visit passes pages over that
// do not exist, and writes the others as soon as they are loaded.
func (t *Table) startChange(p *loadedPage) Status {
	switch {
	case p.readOnly:
		return ReadOnly
	case p.placement != t.placement:
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
