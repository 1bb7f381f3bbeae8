package engine

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	// leaseSlots is how many keys of a table have a lease in one worker at a time.
	leaseSlots = policy.LeaseKeys
	// leaseReturns is how many leases a tick gives back, by a read and a write of
	// shared data each, and leaseBooks how many tables it looks through for them:
	// for no longer than that a request waits.
	leaseReturns = 256
	leaseBooks   = 64
	// lastReturns is how many leases are given back where a policy ends.
	lastReturns = 1024
	// watchSlots is how many keys of a table are watched for their need of a
	// lease at a time, before the first one has.
	watchSlots = 4
)

// lending is what the leases of all tables of a worker have in common.
type lending struct {
	entry   state.Entry // for giving back
	stopped bool        // nothing is served or taken
	ticks   uint32      // calls of EndLeases
	books   []*leases   // of the tables that have had a lease

	book, slot int // where giveBack goes on
}

// leases are those of one table. Keys find theirs by their hash; a key whose
// slot another has is counted hit by hit, until that one's lease is over. There
// are watchSlots until the first lease, so that a table whose keys are all rare
// takes no memory for what it never has, and leaseSlots from then on.
type leases struct {
	table   *state.Table
	most    uint32   // units of a lease
	least   uint32   // units of the cheapest request that counts
	metrics *Metrics // of the first rule of the table
	worker  *lending
	slots   []lease
	counted []state.Counted // what the windows of each slot's key have used, all units of its lease included
}

// lend gives every rule that leases the leases of its table.
func (e *Engine) lend() {
	var byTable map[*state.Table]*leases
	for i := range e.rules {
		r := &e.rules[i]
		if r.policy.Lease < 2 || r.table == nil {
			continue
		}
		if e.lending == nil {
			e.lending, byTable = &lending{}, map[*state.Table]*leases{}
		}
		b := byTable[r.table]
		if b == nil {
			b = &leases{
				table: r.table, most: r.policy.Lease, least: math.MaxUint32, metrics: &r.metrics, worker: e.lending,
				slots: make([]lease, watchSlots), counted: make([]state.Counted, watchSlots*len(r.windows)),
			}
			byTable[r.table] = b
		}
		b.least = min(b.least, max(r.policy.Cost.Least(), 1))
		r.leases = b
	}
}

// lendApart gives the engine's rules copies of the leases that they have. Call
// it where they are copies of rules with tables of their own.
func (e *Engine) lendApart() {
	if e.lending == nil {
		return
	}
	e.lending = &lending{stopped: e.lending.stopped, ticks: e.lending.ticks}
	copies := map[*leases]*leases{}
	for i := range e.rules {
		r := &e.rules[i]
		if r.leases == nil {
			continue
		}
		if copies[r.leases] == nil {
			b := *r.leases
			b.table, b.metrics, b.worker = r.table, &r.metrics, e.lending
			b.slots, b.counted = slices.Clone(b.slots), slices.Clone(b.counted)
			copies[r.leases] = &b
		}
		r.leases = copies[r.leases]
	}
}

// open makes room for leases, where there was some to watch keys alone. Who has
// looked at a watched one finds that it was overtaken.
func (b *leases) open() {
	windows := b.windows()
	clear(b.slots)
	b.slots = make([]lease, leaseSlots)
	b.counted = make([]state.Counted, leaseSlots*windows)
	b.worker.books = append(b.worker.books, b)
}

func (b *leases) opened() bool { return len(b.slots) == leaseSlots }

func (b *leases) windows() int { return len(b.counted) / len(b.slots) }

// EndLeases gives back what is left of leases that are over: of leaseReturns at
// most, the next call goes on. Call it on a tick.
func (e *Engine) EndLeases() {
	if w := e.lending; w != nil {
		w.ticks++
		w.giveBack(e.host, leaseReturns, leaseBooks)
	}
}

// StopLeases serves nothing from leases any more and takes none. What is left of
// them goes back, now or with the calls of EndLeases that follow.
func (e *Engine) StopLeases() {
	if w := e.lending; w != nil {
		w.stopped = true
		w.giveBack(e.host, leaseReturns, leaseBooks)
	}
}

// CloseLeases is StopLeases where no call of EndLeases will follow: units of more
// than lastReturns leases stay counted.
func (e *Engine) CloseLeases() {
	w := e.lending
	if w == nil {
		return
	}
	w.stopped = true
	w.giveBack(e.host, lastReturns, len(w.books))
	for _, b := range w.books {
		for i := range b.slots {
			b.gave(b.slots[i].drop(), false)
		}
	}
}

// ResumeLeases ends what StopLeases began.
func (e *Engine) ResumeLeases() {
	if e.lending != nil {
		e.lending.stopped = false
	}
}

// giveBack gives back what is left of so many leases that are over, and looks
// through so many books for them, from where it stopped the last time.
func (w *lending) giveBack(host Host, most, books int) {
	if len(w.books) == 0 {
		return
	}
	now := host.Now()
	for range leaseSlots * min(books, len(w.books)) {
		b := w.books[w.book]
		if l := &b.slots[w.slot]; l.left > 0 && (w.stopped || !b.live(l, now)) {
			if most == 0 {
				return
			}
			most--
			b.end(l, now)
		}
		if w.slot++; w.slot == leaseSlots {
			w.book, w.slot = (w.book+1)%len(w.books), 0
		}
	}
}
