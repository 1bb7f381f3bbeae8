package quotaservice

import "time"

// There are two clocks. In all of the package localNs is a time by the service's own clock. storeNs is one by
// the store's clock, as the store has said it or as far as the service knows it.

const (
	second = 1_000_000_000
	// linger is how much longer a value lives than what it has counted.
	linger = 10 * second
)

// Clock measures time that goes on evenly. Its beginning is of no matter.
type Clock interface {
	NowNs() int64
	// AfterFunc calls f after ns nanoseconds.
	AfterFunc(ns int64, f func())
}

// machineClock is the Clock of this machine.
type machineClock struct{ start time.Time }

func (m machineClock) NowNs() int64 { return int64(time.Since(m.start)) }

func (m machineClock) AfterFunc(ns int64, f func()) { time.AfterFunc(time.Duration(ns), f) }

// storeClock is what the service knows of the store's clock: how far it will be ahead of the
// service's own when a swap that leaves now has arrived. That is the smallest lead that was seen, so
// the fastest way to the store. The store finds a swap Late if it is even faster, because the store's
// clock is still before storeNs, or if it takes longer than the slack.
type storeClock struct {
	known   bool
	aheadNs int64
}

// note notes that the store's clock said storeNs to a swap that left at sentNs. If what was known of the clock may have
// misled the swap (see key.mayBeMisled), this replaces it also if it is larger.
func (c *storeClock) note(sentNs, storeNs int64, mayBeMisled bool) {
	ahead := storeNs - sentNs
	if !c.known || mayBeMisled || ahead < c.aheadNs {
		c.known, c.aheadNs = true, ahead
	}
}

// storeNs is the earliest time that the store's clock may show to a swap that leaves at localNs.
func (c *storeClock) storeNs(localNs int64) int64 { return localNs + c.aheadNs }

// storeNow is storeNs of a swap that leaves now.
func (c *core) storeNow() int64 { return c.storeClock.storeNs(c.clock.NowNs()) }
