package quotaservice

import (
	"cmp"
	"context"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

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
	counter("quota_unread_streams_total", "Streams ended because they did not read their answers.", nil, c.unread.Load)
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
		for i := range st.grants {
			if g := &st.grants[i]; g.atNs+g.charge.StampNs-g.charge.AtNs > now {
				sum += uint64(g.units)
			}
		}
	}
	return float64(sum)
}

// Healthy says why the store does not answer, or has no state yet.
func (s *Service) Healthy(ctx context.Context) error {
	if s.apart.Load() {
		return errOtherSecret
	}
	failed := make(chan error, 1)
	s.o.Store.Swap(ctx, []Swap{{UntilNs: math.MaxInt64}}, func(_ int, r Result) { failed <- r.Err })
	select {
	case err := <-failed:
		return cmp.Or(err, s.Starting())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
