// Package grants keeps units of the quota service's grants in the leases of keys, and has those go back that nobody
// takes. It knows neither requests nor limits: package lease says which units are put where, and takes them.
//
// Its invariant: units that a worker has put into a lease are spent, go back once, or are counted as lost.
//
//	table.go    Table    the leases of a rule: of each key what its proxy may spend
//	            At       where the lease of one key lies
//	returns.go  Returns  what goes back, at once or when it is idle
package grants

import (
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Table has the leases of a rule, which all workers of the proxy share, as one worker sees it.
type Table struct {
	*state.Leases

	returns *Returns // of the worker
	idleNs  int64    // after which units that nobody takes go back
	lost    *uint64  // the rule's metric: leased units that nobody can spend or return any more
}

// NewTable returns the table of a rule, whose units go back by the worker's Returns after idleNs. It adds to lost what
// nobody can spend or return any more.
func NewTable(leases *state.Leases, returns *Returns, idleNs int64, lost *uint64) *Table {
	if returns.idleNs == 0 || idleNs < returns.idleNs {
		returns.idleNs = idleNs
	}
	return &Table{Leases: leases, returns: returns, idleNs: idleNs, lost: lost}
}

// Write writes a lease as it was read and changed since. It returns state.Mismatch if another worker has written it
// meanwhile.
func (t *Table) Write(e *state.LeaseEntry) state.Status {
	written := t.Leases.Write(e)
	if written == state.OK {
		t.noteLost(e.Replaced) // by the record whose place it has taken
	}
	return written
}

func (t *Table) noteLost(units uint32) { *t.lost += uint64(units) }

// GiveBack has units go back that are in no lease, if they can. Else they are lost.
func (t *Table) GiveBack(left leased.GrantUnits) { t.returns.giveBack(t, left) }

// At is where the lease of one key lies, also when there is no request of the key any more.
type At struct {
	table *Table
	key   state.LeaseKey
}

// At returns where the lease of a key lies.
func (t *Table) At(key state.LeaseKey) At { return At{t, key} }

// Change reads the lease, at an instant of both clocks, and writes it as changed says, unless that returns false. If
// another worker has written it meanwhile, it begins anew with what is there by now, so it may call changed several
// times. If it is not written, the lease is as it was: changed says so, or the proxy's store fails.
func (at At) Change(wallNs, now int64, changed func(e *state.LeaseEntry) bool) (written bool) {
	e := &at.table.returns.entry
	for range state.MaxRetries {
		if at.table.ReadHashed(e, at.key, wallNs, now) != state.OK || !changed(e) {
			return false
		}
		if status := at.table.Write(e); status != state.Mismatch {
			return status == state.OK
		}
	}
	return false
}
