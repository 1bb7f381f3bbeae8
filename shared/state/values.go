package state

import "github.com/dchest/siphash"

// Small values in shared data, by which the workers of a proxy tell each other what no table
// has: how many proxies are alive, and the seed of all hashes.

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
