package state

import (
	"bytes"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
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

	holdReading holdReading
	seed        seed

	lookedCAS uint32 // of the directory from which PrepareLooks has set each Table.looked that there is; 0 = of none
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
// what they held stays with the owner before. How many proxies are alive, the new owner is told, too, unless another
// worker has split before.
func (ts *Tables) Split() {
	proxies := ts.Proxies()
	ts.split.isDone = true
	ts.split.conflict = false
	ts.self.ID = ts.split.owner
	if proxies > 0 && ts.Proxies() == 0 {
		ts.SetProxies(proxies)
	}
	for _, table := range ts.tables {
		table.open = false
		table.looked = nil
		table.surveyed = nil
	}
}

// Release removes the owner from all its tables after Split. No successor takes
// over a split owner's tables: they wait, see package directory. It does nothing
// before Split, or before the first hit.
func (ts *Tables) Release(now int64) Status {
	if !ts.split.isDone || !slices.ContainsFunc(ts.tables, isOpen) {
		return OK
	}
	return ts.update(func(d *directory.Directory) Status {
		d.LeaveAndSweep(ts.self, func(CounterID) bool { return false }, now)
		return OK
	})
}

func isOpen(t *Table) bool { return t.open }

// How tables get into the directory, and stay there.

// registerAndAdopt registers tables in the directory and adopts their registrations. Before Split, it finds out whether
// another configuration of the same owner has taken away a counter or a window:
//
//	what was taken away                  other workers have split       none has
//	dropped       a counter              it splits, too                 HasConflict
//	lackedWindow  a window, before this  it splits, too                 HasConflict, if lacksWindow too
//	lacksWindow   a window, by now       HasConflict: the next call     HasConflict
//	                                     finds it by the line above
//
// After Split there is no conflict.
func (ts *Tables) registerAndAdopt(now int64, tables []*Table) Status {
	var registered []directory.Registration
	var dropped, follows bool
	lackedWindow := lackWindow(tables) // as of what they adopted last
	status := ts.update(func(d *directory.Directory) (status Status) {
		// The caller may have read its clock before another worker wrote d. Without a look at the
		// clock of now, that worker's times would seem to be of the future.
		now = max(now, ts.store.Now())
		ts.tidy(d, now)
		dropped = ts.wasDropped(d, tables)
		follows = !ts.split.isDone && (dropped || lackedWindow) && d.HasOwner(ts.split.owner)
		owner := ts.self
		if follows {
			owner.ID = ts.split.owner
		}
		registered, status = register(d, owner, tables, now)
		return status
	})
	if status != OK {
		return status
	}
	if follows {
		ts.Split()
	}
	for i, table := range tables {
		table.adopt(&registered[i])
	}
	lacksWindow := lackWindow(tables) // as of what they have adopted now
	if !ts.split.isDone && (dropped || lacksWindow) {
		ts.split.conflict = true
	}
	return OK
}

// tidy makes times of the future, from before the clock was set back, the oldest. Then the owner leaves the tables
// whose counters it no longer has, and those that have waited long enough go.
func (ts *Tables) tidy(d *directory.Directory, now int64) {
	d.ForgetFuture(now)
	d.LeaveAndSweep(ts.self.AsOf(now), ts.keeps, now)
}

// keeps reports whether the configuration has the counter.
func (ts *Tables) keeps(id CounterID) bool {
	_, found := ts.find(id)
	return found
}

// register registers tables for an owner in a directory that is tidy. It fails if the directory has no room for all.
func register(
	d *directory.Directory, owner directory.Owner, tables []*Table, now int64,
) (registered []directory.Registration, status Status) {
	for _, table := range tables {
		r, ok := d.Register(owner.AsOf(now), &table.def, now)
		if !ok {
			return nil, Failed
		}
		registered = append(registered, *r)
	}
	return registered, OK
}

// lackWindow reports whether the registration that some table has adopted has no column for one of its windows.
func lackWindow(tables []*Table) bool {
	return slices.ContainsFunc(tables, func(t *Table) bool {
		return t.open && slices.Contains(t.placement.columnOf, page.NoColumn)
	})
}

// wasDropped reports whether the owner was removed from one of its tables. It has two causes. Another configuration of
// this owner has no such counter: that conflict lasts. Or this one has missed its heartbeats (dropOwners): then it has
// a conflict only until its next heartbeat, which finds the owner in the table again.
func (ts *Tables) wasDropped(d *directory.Directory, tables []*Table) bool {
	for _, table := range tables {
		if table.open && !ts.owns(d, table) {
			return true
		}
	}
	return false
}

// owns reports whether the directory still has the owner for the table.
func (ts *Tables) owns(d *directory.Directory, table *Table) bool {
	for _, i := range d.TablesOf(table.def.Counter) {
		if r := &d.Tables[i]; r.Base == table.placement.base && r.HasOwner(ts.self.ID) {
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
// few registrations. The directory takes all of them or none: near
// directory.MaxTables, a table may be refused although there is room for it alone.
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
func (ts *Tables) directory() (d directory.Directory, status Status) {
	value, _, status := ts.store.Get(directoryKey)
	if status != OK {
		return d, status
	}
	d, ok := directory.Read(value)
	if !ok {
		return d, Failed
	}
	return d, OK
}

// update applies change to the directory, and writes the result if it differs, and change returns OK.
func (ts *Tables) update(change func(*directory.Directory) Status) Status {
	return Update(ts.store, directoryKey, func(old []byte) ([]byte, Status) {
		var d directory.Directory
		if old != nil {
			var ok bool
			d, ok = directory.Read(old)
			if !ok {
				return nil, Failed
			}
		}
		if status := change(&d); status != OK {
			return nil, status
		}
		if next := d.Append(nil); !bytes.Equal(next, old) {
			return next, OK
		}
		return nil, OK
	})
}

// Heartbeat writes the owner's sign of life, reads the directory, and registers
// the tables again if another configuration has removed the owner from them. Call
// it several times in each RoundNs. It does nothing before the first hit.
func (ts *Tables) Heartbeat(now int64) Status {
	var open []*Table
	for _, table := range ts.tables {
		if table.open {
			open = append(open, table)
			if table.placement.layout.HasHolds() {
				ts.HoldClock() // says that the process runs
			}
		}
	}
	status := ts.renewHeartbeat(now, len(open) > 0)
	if len(open) == 0 {
		return status
	}
	ts.split.conflict = false
	adopted := ts.registerAndAdopt(now, open) // also if the sign of life was not written
	if status != OK {
		return status
	}
	return adopted
}

// renewHeartbeat writes the owner's heartbeat once a round, and removes owners
// without heartbeats from their tables. An owner that has never counted writes
// none, so that a configuration that Envoy refuses leaves no trace.
func (ts *Tables) renewHeartbeat(now int64, hasTables bool) Status {
	var gone []uint64
	status := Update(ts.store, heartbeatsKey, func(old []byte) (next []byte, status Status) {
		gone = nil
		h := directory.Heartbeats{BeganNs: now}
		if old != nil {
			stored, ok := directory.ReadHeartbeats(old)
			if !ok {
				return nil, Failed
			}
			h = stored
		}
		if !h.IsDue(ts.self.ID, now, hasTables) {
			return nil, OK
		}
		if !h.RoundEnded(now) {
			h.Renew(ts.self.ID)
			return h.Append(nil), OK
		}
		d, status := ts.directory()
		if status != OK {
			return nil, status
		}
		gone = h.BeginRound(now, ts.self.ID, &d)
		return h.Append(nil), OK
	})
	if status != OK {
		return status
	}
	return ts.dropOwners(gone, now)
}

// dropOwners removes owners from their tables. An owner that was only late comes
// back with its next tick and finds its tables unchanged. If this worker dies before it has dropped them, they
// still have tables, so the next round gives them a heartbeat, and some worker finds again that they miss theirs.
func (ts *Tables) dropOwners(gone []uint64, now int64) Status {
	if len(gone) == 0 {
		return OK
	}
	return ts.update(func(d *directory.Directory) Status {
		d.DropOwners(gone, now)
		return OK
	})
}
