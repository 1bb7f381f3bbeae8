// Package state keeps the counters of a proxy's workers in Envoy's shared data. A counter
// is a table: pages of a fixed number of slots for records, one record for each key. Every
// decision is one compare-and-swap of one page.
//
// Its invariant: no interleaving of workers, evictions, policy changes or clock steps
// makes a later decision looser than the records say. Memory is bounded by construction: a
// table has a fixed number of pages, and what an evicted key has used goes into its page's
// floor.
//
// It builds for wasm and natively and must never read a clock but the Store's, hold a
// key's text, or import anything that does I/O.
//
// To read it, begin with page.go, which draws a page's bytes, then entry.go: Read, Check,
// Commit. From there evict.go, clock.go and hold.go say what happens if a page is full, if
// the clock was set back, and if a request holds units until it ends. tables.go and
// directory.go say how configurations share tables, heartbeats.go how one that has ended leaves
// them, lease.go how a table keeps leases of the quota service instead of counts. values.go has
// what workers tell each other outside of tables.
package state

// Status is the outcome of an operation on a Store or a Table.
type Status uint8

// The outcomes.
const (
	OK       Status = iota
	NotFound        // the store has no such key
	Mismatch        // another worker wrote first: read again
	Full            // no slot for a new key, and the rule does not evict
	Failed          // the store failed, or holds bytes that this build cannot read
)

// CreateOnly is the cas that creates a key and never overwrites one. Envoy
// creates a missing key whatever the cas, refuses a wrong cas for an existing key,
// and overwrites if the cas is 0. It numbers its writes from 1 in steps of 1, so
// no key has this cas before 4 billion writes. Even then only a key created since
// the read, with exactly this cas, could be overwritten.
const CreateOnly uint32 = 0xFFFFFFFE

// Store is a map with compare-and-swap, like Envoy's shared data: it has no
// delete, no list and no expiry.
//
// The caller may change the bytes that Get returns until the request ends. Set
// keeps no reference to key or value.
type Store interface {
	Get(key []byte) (value []byte, cas uint32, status Status)
	Set(key, value []byte, cas uint32) Status
	// Now returns nanoseconds since the Unix epoch. A table asks for it if a record seems to
	// be of the future: its caller may have read the clock long ago.
	Now() int64
	// Monotonic returns nanoseconds of a clock that nobody sets, the same for all workers.
	Monotonic() int64
}

// MaxRetries bounds every loop of compare-and-swap. With about 200, a hot key
// under 16 workers runs out of retries with a probability of 10⁻⁹.
const MaxRetries = 256

// Update reads a value, calls change with it, and writes what change returns. If another
// worker has written in between, it begins again.
//
// old is nil if there is no value. If change returns nil, or a status that is not OK,
// nothing is written, and that status is returned.
func Update(s Store, key []byte, change func(old []byte) (next []byte, status Status)) Status {
	for range MaxRetries {
		old, cas, status := s.Get(key)
		switch status {
		case OK:
			if old == nil { // there is an empty one
				old = []byte{}
			}
		case NotFound:
			old = nil
			cas = CreateOnly
		default:
			return Failed
		}
		next, status := change(old)
		if status != OK || next == nil {
			return status
		}
		status = s.Set(key, next, cas)
		if status != Mismatch {
			return status
		}
	}
	return Failed
}
