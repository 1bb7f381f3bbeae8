package state

import (
	"slices"
	"unsafe"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

// CounterID identifies a counter: an unkeyed hash that is the same everywhere.
type CounterID = directory.CounterID

// NewCounterID returns the id of a counter. keyParts is the canonical text of its
// key parts' definitions.
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

// StableHash returns the two halves of a hash that is the same in every process.
// Use it for what must not change when Envoy restarts, never to place a record.
func StableHash(key []byte) (lo, hi uint64) { return siphash.Hash128(0, 0, key) }

// OwnerID identifies an owner of tables: a configuration, by its name, which may be in
// parts.
func OwnerID(name ...string) uint64 {
	key := [16]byte{8: 1}
	h := siphash.New(key[:])
	for _, part := range name {
		// Write only reads, and a copy would be as large as a policy.
		_, _ = h.Write(unsafe.Slice(unsafe.StringData(part), len(part))) //nolint:gosec // see above
	}
	return h.Sum64()
}

// AppendPart appends the value of a key part, preceded by its length, so that the
// keys ("ab", "c") and ("a", "bc") differ.
func AppendPart(b []byte, part string) []byte {
	b = le.AppendUint32(b, uint32(len(part))+1)
	return append(b, part...)
}

// AppendMissing appends a key part that the request does not have. It differs from
// an empty one.
func AppendMissing(b []byte) []byte { return le.AppendUint32(b, 0) }

// Key is a key of a counter with the limits that hold for it. Both lists have
// the windows of the table's definition, in its order.
type Key struct {
	Bytes   []byte
	Windows []limit.Window // with this key's limits, grids shifted by its jitter
	OfRule  []limit.Window // with the rule's own limits, which eviction compares by; see Overridden
}

// A page's floor has of a token bucket when it is full. How many tokens it lacks follows from that by the limits
// with which it was counted, and overrides give some keys other limits. So a stamp of all overrides is written with the
// instant: by it a floor is known that was counted with other overrides. See Stamps in package limit.

// Override is the limits that some keys have instead of their rule's.
type Override struct {
	Keys    string         // identifies the keys, in any form
	Windows []limit.Window // in the order of the rule's; none: these keys have no limits
}

// Overridden returns a rule's windows for Key.OfRule: token buckets get the stamp of
// the overrides and the fill time of the slowest bucket. The order of overrides
// matters, because the first that matches a key holds.
func Overridden(rule []limit.Window, overrides []Override) []limit.Window {
	rule = slices.Clone(rule)
	for window := range rule {
		if w := &rule[window]; w.Algorithm == limit.TokenBucket {
			w.Stamp, w.FillNs = stampFor(w, window, overrides)
		}
	}
	return rule
}

// stampFor returns the stamp and the longest fill time of a window's overrides;
// both are 0 if no override changes the window's limits.
func stampFor(w *limit.Window, window int, overrides []Override) (stamp uint16, fillNs int64) {
	var text []byte
	differs := false
	for _, o := range overrides {
		text = AppendPart(text, o.Keys)
		if len(o.Windows) == 0 {
			text = append(text, 0)
			continue
		}
		own := o.Windows[window]
		kind := byte(1)
		if own.Unlimited {
			kind = 2
		}
		text = le.AppendUint32(le.AppendUint32(append(text, kind), own.Limit), own.Burst)
		differs = differs || own.Limit != w.Limit || own.Burst != w.Burst || own.Unlimited != w.Unlimited
		fillNs = max(fillNs, own.Fill())
	}
	if !differs {
		return 0, 0
	}
	return limit.NewStamp(siphash.Hash(0, 3, text)), fillNs
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
