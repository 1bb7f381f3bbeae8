package state

import (
	"slices"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Keys in shared data. All have at most 15 bytes, beyond which the host makes a
// second allocation for each, and a prefix of ours, because Istio puts all
// plugins into one namespace.
var (
	directoryKey = []byte("sluice/tables")
	seedKey      = []byte("sluice/seed")
)

const pagePrefix = "sl/"

// The seed is one value: u8 format version, u8 kind 3, u16 spare, 16 bytes.
const (
	kindSeed  = 3
	seedBytes = 20
)

// maxRetries bounds every loop of compare-and-swap: a hot key under 16 workers
// needs about 200 for a chance of 10⁻⁹ to run out.
const maxRetries = 256

// CounterID names a counter: a stable, unkeyed hash of its identity.
type CounterID [16]byte

// NewCounterID returns the id of a counter. keyParts is the canonical text of
// the definitions of its key's parts.
func NewCounterID(domain, counter, keyParts string, capacity uint32) CounterID {
	b := AppendPart(nil, domain)
	b = AppendPart(b, counter)
	b = AppendPart(b, keyParts)
	b = le.AppendUint32(b, capacity)
	lo, hi := siphash.Hash128(0, 0, b)
	var id CounterID
	le.PutUint64(id[:], lo)
	le.PutUint64(id[8:], hi)
	return id
}

// StableHash returns two halves of a hash that is the same in every process:
// for what must not change when Envoy restarts, never for where a record lies.
func StableHash(key []byte) (lo, hi uint64) { return siphash.Hash128(0, 0, key) }

// OwnerID names who holds tables: one filter of one configuration source.
func OwnerID(name string) uint64 { return siphash.Hash(0, 1, []byte(name)) }

// AppendPart appends one present part of a key. Parts carry their length, so
// that ("ab", "c") and ("a", "bc") differ.
func AppendPart(b []byte, part string) []byte {
	b = le.AppendUint32(b, uint32(len(part))+1)
	return append(b, part...)
}

// AppendMissing appends a part that the request does not have, which differs
// from an empty one.
func AppendMissing(b []byte) []byte { return le.AppendUint32(b, 0) }

// Definition is what a policy says about a counter.
type Definition struct {
	Counter  CounterID
	Windows  []limit.Window // in the order of limit.Window.Compare
	Capacity uint32
}

// Tables are the counters of one configuration. They come into being in the
// store when they are first read, so that a configuration that is refused
// leaves no trace.
type Tables struct {
	store      Store
	random     func([]byte)
	self       owner
	splitOwner uint64 // that Split gives them to; 0 = never
	split      bool   // they are the split owner.s
	conflict   bool   // see HasConflict
	tables     map[CounterID]*Table

	seeded bool
	seed   [2]uint64
}

// NewTables returns an empty set of tables over store. owner names who holds
// them, configuredNs is when its configuration was made, and random fills
// bytes nobody can guess.
func NewTables(store Store, random func([]byte), ownerID uint64, configuredNs int64) *Tables {
	return &Tables{
		store: store, random: random, self: owner{ownerID, configuredNs},
		tables: make(map[CounterID]*Table),
	}
}

// Table returns the table of a counter; rules that share a counter share it.
func (t *Tables) Table(def Definition) *Table {
	if have := t.tables[def.Counter]; have != nil {
		return have
	}
	table := &Table{tables: t, def: def}
	t.tables[def.Counter] = table
	return table
}

// SetSplitOwner names the owner that the tables have after Split. All workers that run
// one configuration name the same: where one of them has split, the others
// follow when they are driven out themselves.
func (t *Tables) SetSplitOwner(ownerID uint64) { t.splitOwner = ownerID }

// HasConflict reports whether, by the last Heartbeat or since, another configuration of
// the owner has taken away what this one has counted in: a counter, or one of
// its windows. A successor does so with its first hit, and so does a sibling,
// which runs beside this one.
func (t *Tables) HasConflict() bool { return t.conflict }

// Split gives the tables to the owner that SetSplitOwner named: what they held
// stays with the one before, unless both define it alike.
func (t *Tables) Split() {
	t.split, t.conflict, t.self.id = true, false, t.splitOwner
	for _, table := range t.tables {
		table.open = false
	}
}

// IsSplit reports whether the tables are those of the split owner.
func (t *Tables) IsSplit() bool { return t.split }

// Release takes an owner that has split off all tables, which nobody takes
// over: they wait for their windows to end. It does nothing before the first
// hit.
func (t *Tables) Release(now int64) Status {
	for _, table := range t.tables {
		if t.split && table.open {
			return t.update(func(d *directory) {
				d.release(t.self, func(CounterID) bool { return false }, now)
			})
		}
	}
	return OK
}

func (t *Tables) keeps(id CounterID) bool { return t.tables[id] != nil }

// Heartbeat shows that the owner is still there, reads the directory and mends it
// where another configuration has taken these tables off it, or left some of
// ours behind. Call it several times in each RoundNs; it does nothing before the
// first hit.
func (t *Tables) Heartbeat(now int64) Status {
	var open []*Table
	for _, table := range t.tables {
		if table.open {
			open = append(open, table)
		}
	}
	status := t.renewHeartbeat(now, len(open) > 0)
	if len(open) == 0 {
		return status
	}
	t.conflict = false
	return max(status, t.enter(now, open))
}

// enter registers tables and adopts what the directory says about them.
func (t *Tables) enter(now int64, tables []*Table) Status {
	entries := make([]tableEntry, len(tables))
	conflict, split := false, false
	status := t.update(func(d *directory) {
		d.forgetFuture(now)
		self := owner{t.self.id, pastOrOldest(t.self.configuredNs, now)}
		d.release(self, t.keeps, now)
		d.prepare(len(tables))
		conflict = t.wasDropped(d, tables)
		split = (conflict || slices.ContainsFunc(tables, (*Table).lacks)) && !t.split && d.knows(t.splitOwner)
		if split {
			self.id = t.splitOwner
		}
		for i, table := range tables {
			entries[i] = *d.register(self, &table.def, now)
		}
	})
	if status != OK {
		return status
	}
	if split {
		t.Split()
	}
	for i, table := range tables {
		table.adopt(&entries[i])
		conflict = conflict || table.lacks()
	}
	t.conflict = (t.conflict || conflict) && !t.split
	return OK
}

// wasDropped reports whether the owner was taken off one of its tables.
func (t *Tables) wasDropped(d *directory, tables []*Table) bool {
	return slices.ContainsFunc(tables, func(table *Table) bool {
		return table.open && !slices.ContainsFunc(d.of(table.def.Counter), func(i int) bool {
			return d.tables[i].base == table.base && d.tables[i].owned(t.self.id)
		})
	})
}

// loadSeed reads the seed that all workers share, or makes it.
func (t *Tables) loadSeed() Status {
	if t.seeded {
		return OK
	}
	for range maxRetries {
		value, _, status := t.store.Get(seedKey)
		switch {
		case status == NotFound:
			fresh := make([]byte, seedBytes)
			fresh[0], fresh[1] = formatVersion, kindSeed
			t.random(fresh[4:])
			if t.store.Set(seedKey, fresh, CreateOnly) == Failed {
				return Failed
			}
			continue
		case status != OK || len(value) != seedBytes || value[0] != formatVersion || value[1] != kindSeed:
			return Failed
		}
		t.seed = [2]uint64{le.Uint64(value[4:]), le.Uint64(value[12:])}
		t.seeded = true
		return OK
	}
	return Failed
}
