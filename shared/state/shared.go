package state

import (
	"slices"
)

// SetProxies shares with all workers how many proxies are alive.
func (t *Tables) SetProxies(n uint32) {
	at := t.proxiesKey()
	t.store.Set(at[:], le.AppendUint32(nil, n), 0) // what a worker heard last is right
}

// Proxies returns how many proxies some worker has heard are alive, 0 if none has.
func (t *Tables) Proxies() uint32 {
	at := t.proxiesKey()
	value, _, status := t.store.Get(at[:])
	if status != OK || len(value) != 4 {
		return 0
	}
	return le.Uint32(value)
}

// proxiesKey is a key in shared data of the tables' owner.
func (t *Tables) proxiesKey() (at [12]byte) {
	copy(at[:], "sl/n")
	le.PutUint64(at[4:], hexDigits(uint32(t.self.id)))
	return at
}

// Holding is what streams hold of one rule.
type Holding struct{ Units, Streams int64 }

// What the streams of each VM hold of a rule is a row of one value, so that what a VM has
// held that trapped is not shown for ever:
//
//	 0  u64  the VM's configuration
//	 8  i64  when it wrote last, by the monotonic clock
//	16  i64  units
//	24  i64  streams
const (
	holdingBytes = 32
	// silentNs is after how long without a sign of life a VM's row goes.
	silentNs = 5_000_000_000
	// aliveNs is how old a row may become that does not change.
	aliveNs = 2_000_000_000
)

// ShareHolding says what the streams of a VM's configuration hold of a rule, a word for the
// rule, and returns what those of all hold.
func (t *Tables) ShareHolding(rule uint32, self uint64, own Holding) (all Holding, status Status) {
	var key [12]byte
	copy(key[:], "sl/g")
	le.PutUint32(key[4:], uint32(t.self.id))
	le.PutUint32(key[8:], rule)
	now := t.store.Monotonic()
	status = Update(t.store, key[:], func(old []byte) (next []byte, _ Status) {
		all = own
		asItWas := own == Holding{}
		for row := range slices.Chunk(old[:len(old)/holdingBytes*holdingBytes], holdingBytes) {
			seen := int64(le.Uint64(row[8:]))
			of := Holding{int64(le.Uint64(row[16:])), int64(le.Uint64(row[24:]))}
			switch {
			case le.Uint64(row) == self:
				asItWas = of == own && now-seen < aliveNs
			case now-seen < silentNs:
				all.Units += of.Units
				all.Streams += of.Streams
				next = append(next, row...)
			}
		}
		kept := len(next)
		if own != (Holding{}) {
			kept += holdingBytes
		}
		if asItWas && len(old) == kept {
			return nil, OK
		}
		if own != (Holding{}) {
			next = le.AppendUint64(next, self)
			next = le.AppendUint64(next, uint64(now))
			next = le.AppendUint64(next, uint64(own.Units))
			next = le.AppendUint64(next, uint64(own.Streams))
		}
		if next == nil {
			next = []byte{}
		}
		return next, OK
	})
	return all, status
}

// Lingering is a hold whose request was reset, while its upstream may still be at work.
type Lingering struct {
	Receipt Receipt
	EndNs   int64 // when it is to be settled, by the monotonic clock
}

// A configuration that ends leaves what lingers to the others of its owner, in one value:
//
//	 0  u64  owner
//	 8  16   counter
//	24  u32  units
//	28  u32  number of the key's record
//	32  u32  epoch of the table
//	36  u32  eighth in which the stream was last known to run
//	40  i64  how long an eighth was then
//	48  u64  hash of the key
//	56  i64  when it is to be settled
//
// and once more for each hold. Nobody has to take one: it lapses then.
const lingeringBytes = 64

// unclaimedNs is how long one lies there that nobody takes.
const unclaimedNs = 60_000_000_000

// A layout of records has a value of its own: its receipts are of its own tables.
var lingeringKey = []byte("sluice/lingers" + keySuffix)

// LeaveLingering leaves what lingers to other configurations. Holds have the tables of
// their counters.
func (t *Tables) LeaveLingering(tables []*Table, holds []Lingering) Status {
	return Update(t.store, lingeringKey, func(old []byte) ([]byte, Status) {
		next := append(make([]byte, 0, len(old)+len(holds)*lingeringBytes), old...)
		for i := range holds {
			r := &holds[i].Receipt
			next = le.AppendUint64(next, t.self.id)
			next = append(next, tables[i].def.Counter[:]...)
			next = le.AppendUint32(next, r.Units)
			next = le.AppendUint32(next, r.number)
			next = le.AppendUint32(next, r.epoch)
			next = le.AppendUint32(next, r.eighth)
			next = le.AppendUint64(next, uint64(r.eachNs))
			next = le.AppendUint64(next, r.hash)
			next = le.AppendUint64(next, uint64(holds[i].EndNs))
		}
		return next, OK
	})
}

// TakeLingering takes what others have left of these tables' counters, and calls take with
// each.
func (t *Tables) TakeLingering(take func(*Table, Lingering)) Status {
	taken := []int{}
	var value []byte
	status := Update(t.store, lingeringKey, func(old []byte) (next []byte, status Status) {
		taken, value = taken[:0], append(value[:0], old...)
		now := t.store.Monotonic()
		next = []byte{}
		for at := 0; at+lingeringBytes <= len(value); at += lingeringBytes {
			switch l, end := value[at:at+lingeringBytes], int64(le.Uint64(value[at+56:])); {
			case t.lingering(l) != nil:
				taken = append(taken, at)
			case now-end < unclaimedNs:
				next = append(next, l...)
			}
		}
		if len(next) == len(value) {
			return nil, OK
		}
		return next, OK
	})
	if status != OK {
		return status
	}
	for _, at := range taken {
		l := value[at : at+lingeringBytes]
		take(t.lingering(l), Lingering{
			Receipt: Receipt{
				Units: le.Uint32(l[24:]), number: le.Uint32(l[28:]), epoch: le.Uint32(l[32:]), eighth: le.Uint32(l[36:]),
				eachNs: int64(le.Uint64(l[40:])), hash: le.Uint64(l[48:]),
			},
			EndNs: int64(le.Uint64(l[56:])),
		})
	}
	return OK
}

// lingering returns the table of what lingers, nil if it is none of t.
func (t *Tables) lingering(l []byte) *Table {
	if le.Uint64(l) != t.self.id {
		return nil
	}
	at, found := t.find(CounterID(l[8:24]))
	if !found {
		return nil
	}
	return t.tables[at]
}
