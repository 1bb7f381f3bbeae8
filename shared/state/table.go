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
//	 └─ adopt                opens the table, with a placement by its registration
//
// A table is closed until it is registered, and open from then on:
//
//	closed ──── registerAndAdopt: at the first Read, or withOthers ahead of it ───▶ open
//	       ◀─── Split: the configuration moves to tables of another owner ─────────
//
// Pages of a closed table may be read all the same, by a registration that it does not adopt.
//
//	field      set by           the registration                        where a placement by it is
//	surveyed   PrepareSurveys   as another worker has made it           in another Table, during one Survey.Step
//	looked     PrepareLooks     as registerAndAdopt would make it now   in this one since a Look, for Usage, Held and
//	                                                                    BlockEnd; the table stays closed
//
// No Commit writes by such a placement. After a Look, startChange refuses it: the Entry is of no epoch. A Survey uses
// an Entry only as memory, and its caller Reads it again.

// Table holds the records of one counter.
type Table struct {
	parent *Tables // the tables of the configuration, of which this is one
	def    Definition

	open      bool // registered in the directory
	placement      // of an open table by its registration; of a closed one by placedBy, or from before a Split, or zero

	// Of a closed table. nil: there is none.
	surveyed, looked *directory.Registration
	placedBy         *directory.Registration // the looked one by which borrow has set the placement
}

// placement is where the pages of a table are, and how the definition's windows lie in them, by one registration.
type placement struct {
	number   uint16
	pages    uint32
	base     uint32
	epoch    uint32
	layout   *page.Layout
	empty    page.Page             // to compare with and to copy, never written
	columnOf [page.MaxWindows]int8 // each window of the definition: its column in the layout, or -1
	direct   bool                  // define need not copy a key's windows
	block    int8                  // the column of the definition's block, or -1
	spans    []span                // by column: the aligned window of the last hit
}

// span is an aligned window that all keys share, [start, end).
type span struct{ start, end int64 }

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// onlyHolds reports whether the definition's only window is a concurrency. A policy gives it a limit only then: beside
// other windows it is Unlimited.
func (t *Table) onlyHolds() bool {
	return len(t.def.Windows) == 1 && t.def.Windows[0].Algorithm == limit.Concurrency
}

// adopt opens the table with its registration in the directory.
func (t *Table) adopt(r *directory.Registration) {
	if t.open && t.number == r.Number && t.base == r.Base && t.epoch == r.Epoch {
		return // an epoch has one layout
	}
	t.open = true
	t.placedBy = nil
	t.setPlacement(r)
}

// borrow sets the placement of a closed table by r, if it is not by r already.
func (t *Table) borrow(r *directory.Registration) {
	if t.placedBy != r {
		t.placedBy = r
		t.setPlacement(r)
	}
}

// setPlacement sets the table's placement by r, each field where it is: a copy of all takes much code.
func (t *Table) setPlacement(r *directory.Registration) {
	p, windows := &t.placement, t.def.Windows
	p.number = r.Number
	p.pages = r.Geometry.Pages
	p.base = r.Base
	p.epoch = r.Epoch
	p.layout = page.NewLayout(r.Windows, int(r.Geometry.Slots))
	p.empty = page.New(p.layout, p.epoch)
	p.direct = len(r.Windows) == len(windows)
	p.block = -1
	p.spans = make([]span, len(r.Windows))
	for window := range windows {
		w := &windows[window]
		column := slices.IndexFunc(r.Windows, w.Same)
		p.columnOf[window] = int8(column)
		// define changes a log's Units to the layout's, and a bucket's Stamp to the rule's.
		changes := w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
		p.direct = p.direct && column == window && !changes
		if w.Algorithm == limit.Block {
			p.block = int8(column)
		}
	}
}

// lacksWindow reports whether the layout has no column for one of the
// definition's windows.
func (t *Table) lacksWindow() bool {
	return t.open && slices.Contains(t.columnOf[:len(t.def.Windows)], -1)
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
