// Package api is the HTTP API of the control plane: policies come in, their
// history and what proxies made of them come out.
//
// Its invariant: an acknowledged revision is durable, and is valid by the same
// reading that the command line and the filter do. Every answer but a metrics
// page is JSON, errors too. The package must never log a token or the text of a
// policy, and must never import the command line.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// Options of the API. Store and XDS are required, but for NewMetrics.
type Options struct {
	Store store.Store
	XDS   *xds.Server
	// Identify returns the caller of a request, false for an unknown one. Without
	// it anyone may call and is an admin.
	Identify func(*http.Request) (access.Caller, bool)
	Fleet    *manage.Fleet // asks proxies about counters; nil: none is asked
	Quota    Quota         // has the counters of rules of scope cluster
	Log      *slog.Logger  // default: nothing
	// Collectors are metrics of what else the process serves.
	Collectors []prometheus.Collector
	Healthy    func(context.Context) error // default: the store's
}

type server struct {
	Options
	refusals *refusals
	watched  watched
	pasts    sync.Map // of the rates of rules, by policy
	paths    sync.Map // management paths as texts, by revision: to read a policy takes memory and time
	judging  turn
	backups  turn
}

// New returns a mux that answers the API's requests. It watches canaries and the rates of
// rules until ctx ends.
func New(ctx context.Context, o Options) *http.ServeMux {
	s := newServer(o)
	go s.watch(ctx)
	go s.keepRates(ctx)
	return s.mux(s.routes())
}

// NewMetrics returns a handler of /metrics and /healthz alone, with the API's guard.
func NewMetrics(o Options) http.Handler {
	s := newServer(o)
	return s.mux([]route{
		{"GET /metrics", all, access.Read, s.metrics(), nil, nil},
		{"/", inBody, access.Read, s.unknown, nil, nil},
	})
}

func newServer(o Options) *server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Healthy == nil {
		o.Healthy = o.Store.Healthy
	}
	return &server{
		Options: o, refusals: newRefusals(o.Log), watched: watched{of: map[string]*watching{}},
		judging: newTurn(maxJudgingWait), backups: newTurn(maxBackupWait),
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone if this fails
}

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
