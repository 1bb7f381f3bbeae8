package state

import "github.com/sluice-ratelimit/sluice/shared/state/directory"

// A look reads what a key has counted, and leaves no trace: it writes nothing into shared data, registers
// no table and tells nobody that this worker runs.
//
//	PrepareLooks    for tables that this worker has not registered: what the directory has of them
//	Look            of one key; Usage, Held and BlockEnd then tell as after Read

// PrepareLooks works out how all tables that are not registered would be registered now. Call it before
// Look, in the same callback. It reads the directory, and does its work again only if that has changed.
func (ts *Tables) PrepareLooks(now int64) Status {
	closed := ts.closed()
	if len(closed) == 0 {
		return OK
	}
	if status := ts.findSeed(); status != OK {
		return status
	}
	value, cas, status := ts.store.Get(directoryKey)
	var d directory.Directory
	switch status {
	case OK:
		if cas == ts.lookedCAS { // it has not changed
			return OK
		}
		var ok bool
		d, ok = directory.Read(value)
		if !ok {
			return Failed
		}
	case NotFound: // no table is registered, so the next call looks again
		cas = 0
	default:
		return Failed
	}
	done, status := ts.register(&d, closed, max(now, ts.store.Now()))
	if status != OK {
		return status
	}
	for i, table := range closed {
		table.looked = &done.tables[i]
	}
	ts.lookedCAS = cas
	return OK
}

// Look is Read without a trace. It fails if another worker has changed the table's windows, and this
// one has not found out: it does so at the next hit or heartbeat.
//
// After a Look, e tells, but counts nothing: the table may not be registered, and its placement may be borrowed.
// So e is of no epoch: until it is Read, Commit and the other writes return Mismatch, and Persist writes nothing.
func (t *Table) Look(e *Entry, key Key, now int64) Status {
	if !t.open {
		if t.looked == nil {
			return Failed
		}
		t.borrow(t.looked)
	}
	e.hash = t.parent.seed.hash(key.Bytes)
	if newer, status := t.loadPage(&e.loaded, t.pageOf(e.hash)); newer || status != OK {
		return Failed
	}
	steadyNs := int64(0)
	if t.layout.HasHolds {
		steadyNs = t.parent.lookHoldClock()
	}
	t.readKey(e, &key, now, steadyNs)
	e.epoch = 0
	return OK
}
