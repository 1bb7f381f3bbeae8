// Package keyed limits how often something may happen per key, in this
// process: requests of a user, logins from an address, mails to an account.
//
//	l, err := keyed.New().Window(time.Minute, 3).Window(15*time.Minute, 10).Build()
//	...
//	if r := l.Hit(user); !r.Allowed {
//		// come back in r.RetryAfter
//	}
//
// A limiter has one or more windows, of the same or of different algorithms. A hit
// counts only if every window has room for it, and then in all of them: a denied
// hit uses nothing. A hit has a cost in units, 1 unless [Limiter.HitN] says
// otherwise.
//
// A limiter is safe for concurrent use. Nothing runs in the background, so there is
// nothing to close. Decisions are exact integer arithmetic in nanoseconds and
// units.
//
// Its invariant: memory never grows beyond [Limiter.MaxBytes], whatever keys come,
// and making room for a new key never gives any key quota back. Keys are hashed, not
// kept. With a probability of at most 1 in 130 million, a new key shares its count
// with another one and is denied early.
//
// It must never be linked into the filter. The two share the arithmetic of package
// limit and the tables of package state, but the filter has no use for its locks,
// its clock or net/http.
package keyed

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Limiter counts hits per key. [New] builds one.
type Limiter struct {
	windows     []limit.Window // in the order of limit.Window.Compare
	named       []named        // in the builder's order
	capacity    uint64
	slots       uint64
	evict       bool // OnFull is Inherit
	passFull    bool // OnFull is Allow
	countDenied bool
	blocks      bool // the last of the windows is a Block
	prolongs    bool // which each denied hit prolongs
	jittered    bool
	clock       func() time.Time
	maxBytes    int64

	seed   maphash.Seed
	bits   uint // top bits of a key's hash: the index of its shard
	shards []shard
}

// named is a window as the builder named it.
type named struct {
	name   string
	column int // index in Limiter.windows
}

// earliest and latest bound a limiter's time. The latest plus 366 days must fit in
// 2⁶³ nanoseconds.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(2250, 1, 1, 0, 0, 0, 0, time.UTC)
)

// now returns the time in nanoseconds since the Unix epoch.
func (l *Limiter) now() int64 {
	if l.clock == nil {
		return max(systemNow(), 0)
	}
	switch t := l.clock(); {
	case t.Before(earliest):
		return earliest.UnixNano()
	case t.After(latest):
		return latest.UnixNano()
	default:
		return t.UnixNano()
	}
}

// lock returns the key's shard, locked, with its key set. The caller must unlock it.
func (l *Limiter) lock(key string) *shard {
	hash := maphash.String(l.seed, key)
	s := &l.shards[hash>>(64-l.bits)] // its highest bits
	if !l.jittered {
		s.mu.Lock()
		le.PutUint64(s.key.Bytes, hash)
		return s
	}
	stable := stableHash(key)
	s.mu.Lock()
	le.PutUint64(s.key.Bytes, hash)
	for i, w := range l.windows {
		s.key.Windows[i] = w.Shifted(w.KeyShift(stable))
	}
	return s
}

// stableHash returns a hash of the key that is the same on every machine and after
// every restart. It is FNV-1a with its bits mixed once more. Only Jitter uses it.
func stableHash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	return h ^ h>>33
}

// Reading the system's time of day takes twice as long as reading its monotonic
// clock. So the time of day is read every hundred milliseconds, and the monotonic
// clock is added in between. Both run at the same rate; only a step of the time of
// day is noticed up to this much later.
const readEvery = 100 * time.Millisecond

// began is the origin of monotonic times.
var began = time.Now()

// reading is the time of day at a monotonic time.
type reading struct {
	at     time.Duration // since began
	unixNs int64
}

var lastReading atomic.Pointer[reading]

// systemNow returns the time in nanoseconds since the Unix epoch.
func systemNow() int64 {
	at := time.Since(began)
	// A reading later than at, of another goroutine, is too far away as an unsigned difference.
	if r := lastReading.Load(); r != nil && uint64(at-r.at) < uint64(readEvery) {
		return r.unixNs + int64(at-r.at)
	}
	now := time.Now()
	lastReading.Store(&reading{now.Sub(began), now.UnixNano()})
	return now.UnixNano()
}
