package keyed

import (
	"sync/atomic"
	"time"
)

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
