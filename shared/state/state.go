// Package state keeps the counters of a proxy's workers in Envoy's shared data. Every decision is one
// compare-and-swap of one value there.
//
// Its invariant: no interleaving of workers, evictions, policy changes or clock steps makes a later decision looser
// than the records say. It has one exception: a worker that runs a policy without some window may forgive the debt that
// a key has there, because it does not know how much each period pays back. Memory is bounded by construction: a table
// has a fixed number of pages, and what an evicted key has used goes into its page's floor.
//
// It builds for wasm and natively and must never read a clock but the Store's, hold a
// key's text, or import anything that does I/O.
//
// A counter of requests by client, 2 a minute and 100 an hour, for 1,000 clients:
//
//	key in shared data   value
//	sluice/tables        directory
//	                      └ registration: counter, table number 0, 45 pages of 32 slots, 2 windows, owners
//	sl/000000000000      page 0, 772 bytes
//	  ...
//	sl/000000000026      page 38, to which the hash of client 192.0.2.1 leads
//	                      ├ windows          fixed, 60 s; fixed, 3,600 s
//	                      ├ floor            of each window: at least what any evicted key has used
//	                      ├ fingerprints     of the slots' keys, each a part of its hash
//	                      └ records          in slot 0 that of the client: 2 in this minute, 2 in this hour
//	  ...
//	sl/00000000002c      page 44
//
// The package's example makes this counter, and decides on three requests. The way of a hit:
//
//	Tables.Table            gives each counter of a configuration its Table                    tables.go
//	Table.Read                                                                                 entry.go
//	 ├─ ensureOpen          the first time: registerAndAdopt registers the Table in the        table.go, tables.go
//	 │                      directory, and adopts what that says of its pages: a placement
//	 └─ Reread              of the same key; by itself if another worker wrote first
//	     ├─ load            the page of the key comes into memory: a loadedPage                table.go
//	     └─ readKey
//	         ├─ setLimits            those of the key, in the order of the page's columns      key.go
//	         ├─ readClocks           makes it a timedPage                                      clock.go
//	         ├─ lapseFloor           what the floor holds may have lapsed                      evict.go, lapse.go
//	         ├─ rebaseIfAhead        the clock may have been set back. From here on it is a    clock.go
//	         │                       presentPage, as of Now
//	         └─ readRecord           the Entry has the key's usage as of now
//	            or startFromFloor
//	Table.Check             says whether the hit passes
//	Table.Commit            counts it. Deny, Hold, Inc and Set do the same in their own way
//	 ├─ beginRecord         gives a new key a slot. If the page is full, evict makes room      evict.go
//	 └─ writeRecord         puts the usage into the record, and writes the page in one
//	                        compare-and-swap
//
// The other files:
//
//	hold.go      Hold, Renew and Settle: a running request keeps units of its key. The key's record, or the floor, has
//	             the sum of them. If a request gives no sign of life, its units lapse (lapse.go), and are charged
//	lease.go     a lease table has a leased.Lease in the place of each key's usages
//	operate.go   operators set, add to and reset counters, and visit all pages
//	look.go      two ways to read that count no hit: a Look tells a client what is left of its key, and a Survey counts
//	             the keys of a table, for metrics
//	streams.go   what the streams of all workers hold of a rule, for a gauge
//	values.go    how many proxies are alive, and the seed of all hashes
//
// What has states is drawn at its type: a Table, an Entry, a Hold. The life of a table's number is that of its
// registration, in package directory.
//
// Four other packages are below this one. Package page has the bytes of a page. Package directory has the
// registrations of tables, and says when a table's number is free for another one. Package leased has what a lease is:
// units of a limit over many proxies that this one has taken ahead. Package limit has the arithmetic: how usage and
// floors change with time (Roll, Start, Floor), whether a hit passes (Check), and what it counts (Add). Here is only
// what happens to them, and who may write them.
//
// Of the tests, history_test.go plays random histories of the configurations of variant_test.go, and judge_test.go
// judges them by the limiter of exact_test.go. golden_test.go has the golden bytes.
package state

import (
	"encoding/binary"
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

var le = binary.LittleEndian

// Status is the outcome of an operation on a Store or a Table.
type Status uint8

// The outcomes.
const (
	OK       Status = iota
	NotFound        // the store has no such key
	Mismatch        // read again: another worker wrote first, or the Entry is of an older epoch
	Full            // no slot for a new key, and the rule does not evict
	Failed          // the store failed, or holds bytes that this build cannot read
	ReadOnly        // the Entry is of a Look, a Refund, or a Read that failed: nothing may be written by it

	newer // of loadPage and convert alone: the page has windows of a later epoch
)

// Store is a map with compare-and-swap, like Envoy's shared data: it has no
// delete, no list and no expiry.
//
// The caller may change the bytes that Get returns until the request ends. If they are
// no copy, that changes what is stored: then even a Look leaves a trace. Set keeps no
// reference to key or value.
type Store interface {
	Get(key []byte) (value []byte, cas uint32, status Status)
	Set(key, value []byte, cas uint32) Status
	// Now returns nanoseconds since the Unix epoch. A table asks for it if a record seems to
	// be of the future: its caller may have read the clock long ago.
	Now() int64
	// Monotonic returns nanoseconds of a clock that nobody sets, the same for all workers.
	Monotonic() int64
}

// CreateOnly is the cas that creates a key and never overwrites one. Envoy
// creates a missing key whatever the cas, refuses a wrong cas for an existing key,
// and overwrites if the cas is 0. It numbers its writes from 1 in steps of 1, so
// no key has this cas before 4 billion writes. Even then only a key created since
// the read, with exactly this cas, could be overwritten.
const CreateOnly uint32 = 0xFFFFFFFE

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

// What tells old from new, and one thing from another:
//
//	name         of what                    changes                             compared by
//	number       a table, in its page keys  never; a later table may get it     adopt
//	base         a table's registration     with a number that is given anew    adopt, owns; convert: older pages
//	                                                                            are empty
//	epoch        a table's windows          when they are chosen or changed     adopt, convert, Refund;
//	                                                                            whereIs: HoldsSince is one
//	generation   a record                   when it is set, reset or rebased    Refund
//	serial       a record of a table that   when it is placed                   whereIs (hold.go)
//	             holds, in its page
//	grant number a grant, on its stream     with each grant                     leased.GrantID

// Keys in shared data. They have at most 15 bytes, because the host allocates
// twice for a longer one, and a prefix, because Istio puts all plugins into one
// namespace. KeySuffix and KeyPrefix are of the format's version. The kind is the value's second byte, if it has one.
//
//	key                                          value                         kind   drawn in
//	"sluice/tables" KeySuffix                    directory of all tables       2      directory/directory.go
//	"sluice/owners" KeySuffix                    heartbeats of all owners      4      directory/heartbeats.go
//	"sluice/seed"                                seed of all hashes            3      values.go
//	"sl/held"                                    holds' clock                         lapse.go
//	"sl/n" 8 hex of owner                        how many proxies are alive           values.go
//	"sl/g" u32 owner, u32 rule                   what streams hold of a rule          streams.go
//	KeyPrefix 4 hex of number, 8 hex of index    page of the table of number   1      page/page.go
var (
	directoryKey  = []byte("sluice/tables" + page.KeySuffix)
	heartbeatsKey = []byte("sluice/owners" + page.KeySuffix)
	seedKey       = []byte("sluice/seed")
	holdClockKey  = []byte("sl/held")
)

// proxiesKey returns the key of how many proxies are alive, as the tables' owner knows.
func (ts *Tables) proxiesKey() (key [12]byte) {
	copy(key[:], "sl/n")
	le.PutUint64(key[4:], hexDigits(uint32(ts.self.ID)))
	return key
}

// streamTotalKey returns the key of what the streams hold of a rule. rule is a hash of its name.
func (ts *Tables) streamTotalKey(rule uint32) (key [12]byte) {
	copy(key[:], "sl/g")
	le.PutUint32(key[4:], uint32(ts.self.ID))
	le.PutUint32(key[8:], rule)
	return key
}

// pageKey returns the key of the page with that index.
func (pl *placement) pageKey(index uint32) (key [15]byte) {
	copy(key[:], page.KeyPrefix)
	number := uint32(hexDigits(uint32(pl.number) << 16)) // the first four of eight digits
	le.PutUint32(key[len(page.KeyPrefix):], number)
	le.PutUint64(key[len(page.KeyPrefix)+4:], hexDigits(index))
	return key
}

// hexDigits returns the eight lower-case hexadecimal digits of v, the first one in
// the lowest byte.
func hexDigits(v uint32) uint64 {
	const each = 0x0101010101010101
	d := uint64(v)
	d = (d | d<<16) & 0x0000ffff0000ffff
	d = (d | d<<8) & 0x00ff00ff00ff00ff
	d = (d | d<<4) & (0x0f * each)
	letters := (d + 6*each) >> 4 & each
	return bits.ReverseBytes64(d + '0'*each + letters*('a'-'0'-10))
}
