package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
)

// serveHTTP serves the routes, and returns what asks them.
func serveHTTP(t *testing.T, s *Service) func(method, path, body string) (code int, text string) {
	t.Helper()
	mux := http.NewServeMux()
	s.AddRoutes(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return func(method, path, body string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		isAnswer := strings.HasPrefix(string(text), "{")
		require.Equal(t, isAnswer, response.Header.Get("Content-Type") == "application/json")
		return response.StatusCode, string(text)
	}
}

// serveGRPC serves the service over loopback, and returns a connection to it.
func serveGRPC(t *testing.T, s *Service) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	s.Register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestCallsInJSON(t *testing.T) {
	r := newRig(t, Options{}, shop)
	ask := serveHTTP(t, r.Service)
	const call = `{"domain": "shop", "descriptors": [{"entries": [{"key": "monthly", "value": "a"}]}]}`
	const limit = `"currentLimit": {"requestsPerUnit": 1, "unit": "MONTH"}, "durationUntilReset": "2591995s"`
	code, text := ask(http.MethodPost, "/json", call)
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"overallCode": "OK", "statuses": [{"code": "OK", `+limit+`}]}`, text)
	code, text = ask(http.MethodPost, "/json", call)
	require.Equal(t, http.StatusTooManyRequests, code)
	require.JSONEq(t, `{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", `+limit+`}]}`, text)
}

var badJSON = map[string]string{
	"":                   "unexpected token",
	"{":                  "unexpected EOF",
	`{"domane": "shop"}`: `unknown field "domane"`,
	`{"hitsAddend": -1}`: "invalid value for uint32",
	`{}`:                 "domain must not be empty",
	`{"domain": "shop"}`: "list of rate limit descriptors must not be empty",
	`{"domain": "shop", "descriptors": [{"entries": [{"key": "user"}]}]}`: "the store is away",
	strings.Repeat(" ", maxJSONBytes+1):                                   "request body too large",
}

func TestBadCallsInJSON(t *testing.T) {
	ask := serveHTTP(t, newRig(t, Options{Counter: failing{errors.New("the store is away")}}, shop).Service)
	for body, want := range badJSON {
		code, text := ask(http.MethodPost, "/json", body)
		require.Equal(t, http.StatusBadRequest, code, body)
		require.Contains(t, text, want)
	}
	code, _ := ask(http.MethodGet, "/json", "")
	require.Equal(t, http.StatusMethodNotAllowed, code)
}

func TestCallsAndHealthOverGRPC(t *testing.T) {
	r := newRig(t, Options{}, shop)
	conn := serveGRPC(t, r.Service)
	calls := rlsv3.NewRateLimitServiceClient(conn)
	_, err := calls.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop"})
	require.ErrorContains(t, err, "must not be empty")

	client := healthv1.NewHealthClient(conn)
	stream, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "ratelimit"})
	require.NoError(t, err)
	for _, step := range []struct {
		err  error
		want healthv1.HealthCheckResponse_ServingStatus
	}{
		{errStarting, healthv1.HealthCheckResponse_NOT_SERVING},
		{nil, healthv1.HealthCheckResponse_SERVING},
		{errStopping, healthv1.HealthCheckResponse_NOT_SERVING},
	} {
		r.health.set(step.err)
		pushed, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, step.want, pushed.GetStatus())
		for _, name := range []string{"", "ratelimit"} {
			got, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
			require.NoError(t, err)
			require.Equal(t, step.want, got.GetStatus(), "%q", name)
		}
	}
	_, err = client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "other"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestHealthcheckSaysWhy(t *testing.T) {
	s := New(Options{})
	ask := serveHTTP(t, s)
	code, text := ask(http.MethodGet, "/healthcheck", "")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, "the service is starting\n", text)
	s.health.set(nil)
	code, text = ask(http.MethodGet, "/healthcheck", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "OK", text)
}

// healthRig is a service whose store says what the test wants.
type healthRig struct {
	*Service
	store atomic.Value // of func(context.Context) error
}

func newHealthRig(o Options) *healthRig {
	r := &healthRig{}
	r.says(nil)
	o.Healthy = func(ctx context.Context) error { return r.store.Load().(func(context.Context) error)(ctx) }
	r.Service = New(o)
	return r
}

func (r *healthRig) says(err error) { r.store.Store(func(context.Context) error { return err }) }

// next is the health after the next check.
func (r *healthRig) next() error {
	time.Sleep(checkEvery)
	synctest.Wait()
	return r.health.get()
}

var errRefused = errors.New("connection refused")

// A service is healthy while its store answers and, if it needs one, it has a domain.
func TestHealthFollowsTheStoreAndTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHealthRig(Options{NeedDomains: true})
		require.Equal(t, errStarting, r.health.get())
		ctx, stop := context.WithCancel(t.Context())
		go r.WatchHealth(ctx)
		require.Equal(t, errNoDomains, r.next(), "no configuration")
		require.NoError(t, r.Use(nil, false))
		require.Equal(t, errNoDomains, r.next(), "no domain")
		require.NoError(t, r.Use(parse(t, shop), false))
		require.NoError(t, r.next())
		r.says(errRefused)
		require.Equal(t, errRefused, r.next())
		r.says(fmt.Errorf("%w; for 4s", quotaservice.ErrStarting))
		require.NoError(t, r.next(), "only requests under way need what the store lacks")
		r.store.Store(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		_ = r.next() // the check begins
		require.Equal(t, context.DeadlineExceeded, r.next())
		r.says(nil)
		_ = r.next()
		require.NoError(t, r.next())
		stop()
		synctest.Wait()
		require.Equal(t, errStopping, r.health.get())
	})
}

func TestHealthWithoutAStoreThatHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHealthRig(Options{HealthyWithoutStore: true})
		r.says(errRefused)
		go r.WatchHealth(t.Context())
		require.Equal(t, errRefused, r.next(), "it has not answered yet")
		r.says(nil)
		require.NoError(t, r.next())
		r.says(errRefused)
		require.NoError(t, r.next())
	})
}
