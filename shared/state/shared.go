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
