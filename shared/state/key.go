package state

import (
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
