package front

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
)

const (
	// checkEvery is how often the service checks its health, and how long the store has to answer.
	checkEvery = time.Second
	// maxJSONBytes is what gRPC's default allows a call.
	maxJSONBytes = 4 << 20
)

var (
	errStarting  = errors.New("the service is starting")
	errStopping  = errors.New("the service is stopping")
	errNoDomains = errors.New("no domain has a rate limit configuration")
)

// Register adds the service, and its health, to a gRPC server.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	rlsv3.RegisterRateLimitServiceServer(r, s)
	healthv1.RegisterHealthServer(r, s.health.server)
}

// AddRoutes adds what those can call who do not speak gRPC.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthcheck", s.answerHealth)
	mux.HandleFunc("POST /json", s.answerJSON)
}

// answerHealth answers OK, or 500 with the reason.
func (s *Service) answerHealth(w http.ResponseWriter, _ *http.Request) {
	if err := s.health.get(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

// answerJSON answers a call in the JSON of protobuf: 200 if it passes, 429 if it does not, and 400
// for all errors, because that is what clients of the envoyproxy/ratelimit service know.
func (s *Service) answerJSON(w http.ResponseWriter, r *http.Request) {
	call := &rlsv3.RateLimitRequest{}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err == nil {
		err = protojson.Unmarshal(body, call)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.answer(r.Context(), call)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, err := protojson.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(text)
}

// WatchHealth checks the service's health until ctx ends. Before and after that it is unhealthy, so
// that clients go elsewhere while it still answers the last calls.
func (s *Service) WatchHealth(ctx context.Context) {
	defer s.health.set(errStopping)
	for {
		err := s.check(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && s.health.get() == nil {
			s.o.Log.Warn("the rate limit service is unhealthy", "error", err)
		}
		s.health.set(err)
		sleep(ctx, checkEvery)
	}
}

// check says why the service is unhealthy.
func (s *Service) check(ctx context.Context) error {
	if s.o.NeedDomains && s.Domains() < 1 {
		return errNoDomains
	}
	ctx, cancel := context.WithTimeout(ctx, checkEvery)
	defer cancel()
	err := s.o.Healthy(ctx)
	switch {
	case err == nil, errors.Is(err, quotaservice.ErrStarting): // what it lacks then is of no use to calls
		s.health.answered = true
	case !s.o.HealthyWithoutStore || !s.health.answered:
		return err
	}
	return nil
}

// healthState is the health that clients see.
type healthState struct {
	server   *health.Server
	answered bool // the store has answered; only WatchHealth knows it
	mu       sync.Mutex
	err      error // why it is unhealthy
}

func newHealthState() *healthState {
	h := &healthState{server: health.NewServer()}
	h.set(errStarting)
	return h
}

func (h *healthState) get() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// set also sets what clients of grpc.health.v1 see, under the empty name and that of the
// envoyproxy/ratelimit service.
func (h *healthState) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	status := healthv1.HealthCheckResponse_SERVING
	if err != nil {
		status = healthv1.HealthCheckResponse_NOT_SERVING
	}
	h.server.SetServingStatus("", status)
	h.server.SetServingStatus("ratelimit", status)
}
