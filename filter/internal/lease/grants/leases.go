// Package grants keeps units of the quota service's grants in the leases of keys, and gives those back that nobody
// takes. It knows neither requests nor limits: package lease says which units are put where, and takes them.
//
// Its invariant: units that a worker has put into a lease are spent, go back once, or are counted as lost. Those that
// no worker watches any more are lost without being counted: see Returns and At.WatchAgain.
//
//	leases.go   Leases   the leases of a rule: of each key what its proxy may spend
//	            At       where the lease of one key lies
//	returns.go  Returns  what goes back, at once or when it is idle
package grants

import (
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Leases are those of a rule's keys, which all workers of the proxy share, as one worker sees them.
type Leases struct {
	table   *state.LeaseTable
	returns *Returns // of the worker
	idleNs  int64    // after which units that nobody takes go back
	lost    *uint64  // the rule's metric: leased units that nobody can spend or return any more
}

// New returns the leases of a rule, which lie in a table, and whose units go back by the worker's Returns after idleNs.
// It adds to lost what nobody can spend or return any more.
func New(table *state.LeaseTable, returns *Returns, idleNs int64, lost *uint64) *Leases {
	if returns.idleNs == 0 || idleNs < returns.idleNs {
		returns.idleNs = idleNs
	}
	return &Leases{table: table, returns: returns, idleNs: idleNs, lost: lost}
}

// Table is where they lie.
func (l *Leases) Table() *state.Table { return l.table.Table() }

// Read finds the key's lease, as state.LeaseTable.Read does.
func (l *Leases) Read(e *state.LeaseEntry, key []byte, wallNs, nowNs int64) state.Status {
	return l.table.Read(e, key, wallNs, nowNs)
}

// Write writes a lease as it was read and changed since. It returns state.Mismatch if another worker has written it
// meanwhile.
func (l *Leases) Write(e *state.LeaseEntry) state.Status {
	written := l.table.Write(e)
	if written == state.OK {
		l.noteLost(e.Replaced) // by the record whose place it has taken
	}
	return written
}

func (l *Leases) noteLost(units uint32) { *l.lost += uint64(units) }

// GiveBack gives units back that are in no lease, if they can go back. Else they are lost.
func (l *Leases) GiveBack(left leased.GrantUnits) { l.returns.giveBack(l, left) }

// At is where the lease of one key lies, also when there is no request of the key any more.
type At struct {
	leases *Leases
	key    state.LeaseKey
}

// At returns where the lease of a key lies.
func (l *Leases) At(key state.LeaseKey) At { return At{l, key} }

// Change reads the lease, at an instant of both clocks, and writes it as changed says, unless that returns false. If
// another worker has written it meanwhile, it begins anew with what is there by now, so it may call changed several
// times. If it is not written, the lease is as it was: changed says so, or the proxy's store fails. The worker has
// memory for one Change at a time, so changed must not change another lease.
func (at At) Change(wallNs, now int64, changed func(e *state.LeaseEntry) bool) (written bool) {
	e := &at.leases.returns.entry
	for range state.MaxRetries {
		if at.leases.table.ReadHashed(e, at.key, wallNs, now) != state.OK || !changed(e) {
			return false
		}
		if status := at.leases.Write(e); status != state.Mismatch {
			return status == state.OK
		}
	}
	return false
}
