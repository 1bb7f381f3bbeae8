package state

import (
	"bytes"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Definition is what a policy says about a counter.
type Definition struct {
	Counter  CounterID
	Windows  []limit.Window // in the order of limit.Window.Compare
	Capacity uint32
}

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
	store      Store
	random     func([]byte)
	self       owner
	splitOwner uint64   // owner of the tables after Split; 0 = there is none
	split      bool     // the tables are the split owner's
	conflict   bool     // see HasConflict
	tables     []*Table // sorted by counter: no map, see docs/RATIONALE.md

	// The holds' clock, see HeldNow.
	heldReadNs int64
	stoodNs    int64
	heldClock  [heldClockBytes]byte // memory for it

	seeded bool
	seed   [2]uint64

	lookedCAS uint32 // of the directory from which PrepareLooks has set Table.looked of closed tables; 0 = none
}

// NewTables returns an empty set of tables over store. ownerID is their owner,
// configuredNs is when its configuration was made, and random fills its argument
// with bytes that nobody can guess.
func NewTables(store Store, random func([]byte), ownerID uint64, configuredNs int64) *Tables {
	return &Tables{
		store: store, random: random, self: owner{ownerID, configuredNs},
	}
}

// On returns an empty set of tables for the same configuration over another store: define its tables again. A
// store that keeps writes to itself shows what would happen without changing anything.
func (ts *Tables) On(store Store) *Tables {
	return NewTables(store, ts.random, ts.self.id, ts.self.configuredNs)
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
func (ts *Tables) SetSplitOwner(ownerID uint64) { ts.splitOwner = ownerID }

// HasConflict reports whether another configuration of the same owner has taken
// away a counter of this one, or one of its windows, as of the last Heartbeat or
// later. Both a successor and a sibling, which runs beside this configuration, do
// so with their first hit.
func (ts *Tables) HasConflict() bool { return ts.conflict }

// Split moves this configuration to tables of the owner that SetSplitOwner set.
// Tables that both owners define alike are shared; the others start empty, and
// what they held stays with the owner before.
func (ts *Tables) Split() {
	ts.split = true
	ts.conflict = false
	ts.self.id = ts.splitOwner
	for _, table := range ts.tables {
		table.open = false
		table.surveyed = nil
		table.looked = nil
	}
	ts.lookedCAS = 0
}

// Release removes the owner from all its tables after Split. No successor takes
// over a split owner's tables: they wait for their windows to end. It does nothing
// before Split, or before the first hit.
func (ts *Tables) Release(now int64) Status {
	for _, table := range ts.tables {
		if ts.split && table.open {
			return ts.update(func(d *directory) {
				d.leaveAndSweep(ts.self, func(CounterID) bool { return false }, now)
			})
		}
	}
	return OK
}

// keeps reports whether the configuration has the counter.
func (ts *Tables) keeps(id CounterID) bool {
	_, found := ts.find(id)
	return found
}

// Heartbeat writes the owner's sign of life, reads the directory, and registers
// the tables again if another configuration has removed the owner from them. Call
// it several times in each RoundNs. It does nothing before the first hit.
func (ts *Tables) Heartbeat(now int64) Status {
	var open []*Table
	for _, table := range ts.tables {
		if table.open {
			open = append(open, table)
			if table.layout.hasHolds {
				ts.HeldNow() // says that the process runs
			}
		}
	}
	status := ts.renewHeartbeat(now, len(open) > 0)
	if len(open) == 0 {
		return status
	}
	ts.conflict = false
	adopted := ts.registerAndAdopt(now, open) // also if the sign of life was not written
	if status != OK {
		return status
	}
	return adopted
}

// registerAndAdopt registers tables in the directory and adopts their registrations. If another
// configuration of the same owner has taken away a counter or a window, this configuration
// has a conflict, and follows the other workers if they have split.
func (ts *Tables) registerAndAdopt(now int64, tables []*Table) Status {
	var done registered
	status := ts.update(func(d *directory) {
		// The caller may have read its clock before another worker wrote d. Without a look at the
		// clock of now, that worker's times would seem to be of the future.
		now = max(now, ts.store.Now())
		done = ts.registerIn(d, tables, now)
	})
	if status != OK {
		return status
	}
	if done.split {
		ts.Split()
	}
	conflict := done.dropped
	for i, table := range tables {
		table.adopt(&done.tables[i])
		conflict = conflict || table.lacksWindow()
	}
	ts.conflict = (ts.conflict || conflict) && !ts.split
	return OK
}

// registered is what registerIn has found and done in the directory.
type registered struct {
	tables  []registration // of the tables, in their order
	dropped bool           // the owner was removed from one of its tables
	split   bool           // there is a conflict, and other workers have split: this one must follow
}

// registerIn registers tables in the directory d, in four steps. It changes nothing else: if another worker
// writes the directory first, it is called again.
//
//  1. Times of the future, from before the clock was set back, become the oldest.
//  2. The owner leaves the tables whose counters it no longer has, and those that have waited long enough go.
//  3. It looks for a conflict. If there is one, and other workers have split, the tables are the split owner's.
//  4. It registers each table for that owner.
func (ts *Tables) registerIn(d *directory, tables []*Table, now int64) (done registered) {
	d.forgetFuture(now)
	self := owner{ts.self.id, pastOrOldest(ts.self.configuredNs, now)}
	d.leaveAndSweep(self, ts.keeps, now)
	done.dropped = ts.wasDropped(d, tables)
	meetsConflict := done.dropped || slices.ContainsFunc(tables, (*Table).lacksWindow)
	done.split = meetsConflict && !ts.split && d.hasOwner(ts.splitOwner)
	if done.split {
		self.id = ts.splitOwner
	}
	for _, table := range tables {
		done.tables = append(done.tables, *d.register(self, &table.def, now))
	}
	return done
}

// wasDropped reports whether the owner was removed from one of its tables.
func (ts *Tables) wasDropped(d *directory, tables []*Table) bool {
	for _, table := range tables {
		if table.open && !ts.owns(d, table) {
			return true
		}
	}
	return false
}

// owns reports whether the directory still has the owner for the table.
func (ts *Tables) owns(d *directory, table *Table) bool {
	for _, i := range d.tablesOf(table.def.Counter) {
		if r := &d.tables[i]; r.base == table.base && r.hasOwner(ts.self.id) {
			return true
		}
	}
	return false
}

// minAhead is how many tables must be registered before others are registered
// ahead of their first hit.
const minAhead = 16

// withOthers returns the table and others to register with it: as many as are
// registered already. To register is to read and write the whole directory, so
// ten thousand tables one by one would take minutes; doubling their number takes
// few registrations.
func (ts *Tables) withOthers(first *Table) []*Table {
	var closed []*Table
	open := 0
	for _, table := range ts.tables {
		switch {
		case table.open:
			open++
		case table != first:
			closed = append(closed, table)
		}
	}
	if open < minAhead {
		return []*Table{first}
	}
	return append([]*Table{first}, closed[:min(open, len(closed))]...)
}

// directory reads the directory.
func (ts *Tables) directory() (d directory, status Status) {
	value, _, status := ts.store.Get(directoryKey)
	if status != OK {
		return d, status
	}
	d, ok := readDirectory(value)
	if !ok {
		return d, Failed
	}
	return d, OK
}

// update applies change to the directory, and writes the result if it differs.
func (ts *Tables) update(change func(*directory)) Status {
	return Update(ts.store, directoryKey, func(old []byte) ([]byte, Status) {
		var d directory
		if old != nil {
			var ok bool
			d, ok = readDirectory(old)
			if !ok {
				return nil, Failed
			}
		}
		change(&d)
		if next := d.append(nil); !bytes.Equal(next, old) {
			return next, OK
		}
		return nil, OK
	})
}
