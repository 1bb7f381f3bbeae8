package state

import (
	"slices"

	"github.com/dchest/siphash"
)

// Small values in shared data, by which the workers of a proxy tell each other what no table
// has: how many proxies are alive, what streams hold of a rule, and the seed of all hashes.

// SetProxies shares with all workers how many proxies are alive.
func (ts *Tables) SetProxies(n uint32) {
	key := ts.proxiesKey()
	ts.store.Set(key[:], le.AppendUint32(nil, n), 0) // whatever the cas: what a worker heard last is right
}

// Proxies returns how many proxies some worker has heard are alive, 0 if none has.
func (ts *Tables) Proxies() uint32 {
	key := ts.proxiesKey()
	value, _, status := ts.store.Get(key[:])
	if status != OK || len(value) != 4 {
		return 0
	}
	return le.Uint32(value)
}

// HeldTotal is what streams hold of one rule.
type HeldTotal struct{ Units, Streams int64 }

// What the streams hold of a rule is one value with a row for each VM. A VM that has trapped
// gives no sign of life, and its row goes. A row:
//
//	 0  u64  the VM's configuration
//	 8  i64  when it wrote last, by the monotonic clock
//	16  i64  units
//	24  i64  streams
const (
	heldRowBytes = 32
	// silentAfterNs is after how long without a sign of life a VM's row goes.
	silentAfterNs = 5_000_000_000
	// aliveNs is how old a row may become that does not change.
	aliveNs = 2_000_000_000
)

type heldRow struct {
	vm      uint64
	wroteNs int64 // when the VM wrote last
	HeldTotal
}

func readHeldRow(b []byte) heldRow {
	return heldRow{
		vm:        le.Uint64(b),
		wroteNs:   int64(le.Uint64(b[8:])),
		HeldTotal: HeldTotal{Units: int64(le.Uint64(b[16:])), Streams: int64(le.Uint64(b[24:]))},
	}
}

func (r *heldRow) append(b []byte) []byte {
	b = le.AppendUint64(b, r.vm)
	b = le.AppendUint64(b, uint64(r.wroteNs))
	b = le.AppendUint64(b, uint64(r.Units))
	return le.AppendUint64(b, uint64(r.Streams))
}

// ShareHeldTotal tells the other VMs what the streams of this one hold of a rule, and returns
// what the streams of all VMs hold. rule is a hash of the rule's name, vm the VM's configuration.
// A VM that holds nothing has no row.
func (ts *Tables) ShareHeldTotal(rule uint32, vm uint64, own HeldTotal) (all HeldTotal, status Status) {
	key := ts.heldTotalKey(rule)
	now := ts.store.Monotonic()
	status = Update(ts.store, key[:], func(old []byte) (next []byte, _ Status) {
		all = own
		next = make([]byte, 0, len(old)+heldRowBytes)
		ownIsDue := own != HeldTotal{} // a first row
		whole := old[:len(old)/heldRowBytes*heldRowBytes]
		for b := range slices.Chunk(whole, heldRowBytes) {
			row := readHeldRow(b)
			switch {
			case row.vm == vm:
				ownIsDue = row.HeldTotal != own || now-row.wroteNs >= aliveNs
			case now-row.wroteNs < silentAfterNs:
				all.Units += row.Units
				all.Streams += row.Streams
				next = append(next, b...)
			}
		}
		if own != (HeldTotal{}) {
			row := heldRow{vm, now, own}
			next = row.append(next)
		}
		othersWent := len(next) != len(old) // if own is not due, this VM has as many rows as before
		if !ownIsDue && !othersWent {
			return nil, OK
		}
		return next, OK
	})
	return all, status
}

// The seed of all hashes is one value in shared data that all layouts share. All workers of a proxy's process have it,
// and nobody else: u8 version 1, u8 kind 3, u16 spare, 16 bytes.
const (
	seedVersion = 1
	kindSeed    = 3
	seedBytes   = 20
)

// seed is the seed that all workers of a proxy's process share and no other process has.
type seed struct {
	isKnown bool
	k0, k1  uint64
}

func (s *seed) hash(b []byte) uint64             { return siphash.Hash(s.k0, s.k1, b) }
func (s *seed) hash128(b []byte) (lo, hi uint64) { return siphash.Hash128(s.k0, s.k1, b) }

// read makes a seed from shared data this worker's.
func (s *seed) read(value []byte) Status {
	if len(value) != seedBytes || value[0] != seedVersion || value[1] != kindSeed {
		return Failed
	}
	*s = seed{true, le.Uint64(value[4:]), le.Uint64(value[12:])}
	return OK
}

// loadSeed reads the seed, or makes one if there is none.
func (ts *Tables) loadSeed() Status {
	if ts.seed.isKnown {
		return OK
	}
	var value []byte
	status := Update(ts.store, seedKey, func(old []byte) (next []byte, _ Status) {
		if old != nil {
			value = old
			return nil, OK
		}
		value = make([]byte, seedBytes)
		value[0] = seedVersion
		value[1] = kindSeed
		ts.random(value[4:])
		return value, OK
	})
	if status != OK {
		return status
	}
	return ts.seed.read(value)
}

// findSeed reads the seed if there is one. If there is none, no key has a record.
func (ts *Tables) findSeed() Status {
	if ts.seed.isKnown {
		return OK
	}
	switch value, _, status := ts.store.Get(seedKey); status {
	case OK:
		return ts.seed.read(value)
	case NotFound:
		return OK
	default:
		return Failed
	}
}

// Process is a number that all workers of a proxy's process share and no other has,
// 0 if the store fails.
func (ts *Tables) Process() uint64 {
	if ts.loadSeed() != OK {
		return 0
	}
	return ts.seed.hash([]byte("process"))
}

// Secret is a secret that all workers of a proxy's process share and no other has.
func (ts *Tables) Secret(purpose string) (secret [16]byte, ok bool) {
	if ts.loadSeed() != OK {
		return secret, false
	}
	lo, hi := ts.seed.hash128([]byte(purpose))
	le.PutUint64(secret[:], lo)
	le.PutUint64(secret[8:], hi)
	return secret, true
}
