// Package api is the HTTP API of the control plane: policies come in, their
// history and what proxies made of them come out.
//
// Its invariant: an acknowledged revision is durable, and is valid by the same
// reading that the command line and the filter do. Every answer but a metrics
// page is JSON, errors too. The package must never log a token or the text of a
// policy, and must never import the command line.
//
// routes.go lists every request with its handler, and callers.go says who may call.
// apply.go and judge.go change policies, canary.go begins and ends canaries, policies.go and
// status.go read, and audit.go records who changes what. manage.go and quota.go reach counters,
// ask.go finds the proxies to ask, and health.go is for monitoring. Two loops go on without a
// request: package rollouts watches canaries, and package rates keeps how fast the rules decide.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/rates"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/rollouts"
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
	Calls      http.Handler                // answers rate limit calls over HTTP; nil: nothing does
}

type server struct {
	Options
	refusals *refusals
	rollouts *rollouts.Watcher
	rates    *rates.Keeper
	paths    sync.Map // management paths as texts, by revision: to read a policy takes memory and time
	judging  turn
	backups  turn
}

// New returns a mux that answers the API's requests. It watches canaries and the rates of
// rules until ctx ends.
func New(ctx context.Context, o Options) *http.ServeMux {
	s := newServer(o)
	go s.rollouts.Run(ctx)
	if s.Fleet != nil {
		go s.rates.Run(ctx)
	}
	return s.mux(s.routes())
}

// NewMetrics returns a handler of /metrics, /healthz and rate limit calls alone, with the API's guard.
func NewMetrics(o Options) http.Handler {
	s := newServer(o)
	return s.mux(append(s.callRoutes(), []route{
		{"GET /metrics", all, access.Read, s.metrics(), nil, nil},
		{"/", anyRole, access.Read, s.unknown, nil, nil},
	}...))
}

func newServer(o Options) *server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Healthy == nil {
		o.Healthy = o.Store.Healthy
	}
	s := &server{
		Options: o, refusals: newRefusals(o.Log),
		judging: newTurn(maxJudgingWait), backups: newTurn(maxBackupWait),
	}
	s.rollouts = rollouts.New(rollouts.Options{Store: o.Store, XDS: o.XDS, Ask: s.call, Log: o.Log})
	s.rates = rates.New(rates.Options{
		Policies: func() []string { return s.XDS.Ledger().Policies() },
		Current:  func(policy string) uint64 { return s.XDS.Ledger().ForNewProxy(policy) },
		Read:     s.pushed, Ask: s.call,
	})
	return s
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone if this fails
}

// Error is the body of every answer that says why a request failed.
type Error struct {
	Error    string               `json:"error"`
	Problems []policyfile.Problem `json:"problems,omitempty"` // of a policy
}

// maxProblems is more than a person mends at a time.
const maxProblems = 100

// Problems keeps the first ones and counts the rest. It is never nil, for JSON.
func Problems(list []policyfile.Problem) []policyfile.Problem {
	if more := len(list) - maxProblems; more > 0 {
		return append(list[:maxProblems:maxProblems], policyfile.Problem{Message: fmt.Sprintf("and %d more", more)})
	}
	return append([]policyfile.Problem{}, list...)
}

// failure is an error with its status code.
type failure struct {
	code       int
	err        error
	retryAfter string // seconds, "" for none
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// refusal is a failure with a text of its own.
func refusal(code int, format string, args ...any) error {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return refusal(http.StatusBadRequest, format, args...)
}

// later is the failure of what may succeed after so many seconds.
func later(seconds string, err error) *failure {
	return &failure{code: http.StatusServiceUnavailable, err: err, retryAfter: seconds}
}

func isLater(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.code == http.StatusServiceUnavailable
}

// fail answers with an error. Errors of the store, of the quota service and of rollouts are not
// failures; they get their codes here.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var problems policyfile.Errors
	var f *failure
	switch {
	case errors.As(err, &problems):
		answer(w, http.StatusUnprocessableEntity, Error{Error: "policy is not valid", Problems: Problems(problems)})
	case errors.As(err, &f):
		switch f.code {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
			s.refusals.note(r, f.code, f)
		}
		if f.retryAfter != "" {
			w.Header().Set("Retry-After", f.retryAfter)
		}
		answer(w, f.code, Error{Error: f.Error()})
	case errors.Is(err, store.ErrNotFound):
		answer(w, http.StatusNotFound, Error{Error: err.Error()})
	case errors.Is(err, rollouts.ErrNone):
		answer(w, http.StatusConflict, Error{Error: err.Error()})
	case r.Context().Err() != nil: // the caller has gone
	case errors.Is(err, store.ErrCutOff), errors.Is(err, quotaservice.ErrStarting):
		answer(w, http.StatusServiceUnavailable, Error{Error: err.Error()})
	default:
		if errors.Is(err, store.ErrDamaged) {
			err = fmt.Errorf("%w: apply the policy again, or restore a backup", err)
		}
		s.Log.Error("store", "path", r.URL.Path, "error", err)
		answer(w, http.StatusInternalServerError, Error{Error: err.Error()})
	}
}

// maxJudgingWait is how long a request waits to be judged.
const maxJudgingWait = 10 * time.Second

// errBusy says that there is no time for a request now.
var errBusy = later("2", errors.New("the server is busy with other requests: try again in 2 s"))

// turn lets one caller go on at a time, because what it does takes memory. The others wait
// that long.
type turn struct {
	*semaphore.Weighted
	wait time.Duration
}

func newTurn(wait time.Duration) turn { return turn{semaphore.NewWeighted(1), wait} }

// take waits for the turn until the caller has gone or too long.
func (t turn) take(ctx context.Context) (free func(), err error) {
	waiting, leave := context.WithTimeoutCause(ctx, t.wait, errBusy)
	defer leave()
	if t.Acquire(waiting, 1) != nil {
		return nil, context.Cause(waiting)
	}
	return func() { t.Release(1) }, nil
}
