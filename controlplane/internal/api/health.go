package api

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// healthy handles GET /healthz.
func (s *server) healthy(w http.ResponseWriter, r *request) error {
	status := "ok"
	if err := s.Healthy(r.Context()); errors.Is(err, store.ErrCutOff) {
		status = err.Error() // proxies are served all the same
	} else if err != nil {
		return err
	}
	if err := s.starting(r.Context()); err != nil {
		return err
	}
	answer(w, http.StatusOK, map[string]string{"status": status})
	return nil
}

// metrics serves a registry of its own: the default one is global.
func (s *server) metrics() handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		s.refusals.total,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	registry.MustRegister(s.Collectors...)
	if s.XDS != nil {
		s.registerXDS(registry)
	}
	page := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *request) error {
		page.ServeHTTP(w, r.Request)
		return nil
	}
}

func (s *server) registerXDS(registry *prometheus.Registry) {
	counter := func(name, help string, of *atomic.Uint64) {
		opts := prometheus.CounterOpts{Namespace: "sluice", Name: name, Help: help}
		registry.MustRegister(prometheus.NewCounterFunc(opts, func() float64 { return float64(of.Load()) }))
	}
	l := s.XDS.Ledger()
	gauge := func(name, help string, read func() int) {
		opts := prometheus.GaugeOpts{Namespace: "sluice", Name: name, Help: help}
		registry.MustRegister(prometheus.NewGaugeFunc(opts, func() float64 { return float64(read()) }))
	}
	counter("xds_pushes_total", "Revisions pushed to proxies.", &s.XDS.Pushes)
	counter("xds_acks_total", "Pushes that proxies accepted.", &s.XDS.Acks)
	counter("xds_nacks_total", "Pushes that proxies refused.", &s.XDS.Nacks)
	counter("xds_foreign_node_ids_total",
		"Streams refused because the certificate does not allow their node id.", &s.XDS.Foreign)
	gauge("proxies_connected", "Proxies with an xDS stream.", func() int { return l.Connected("") })
	gauge("proxies_behind", "Connected proxies that do not run the newest revision of their policy.", l.Behind)
	gauge("proxies_without_policy", "Connected proxies that ask for a policy, but no policy selects them.", l.Untaken)
	gauge("proxies_ahead", "Connected proxies with a newer revision of this store, which this serve does not have.",
		func() int { n, _ := l.Ahead(); return n })
	gauge("canaries", "Canaries that are not yet promoted or aborted.", func() int { return l.Canaries(store.Canary) })
	gauge("canaries_stalled",
		"Stalled canaries: a proxy refused one, its filter crashed, or a rule denies too much.",
		func() int { return l.Canaries(store.Stalled) })
	gauge("store_cut_off", "1 while the store on etcd cannot be reached: this serve refuses changes.", func() int {
		if errors.Is(s.Store.Healthy(context.Background()), store.ErrCutOff) {
			return 1
		}
		return 0
	})
	gauge("revisions_damaged", "Damaged revisions in the store, which are not pushed.",
		func() int { return len(l.Damaged("")) })
	gauge("revision", "The newest revision, 0 before the first.", func() int { return int(l.Newest()) })
}
