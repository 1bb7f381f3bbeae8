package quotaservice

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// metrics is what a service has counted since it started.
type metrics struct {
	results       [quota.Busy + 1]atomic.Uint64 // asks by quota.Outcome, but for those that starting counts
	starting      atomic.Uint64                 // asks that were Unavailable because the store was starting
	unitsGranted  atomic.Uint64
	unitsReturned atomic.Uint64                        // uncounted, because proxies returned them
	unitsLost     atomic.Uint64                        // that a return or an undo could not uncount
	mismatches    atomic.Uint64                        // recordbytes.ErrNewer, recordbytes.ErrDamage
	storeErrors   atomic.Uint64                        // swaps that Failed but for ErrFull, heartbeats, note, Watch
	crowded       atomic.Uint64                        // balance.ErrWindows
	late          atomic.Uint64                        // swaps that were Late
	full          atomic.Uint64                        // swapstore.ErrFull
	rebased       atomic.Uint64                        // Outcome.Rebased
	degraded      atomic.Int32                         // 1 or 0: see countBeat
	failedSwap    atomic.Bool                          // since the last heartbeat
	latency       atomic.Pointer[prometheus.Histogram] // nil until Collectors is called
}

// resultLabels are the values of the label result, beside starting.
var resultLabels = map[quota.Outcome]string{
	quota.Granted:     "granted",
	quota.Denied:      "denied",
	quota.Unavailable: "unavailable",
	quota.Unknown:     "unknown",
	quota.Busy:        "busy",
}

// Collectors returns the service's metrics. It is called once.
func (s *Service) Collectors() []prometheus.Collector {
	latency := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "sluice", Name: "quota_ask_seconds", Help: "Time from an ask to its grant, or to its refusal.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, 1},
	})
	s.metrics.latency.Store(&latency)
	return append(append(s.metrics.collectors(), s.gauges()...), latency)
}

// collectors returns the counters.
func (m *metrics) collectors() (all []prometheus.Collector) {
	counter := func(name, help string, labels prometheus.Labels, n *atomic.Uint64) {
		opts := prometheus.CounterOpts{Namespace: "sluice", Name: name, Help: help, ConstLabels: labels}
		all = append(all, prometheus.NewCounterFunc(opts, func() float64 { return float64(n.Load()) }))
	}
	asks := func(label string, n *atomic.Uint64) {
		counter("quota_asks_total", "Asks of proxies, by result.", prometheus.Labels{"result": label}, n)
	}
	for r, label := range resultLabels {
		asks(label, &m.results[r])
	}
	asks("starting", &m.starting)
	counter("quota_units_granted_total", "Units granted to proxies.", nil, &m.unitsGranted)
	counter("quota_units_returned_total", "Unspent units that proxies returned.", nil, &m.unitsReturned)
	counter("quota_units_lost_total",
		"Unspent units that could not be returned. They count until their window ends.", nil, &m.unitsLost)
	counter("quota_late_total",
		"Decisions that reached the store too late by its clock, and were made again.", nil, &m.late)
	counter("quota_clock_rebased_total",
		"Values moved to the present because the store's clock was set back.", nil, &m.rebased)
	counter("quota_store_errors_total",
		"Swaps of values, heartbeats, notes of processes and looks at the store's age that failed at the store.",
		nil, &m.storeErrors)
	counter("quota_store_full_total",
		"Swaps refused by the memory store, because the domain's keys take more memory than its share.", nil, &m.full)
	counter("quota_mismatches_total",
		"Asks for keys whose value is damaged or was written by a newer release.", nil, &m.mismatches)
	counter("quota_crowded_total",
		"Asks refused because their keys count in 16 windows of other definitions.", nil, &m.crowded)
	return all
}

func (s *Service) gauges() []prometheus.Collector {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		opts := prometheus.GaugeOpts{Namespace: "sluice", Name: name, Help: help}
		return prometheus.NewGaugeFunc(opts, read)
	}
	return []prometheus.Collector{
		gauge("quota_degraded", "1 while the store does not answer, or other services on it use another key.",
			func() float64 { return float64(s.metrics.degraded.Load()) }),
		gauge("quota_starting",
			"1 while the store has no state yet: on_unavailable decides for rules with settle or concurrency.",
			func() float64 { return float64(min(s.shownStartForNs(), 1)) }),
		gauge("quota_streams", "Open streams of proxies' workers.", s.openStreams),
		// Its name is older than the holds of running requests, which it does not count.
		gauge("quota_units_held", "Units of leases that have not ended, whether spent or not.", s.leased),
	}
}

// openStreams is how many streams are open.
func (s *Service) openStreams() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.core.workers))
}

// leased sums up what the streams were granted by leases that have not ended.
func (s *Service) leased() float64 {
	localNs := s.o.Clock.NowNs()
	sum := uint64(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.core.workers {
		sum += w.returnables.leased(localNs)
	}
	return float64(sum)
}

// countResult counts a store's result.
func (m *metrics) countResult(r swapstore.Result) {
	switch r.Status {
	case swapstore.Failed:
		if errors.Is(r.Err, swapstore.ErrFull) { // the store answers
			m.full.Add(1)
			return
		}
		m.storeErrors.Add(1)
		m.failedSwap.Store(true)
		m.degraded.Store(1)
		return
	case swapstore.Late:
		m.late.Add(1)
	case swapstore.Swapped, swapstore.Read, swapstore.Young:
	}
	m.degraded.Store(0)
}

// countBeat counts a heartbeat, which alone tells of the store while nobody asks. It reports whether the store answers
// again. Beside countResult, it sets whether the service is degraded:
//
//	degraded  by countResult               by countBeat
//	1         a swap has Failed            a heartbeat has failed
//	0         another has been answered    one is answered, and no swap has Failed since the last one
//	as it is  the store has no room        one is answered, but swaps fail at the same time
func (m *metrics) countBeat(err error) (again bool) {
	hasFailed := m.failedSwap.Swap(false)
	switch {
	case err != nil:
		m.storeErrors.Add(1)
		m.degraded.Store(1)
	case !hasFailed:
		return m.degraded.Swap(0) != 0
	}
	return false
}

// countAnswer counts what became of an ask, and how long that took. isStarting is of one that is Unavailable because
// the store is starting.
func (m *metrics) countAnswer(r quota.Outcome, isStarting bool, ns int64) {
	if isStarting {
		m.starting.Add(1)
	} else {
		m.results[r].Add(1)
	}
	if h := m.latency.Load(); h != nil {
		(*h).Observe(float64(ns) / second)
	}
}
