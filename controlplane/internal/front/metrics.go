package front

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

const (
	// maxLimits bounds the limits that have series of their own: their names may hold values of
	// clients.
	maxLimits = 10_000
	// maxMetric bounds the name of such a limit. A client's value may be as long as a call.
	maxMetric = 2 << 10
	// otherLimits is the domain of the series of all others.
	otherLimits = "other_limits"
)

// metrics have the names of the envoyproxy/ratelimit service, so that its dashboards and alerts fit.
type metrics struct {
	total, over, near, within, shadow, remembered *prometheus.CounterVec // units, by limit

	globalShadow, loaded, notLoaded, notFound prometheus.Counter

	errors  *prometheus.CounterVec // by kind
	calls   prometheus.Counter     // by gRPC
	seconds prometheus.Histogram   // of those

	mu     sync.RWMutex
	limits map[string]*limitMetrics // by ratelimitconfig.Match.Metric
}

// limitMetrics are those of one limit.
type limitMetrics struct {
	total, over, near, within, shadow, remembered prometheus.Counter
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "ratelimit_service", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter { return prometheus.NewCounter(opts(name, help)) }
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(opts(name, help), labels)
	}
	hits := func(name, help string) *prometheus.CounterVec {
		return vector("rate_limit_"+name, help, "domain", "key1", "key2")
	}
	calls := opts("total_requests", "Rate limit calls.")
	calls.ConstLabels = prometheus.Labels{"grpc_method": "ShouldRateLimit"}
	return &metrics{
		total:        hits("total_hits", "Hits of rate limit calls, by limit."),
		over:         hits("over_limit", "Hits over the limit."),
		near:         hits("near_limit", "Hits that passed when the limit was nearly used up."),
		within:       hits("within_limit", "Hits that passed."),
		shadow:       hits("shadow_mode", "Hits over a limit in shadow mode, which passed."),
		remembered:   hits("over_limit_with_local_cache", "Hits over a limit that were denied without asking the store."),
		globalShadow: counter("global_shadow_mode", "Calls that passed because all limits are in shadow mode."),
		loaded:       counter("config_load_success", "Configurations that were taken."),
		notLoaded:    counter("config_load_error", "Configurations that were rejected."),
		notFound:     counter("rate_limit_domain_not_found", "Descriptors of calls whose domain has no configuration."),
		errors:       vector("should_rate_limit_error", "Calls that ended with an error.", "err_type"),
		calls:        prometheus.NewCounter(calls),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "ratelimit_service", Name: "response_time_seconds", Help: "Time of a rate limit call.",
			ConstLabels: calls.ConstLabels,
		}),
		limits: map[string]*limitMetrics{},
	}
}

// Collectors are the service's metrics.
func (s *Service) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{
		m.total, m.over, m.near, m.within, m.shadow, m.remembered,
		m.globalShadow, m.loaded, m.notLoaded, m.notFound, m.errors, m.calls, m.seconds,
	}
}

// countCall counts a call by gRPC, and its time.
func (m *metrics) countCall(took time.Duration) {
	m.calls.Inc()
	m.seconds.Observe(took.Seconds())
}

// countError counts a call that ends with an error.
func (m *metrics) countError(err error) {
	kind := "service_error"
	if status.Code(err) == codes.Unavailable {
		kind = "redis_error"
	}
	m.errors.WithLabelValues(kind).Inc()
}

// countHits counts the hits of a call.
func (m *metrics) countHits(c *call, totals []quotaservice.Total) {
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p.kind == limited:
			m.of(p.match.Metric).count(p, &totals[p.counted], c.uses[p.counted], c.service.o.NearRatio)
		case p.match.UnknownDomain:
			m.notFound.Inc()
		}
	}
}

// of returns the metrics of a limit.
func (m *metrics) of(name string) *limitMetrics {
	if len(name) > maxMetric {
		name = ""
	}
	m.mu.RLock()
	l := m.limits[name]
	if l == nil && len(m.limits) >= maxLimits {
		l = m.limits[""]
	}
	m.mu.RUnlock()
	if l != nil {
		return l
	}
	return m.add(name)
}

// add makes the metrics of a limit, unless another call has made them. Those of the empty name are
// for all limits that have none of their own.
func (m *metrics) add(name string) *limitMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.limits) >= maxLimits {
		name = ""
	}
	if l := m.limits[name]; l != nil {
		return l
	}
	domain, key1, key2 := ratelimitconfig.MetricLabels(name)
	if name == "" {
		domain = otherLimits
	}
	l := &limitMetrics{
		total:      m.total.WithLabelValues(domain, key1, key2),
		over:       m.over.WithLabelValues(domain, key1, key2),
		near:       m.near.WithLabelValues(domain, key1, key2),
		within:     m.within.WithLabelValues(domain, key1, key2),
		shadow:     m.shadow.WithLabelValues(domain, key1, key2),
		remembered: m.remembered.WithLabelValues(domain, key1, key2),
	}
	m.limits[name] = l
	return l
}

// count counts the hits of a descriptor: each is over the limit or within it, and it is near the
// limit if it passed beyond that share of it. With a limit of 10 and a nearRatio of 0.8, a call of
// three hits counts
//
//	used before  used after  within  over  near
//	5            8           3       0     0     up to the 8th, none is near
//	7            10          3       0     2     the 9th and the 10th
//	9            12          0       2     1     they were counted, and the 10th would have passed
//	9            9           0       3     0     they were not counted
func (l *limitMetrics) count(p *part, total *quotaservice.Total, use quotaservice.Use, nearRatio float32) {
	units := uint64(use.Units)
	l.total.Add(float64(units))
	if total.Remembered {
		l.remembered.Add(float64(units))
		l.countOver(p, units)
		return
	}
	windows := use.Counter.Windows()
	w, _ := tightest(windows, total.Windows)
	most, used := uint64(windows[w].Max()), uint64(total.Windows[w].Used)
	before := used - min(used, units)
	near := uint64(math.Floor(float64(float32(most) * nearRatio)))
	switch {
	case !total.Over:
		l.within.Add(float64(units))
		l.near.Add(float64(used - min(used, max(near, before))))
	case used > most: // the hits were counted, and some of them may have fitted
		l.countOver(p, min(units, used-most))
		l.near.Add(float64(most - min(most, max(near, before))))
	default:
		l.countOver(p, units)
	}
}

func (l *limitMetrics) countOver(p *part, units uint64) {
	l.over.Add(float64(units))
	if p.match.Shadow {
		l.shadow.Add(float64(units))
	}
}
