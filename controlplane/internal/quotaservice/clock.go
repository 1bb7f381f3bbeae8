package quotaservice

import (
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

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

// storeNs is the earliest time that the store's clock may show to a swap that leaves at localNs.
func (c *storeClock) storeNs(localNs int64) int64 { return localNs + c.aheadNs }

// storeNow is storeNs of a swap that leaves now.
func (c *core) storeNow() int64 { return c.storeClock.storeNs(c.clock.NowNs()) }

// note notes that the store's clock said storeNs to a swap that left at sentNs. A larger lead than the known one only
// counts if the known one may have misled the swap: it was decided at a storeNs that was wrong.
func (c *storeClock) note(sentNs, storeNs int64, mayBeMisled bool) {
	ahead := storeNs - sentNs
	if !c.known || mayBeMisled || ahead < c.aheadNs {
		c.known, c.aheadNs = true, ahead
	}
}

// mayBeMisled reports whether the storeClock may have misled the key's swap, which ended so:
//
//	a swap that  shows it by
//	writes       Late: the store has compared its clock with the times of the swap
//	only reads   swapAgain: its operations change something at the store's time, though they changed nothing at storeNs
//
// A read is also swapAgain because another value is there, so this is only a may. To take it for misled does no harm:
// the lead of this swap is as true. If it is too large, a later swap is Late, and corrects it.
func (k *key) mayBeMisled(r swapstore.Result, e swapEnding) bool {
	return r.Status == swapstore.Late || k.reads && e == swapAgain
}
