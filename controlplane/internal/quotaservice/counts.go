package quotaservice

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// starting counts asks that are Unavailable because the store is.
const starting = quota.Busy + 1

// counts is what a service has counted since it started.
type counts struct {
	results                 [starting + 1]atomic.Uint64
	granted, returned, lost atomic.Uint64 // units
	mismatches, storeErrors atomic.Uint64
	crowded                 atomic.Uint64
	late, unread, full      atomic.Uint64
	rebased                 atomic.Uint64
	degraded                atomic.Int32
	failedSwap              atomic.Bool // since the last heartbeat
	latency                 atomic.Pointer[prometheus.Histogram]
}

// result counts a store's result.
func (c *counts) result(r Result) {
	switch r.Outcome {
	case Failed:
		if errors.Is(r.Err, ErrFull) { // the store answers
			c.full.Add(1)
			return
		}
		c.storeErrors.Add(1)
		c.failedSwap.Store(true)
		c.degraded.Store(1)
		return
	case Late:
		c.late.Add(1)
	case Swapped, Differs, Young:
	}
	c.degraded.Store(0)
}

// beat counts a heartbeat, which alone tells of the store while nobody asks. One that
// the store answers says nothing of swaps, which may fail at the same time. It reports
// whether the store answers again.
func (c *counts) beat(err error) (again bool) {
	failed := c.failedSwap.Swap(false)
	switch {
	case err != nil:
		c.storeErrors.Add(1)
		c.degraded.Store(1)
	case !failed:
		return c.degraded.Swap(0) != 0
	}
	return false
}

func (c *counts) answered(r quota.Result, ns int64) {
	c.results[r].Add(1)
	if h := c.latency.Load(); h != nil {
		(*h).Observe(float64(ns) / second)
	}
}
