package state

import (
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
//	Read                     read.go
//	 ├─ ensureOpen           registers the table, and loads the seed, which the hash of the key needs
//	 └─ Reread               also by itself: after a lost race, and by Settle and Renew
//	     ├─ load             load.go
//	     │   ├─ ensureOpen   again: a Split may have closed the table since the hit
//	     │   ├─ loadPage     gets the page, and converts it from older windows
//	     │   └─ adoptNewer   if it has newer windows: registerAndAdopt, then loadPage once more
//	     └─ readKey          brings the page to the present, and reads the key
//
//	registerAndAdopt         register.go: writes the directory if it lacks something
//	 └─ adopt                opens the table
//	     └─ setLayout        takes number, pages, epoch and layout from its registration
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
	surveyed *directory.Registration
	looked   *directory.Registration
	layoutOf *directory.Registration // a looked one, whose layout the table has

	// If the table is open, the fields from number to spans are those of its registration in the directory. If it is
	// closed, they are those of layoutOf, for Look; or from before a Split, which may close the table between a Read
	// and its Commit; or zero.
	number  uint16
	pages   uint32
	base    uint32
	epoch   uint32
	layout  *page.Layout
	empty   page.Page             // to compare with and to copy, never written
	columns [page.MaxWindows]int8 // by window of the definition: its column in the layout, or -1
	direct  bool                  // define need not copy a key's windows
	block   int8                  // the column of the definition's block, or -1

	spans []span // by column: the aligned window of the last hit
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// adopt opens the table with its registration in the directory.
func (t *Table) adopt(r *directory.Registration) {
	if t.open && t.number == r.Number && t.base == r.Base && t.epoch == r.Epoch {
		return // an epoch has one layout
	}
	t.open = true
	t.layoutOf = nil
	t.setLayout(r)
}

// setLayout sets where the table's pages are and what they have.
func (t *Table) setLayout(r *directory.Registration) {
	t.number = r.Number
	t.pages = r.Geometry.Pages
	t.base = r.Base
	t.epoch = r.Epoch
	t.layout = page.NewLayout(r.Windows, int(r.Geometry.Slots))
	t.empty = page.New(t.layout, t.epoch)
	t.spans = make([]span, len(r.Windows))
	t.direct = len(r.Windows) == len(t.def.Windows)
	t.block = -1
	for window := range t.def.Windows {
		w := &t.def.Windows[window]
		column := slices.IndexFunc(r.Windows, w.Same)
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
