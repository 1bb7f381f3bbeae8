package state

import "github.com/dchest/siphash"

// The seed is one value that all layouts share: u8 version 1, u8 kind 3, u16 spare,
// 16 bytes.
const (
	seedVersion = 1
	kindSeed    = 3
	seedBytes   = 20
)

// Process is a number that all workers of a proxy's process share and no other has,
// 0 if the store fails.
func (ts *Tables) Process() uint64 {
	if ts.loadSeed() != OK {
		return 0
	}
	return siphash.Hash(ts.seed[0], ts.seed[1], []byte("process"))
}

// Secret is a secret that all workers of a proxy's process share and no other has.
func (ts *Tables) Secret(purpose string) (secret [16]byte, ok bool) {
	if ts.loadSeed() != OK {
		return secret, false
	}
	lo, hi := siphash.Hash128(ts.seed[0], ts.seed[1], []byte(purpose))
	le.PutUint64(secret[:], lo)
	le.PutUint64(secret[8:], hi)
	return secret, true
}

// loadSeed reads the seed that all workers share, or creates it.
func (ts *Tables) loadSeed() Status {
	if ts.seeded {
		return OK
	}
	var seed []byte
	status := Update(ts.store, seedKey, func(old []byte) (next []byte, status Status) {
		if old == nil {
			seed = ts.newSeed()
			return seed, OK
		}
		seed = old
		return nil, OK
	})
	if status != OK {
		return status
	}
	return ts.takeSeed(seed)
}

// findSeed is loadSeed without making a seed: where there is none, no key has a record.
func (ts *Tables) findSeed() Status {
	if ts.seeded {
		return OK
	}
	switch value, _, status := ts.store.Get(seedKey); status {
	case OK:
		return ts.takeSeed(value)
	case NotFound:
		return OK
	default:
		return Failed
	}
}

// takeSeed makes the seed that was read this worker's.
func (ts *Tables) takeSeed(seed []byte) Status {
	if len(seed) != seedBytes || seed[0] != seedVersion || seed[1] != kindSeed {
		return Failed
	}
	ts.seeded = true
	ts.seed = [2]uint64{le.Uint64(seed[4:]), le.Uint64(seed[12:])}
	return OK
}

func (ts *Tables) newSeed() []byte {
	seed := make([]byte, seedBytes)
	seed[0] = seedVersion
	seed[1] = kindSeed
	ts.random(seed[4:])
	return seed
}
