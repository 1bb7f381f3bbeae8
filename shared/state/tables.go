package state

import (
	"bytes"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

// Definition is what a policy says about a counter.
type Definition = directory.Definition

// Tables are the counters of one configuration. A table is registered in the directory
// when it is first read, so that a configuration that Envoy refuses leaves no
// trace.
//
// A configuration that is changed keeps its name, so its successor takes over the tables.
// But siblings, which run side by side, may have one name, too, and would take counters or windows
// away from each other. To the one that loses them both look alike at first:
//
//	successor     A --- B takes a window of A          A ends, and nobody misses the window
//
//	sibling       A --- B takes a window of A          A runs on, and its Heartbeats find that the
//	                                                   window is gone: HasConflict
//
// Such a conflict lasts, and the caller ends it with Split:
//
//	before Split  owner X: A and B in the same tables
//	after Split   owner X: one of them                 owner Y (SetSplitOwner): the other
//
// A table that both define alike has both owners. Otherwise Y's begins empty.
type Tables struct {
	store  Store
	random func([]byte)
	self   directory.Owner
	tables []*Table // sorted by counter: no map, see docs/RATIONALE.md
	split  split

	holdClock holdClock
	seed      seed

	// Of the directory from which PrepareLooks has set each whileClosed.looked; 0 = none, or a Table lacks it.
	lookedCAS uint32
}

// split is what a configuration does about a sibling.
type split struct {
	conflict bool   // see HasConflict
	owner    uint64 // of the tables after Split; 0 = there is none
	isDone   bool   // the tables are that owner's: from then on it has no conflict
}

// NewTables returns an empty set of tables over store. ownerID is their owner,
// configuredNs is when its configuration was made, and random fills its argument
// with bytes that nobody can guess.
func NewTables(store Store, random func([]byte), ownerID uint64, configuredNs int64) *Tables {
	return &Tables{
		store: store, random: random, self: directory.Owner{ID: ownerID, ConfiguredNs: configuredNs},
	}
}

// On returns an empty set of tables for the same configuration over another store: define its tables again. A
// store that keeps writes to itself shows what would happen without changing anything.
func (ts *Tables) On(store Store) *Tables {
	return NewTables(store, ts.random, ts.self.ID, ts.self.ConfiguredNs)
}

// Table returns the table of a counter; rules that share a counter share it.
func (ts *Tables) Table(def Definition) *Table {
	index, found := ts.find(def.Counter)
	if !found {
		ts.tables = slices.Insert(ts.tables, index, &Table{parent: ts, def: def})
		ts.lookedCAS = 0
	}
	return ts.tables[index]
}

// Clear lets go of all tables. It empties each, because TinyGo's collector may take some number for a pointer to a
// table: then it keeps no page and no layout with it.
func (ts *Tables) Clear() {
	for _, table := range ts.tables {
		*table = Table{}
	}
	ts.tables = nil
}

func (ts *Tables) find(id CounterID) (index int, found bool) {
	return slices.BinarySearchFunc(ts.tables, id, func(table *Table, id CounterID) int {
		return bytes.Compare(table.def.Counter[:], id[:])
	})
}

// SetSplitOwner sets the owner of the tables after Split. All workers that run one
// configuration must set the same. When one of them has split, the others do so as
// soon as they meet the conflict themselves.
func (ts *Tables) SetSplitOwner(ownerID uint64) { ts.split.owner = ownerID }

// HasConflict reports whether another configuration of the same owner has taken
// away a counter of this one, or one of its windows, as of the last Heartbeat or
// later. Both a successor and a sibling, which runs beside this configuration, do
// so with their first hit.
func (ts *Tables) HasConflict() bool { return ts.split.conflict }

// Split moves this configuration to tables of the owner that SetSplitOwner set.
// Tables that both owners define alike are shared; the others start empty, and
// what they held stays with the owner before.
func (ts *Tables) Split() {
	ts.split.isDone = true
	ts.split.conflict = false
	ts.self.ID = ts.split.owner
	for _, table := range ts.tables {
		table.open = false
		table.whileClosed = whileClosed{}
	}
	ts.lookedCAS = 0
}

// Release removes the owner from all its tables after Split. No successor takes
// over a split owner's tables: they wait, see package directory. It does nothing
// before Split, or before the first hit.
func (ts *Tables) Release(now int64) Status {
	for _, table := range ts.tables {
		if ts.split.isDone && table.open {
			return ts.update(func(d *directory.Directory) Status {
				d.LeaveAndSweep(ts.self, func(CounterID) bool { return false }, now)
				return OK
			})
		}
	}
	return OK
}

// closed returns the tables that are not registered.
func (ts *Tables) closed() (closed []*Table) {
	for _, table := range ts.tables {
		if !table.open {
			closed = append(closed, table)
		}
	}
	return closed
}

// keeps reports whether the configuration has the counter.
func (ts *Tables) keeps(id CounterID) bool {
	_, found := ts.find(id)
	return found
}
