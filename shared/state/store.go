// Package state keeps the counters: which bytes lie in shared data, and how a
// decision becomes a compare-and-swap.
//
// Its invariant: no interleaving of workers, evictions, policy changes or clock
// steps makes a later decision looser than the records say. Memory is bounded
// by construction: a table has a fixed number of pages, a page a fixed
// number of slots, and a key that loses its slot leaves what it used behind in
// the page's floor.
//
// It builds for wasm and natively and must never read a clock, hold a key's
// text, or import anything that does I/O.
package state

// Status is the answer of a Store or of an operation on it.
type Status uint8

// The answers there are.
const (
	OK       Status = iota
	NotFound        // the store has no such key
	Mismatch        // somebody else wrote first: read again
	Full            // no slot for a new key, and the rule does not evict
	Failed          // the store failed, or holds bytes this build does not read
)

// CreateOnly is the cas that creates a key and never overwrites one: Envoy
// creates a missing key whatever the cas, refuses a wrong cas on an existing
// one, and overwrites when the cas is 0. No key is ever given this value by a
// counter that starts at 1 and steps by 1 before 4 billion writes; were it to
// be, only a key with exactly that cas, created since the read, could be hit.
const CreateOnly uint32 = 0xFFFFFFFE

// Store is a map with compare-and-swap, as Envoy's shared data is one: there
// is no delete, no list and no expiry.
//
// The bytes that Get returns are the caller's until the request ends; Set keeps
// no reference to key or value.
type Store interface {
	Get(key []byte) (value []byte, cas uint32, status Status)
	Set(key, value []byte, cas uint32) Status
}
