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
// A Look or a Survey of a closed table leaves it closed: it reads the pages by a table of its own, see unregistered.

// Table holds the records of one counter.
type Table struct {
	parent *Tables // the tables of the configuration, of which this is one
	def    Definition

	open        bool        // registered in the directory
	placement               // of an open table, by its registration
	whileClosed whileClosed // see unregistered
}

// placement is where the pages of a table are, and how the definition's windows lie in them, by one registration.
type placement struct {
	number   uint16
	pages    uint32
	base     uint32
	epoch    uint32
	layout   *page.Layout
	empty    page.Page                    // to compare with and to copy, never written
	columnOf [page.MaxWindows]page.Column // of each window of the definition
	direct   bool                         // columns are the definition's windows: setWindows need not copy
	block    page.Column                  // of the definition's block, or page.NoColumn

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
	t.setPlacement(r)
}

// unregistered returns a table that reads t's pages by r, once, while t stays closed. It is thrown away, because
// other workers may have registered thousands, and each takes a page of memory.
func (t *Table) unregistered(r *directory.Registration) *Table {
	once := &Table{parent: t.parent, def: t.def}
	once.setPlacement(r)
	return once
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
	p.block = page.NoColumn
	p.lastSpans = make([]span, len(r.Windows))
	for window := range windows {
		w := &windows[window]
		column := p.layout.ColumnOf(*w)
		p.columnOf[window] = column
		// setWindows changes a log's Units to the layout's, and a bucket's Stamp to the rule's.
		changes := w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
		p.direct = p.direct && int(column) == window && !changes
		if w.Algorithm == limit.Block {
			p.block = column
		}
	}
}

// Windows are those of the table's definition.
func (t *Table) Windows() []limit.Window { return t.def.Windows }

// onlyHolds reports whether the definition's only window is a concurrency. A policy gives it a limit only then: beside
// other windows it is Unlimited.
func (t *Table) onlyHolds() bool {
	return len(t.def.Windows) == 1 && t.def.Windows[0].Algorithm == limit.Concurrency
}

// columns returns the column of each window of the definition, page.NoColumn if the pages lack it.
func (t *Table) columns() []page.Column { return t.columnOf[:len(t.def.Windows)] }

// lacksWindow reports whether the layout has no column for one of the
// definition's windows.
func (t *Table) lacksWindow() bool { return t.open && slices.Contains(t.columns(), page.NoColumn) }
