package keyed

import (
	"sync/atomic"
	"time"
)

// The system's time of day takes twice as long to read as its monotonic clock. So
// the former is read every hundred milliseconds, and what lies in between is told
// by the latter: both run at the same rate, and a step of the time of day is
// noticed that much later.
const readEvery = 100 * time.Millisecond

// began is what monotonic times are counted from.
var began = time.Now()

// reading is the time of day at a monotonic time.
type reading struct {
	at     time.Duration // since began
	unixNs int64
}

var lastReading atomic.Pointer[reading]

// systemNow is the time in nanoseconds since the Unix epoch.
func systemNow() int64 {
	at := time.Since(began)
	if r := lastReading.Load(); r != nil && uint64(at-r.at) < uint64(readEvery) { // as unsigned: nor before it
		return r.unixNs + int64(at-r.at)
	}
	now := time.Now()
	lastReading.Store(&reading{now.Sub(began), now.UnixNano()})
	return now.UnixNano()
}
