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
	late, full              atomic.Uint64
	rebased                 atomic.Uint64
	degraded                atomic.Int32
	failedSwap              atomic.Bool // since the last heartbeat
	latency                 atomic.Pointer[prometheus.Histogram]
}

// results are the values of the label result.
var results = map[quota.Result]string{
	quota.Granted: "granted", quota.Denied: "denied", quota.Unavailable: "unavailable", quota.Unknown: "unknown", quota.Busy: "busy",
	starting: "starting",
}

// Collectors returns the service's metrics. It is called once.
func (s *Service) Collectors() []prometheus.Collector {
	var all []prometheus.Collector
	counter := func(name, help string, labels prometheus.Labels, read func() uint64) {
		opts := prometheus.CounterOpts{Namespace: "sluice", Name: name, Help: help, ConstLabels: labels}
		all = append(all, prometheus.NewCounterFunc(opts, func() float64 { return float64(read()) }))
	}
	gauge := func(name, help string, read func() float64) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "sluice", Name: name, Help: help}, read))
	}
	c := &s.count
	for r, word := range results {
		counter("quota_asks_total", "Asks of proxies, by what became of them.", prometheus.Labels{"result": word}, c.results[r].Load)
	}
	counter("quota_units_granted_total", "Units granted to proxies.", nil, c.granted.Load)
	counter("quota_units_returned_total", "Units that proxies gave back unspent.", nil, c.returned.Load)
	counter("quota_units_lost_total", "Unspent units that could not be given back: they stay counted until their window ends.", nil, c.lost.Load)
	counter("quota_late_total", "Decisions made again because the store's clock had moved on.", nil, c.late.Load)
	counter("quota_clock_rebased_total", "Values moved to the present: the store's clock was set back since they were written.", nil, c.rebased.Load)
	counter("quota_store_errors_total", "Swaps and heartbeats that the store did not answer.", nil, c.storeErrors.Load)
	counter("quota_store_full_total", "Swaps that the memory store had no room for: the domain's keys take more than its share.", nil, c.full.Load)
	counter("quota_mismatches_total", "Asks for keys whose value a newer release has written, or that is damaged.", nil, c.mismatches.Load)
	counter("quota_crowded_total", "Asks refused because their keys count in 16 windows of other definitions.", nil, c.crowded.Load)
	gauge("quota_degraded", "1 while the store does not answer, or has another key.", func() float64 { return float64(c.degraded.Load()) })
	gauge("quota_starting", "1 while the store has no state yet: on_unavailable decides rules with settle or concurrency.",
		func() float64 { return float64(min(s.startingNs(), 1)) })
	gauge("quota_streams", "Open streams of proxies' workers.", func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.streams))
	})
	gauge("quota_units_held", "Units of leases that have not ended, spent or not.", s.held)
	latency := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "sluice", Name: "quota_ask_seconds", Help: "Time from an ask to its answer.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, 1},
	})
	c.latency.Store(&latency)
	return append(all, latency)
}

// held sums up what the streams' leases hold that have not ended.
func (s *Service) held() float64 {
	now := s.o.Clock.NowNs()
	sum := uint64(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		sum += st.grants.held(now)
	}
	return float64(sum)
}

// countResult counts a store's result.
func (c *counts) countResult(r Result) {
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

// countBeat counts a heartbeat, which alone tells of the store while nobody asks. One that
// the store answers says nothing of swaps, which may fail at the same time. It reports
// whether the store answers again.
func (c *counts) countBeat(err error) (again bool) {
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

// countAnswer counts what became of an ask, and how long that took.
func (c *counts) countAnswer(r quota.Result, ns int64) {
	c.results[r].Add(1)
	if h := c.latency.Load(); h != nil {
		(*h).Observe(float64(ns) / second)
	}
}
