package xds_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// The server and the proxy of envoy/proxy, each as it is.

const (
	patience = 2 * time.Minute
	moment   = 5 * time.Millisecond
)

// filter is the compiled filter, in filterFile. In refusingFile is one that
// refuses every policy.
var (
	filter                   []byte
	filterFile, refusingFile string
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "xds")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	filterFile, refusingFile = filepath.Join(dir, "sluice.wasm"), filepath.Join(dir, "refusing.wasm")
	err = errors.Join(
		buildtest.Compile(buildtest.Root(), filterFile),
		buildtest.Compile(buildtest.Root(), refusingFile, "sluice_refuses"))
	if err == nil {
		filter, err = os.ReadFile(filterFile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// perUser is a policy with windows that do not end during a test.
func perUser(limit int) string {
	return fmt.Sprintf(`{"version":1,"rules":[{"name":"per-user","match":{"paths":["/api/*"]},`+
		`"key":[{"header":"x-user-id"}],"algorithm":"fixed_window_per_key","limits":["%d/1h"]}]}`, limit)
}

// control is a control plane that can be killed and started again at the same
// address, on the same store.
type control struct {
	t       *testing.T
	store   *store.Bolt
	address string
	server  *xds.Server
	grpc    *grpc.Server
}

func newControl(t *testing.T) *control {
	t.Helper()
	policies, err := store.Open(t.TempDir())
	require.NoError(t, err)
	free, err := ports.Free(1) // it listens there again and again
	require.NoError(t, err)
	c := &control{t: t, store: policies, address: fmt.Sprint("127.0.0.1:", free[0])}
	c.start()
	t.Cleanup(func() { c.kill(); _ = policies.Close() })
	return c
}

func (c *control) start() {
	c.t.Helper()
	listener, err := net.Listen("tcp", c.address)
	require.NoError(c.t, err)
	c.server, err = xds.New(c.t.Context(), xds.Options{Store: c.store})
	require.NoError(c.t, err)
	c.grpc = grpc.NewServer(xds.ServerOptions(nil)...)
	c.server.Register(c.grpc)
	go func(s *grpc.Server) { _ = s.Serve(listener) }(c.grpc)
}

func (c *control) kill() {
	c.grpc.Stop()
	c.server.Stop()
}

// apply stores a revision and returns its number.
func (c *control) apply(text, wasm string) uint64 {
	c.t.Helper()
	r, err := c.store.Append(c.t.Context(), store.Draft{YAML: []byte(text), JSON: []byte(text), Wasm: wasm})
	require.NoError(c.t, err)
	return r.Number
}

// verdict waits for what the one proxy says to a revision.
func (c *control) verdict(number uint64) xds.ProxyOutcome {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		var verdict xds.ProxyOutcome
		missing := c.server.Ledger().Follow(ctx, number, func(v xds.ProxyOutcome) { verdict = v })
		require.Empty(c.t, missing)
		if verdict.Node != "" {
			return verdict
		}
		require.NoError(c.t, ctx.Err(), "no proxy connected")
		time.Sleep(moment)
	}
}

func (c *control) accepted(number uint64) {
	c.t.Helper()
	v := c.verdict(number)
	require.Equal(c.t, xds.Acked, v.Outcome, v.Text)
}

func (c *control) refused(number uint64, text string) {
	c.t.Helper()
	v := c.verdict(number)
	require.Equal(c.t, xds.Nacked, v.Outcome)
	require.Contains(c.t, v.Text, text)
}

// status waits until the ledger's line about the proxy is as asked.
func (c *control) status(what string, is func(xds.ProxyStatus) bool) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		all := c.server.Ledger().Proxies()
		return len(all) == 1 && is(all[0])
	}, patience, moment, what)
}

// subscriber is a proxy that takes its policies from a control plane.
type subscriber struct {
	*proxy.Proxy
	t   *testing.T
	url string
	log *log
}

// subscribe starts a proxy, which says that it runs the filter in a file, or the
// one inside the program if that is "".
func (c *control) subscribe(wasmName string) *subscriber {
	c.t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	c.t.Cleanup(upstream.Close)
	behind, err := url.Parse(upstream.URL)
	require.NoError(c.t, err)
	s := &subscriber{t: c.t, log: &log{}}
	s.Proxy, err = proxy.New(c.t.Context(), proxy.Options{
		Wasm: filter, WasmName: wasmName, Workers: 2, CacheDir: buildtest.CacheDir(), Upstream: behind,
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	require.NoError(c.t, err)
	c.t.Cleanup(s.Close)
	requests := httptest.NewServer(s.Proxy)
	c.t.Cleanup(requests.Close)
	s.url = requests.URL

	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Subscribe(ctx, proxy.Subscription{Addresses: []string{c.address}, Node: "n"}) }()
	c.t.Cleanup(func() { cancel(); require.NoError(c.t, <-ended) })
	return s
}

// status is that of a GET by alice.
func (s *subscriber) status() int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/api/x", http.NoBody)
	require.NoError(s.t, err)
	r.Header.Set("X-User-Id", "alice")
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(s.t, err)
	require.NoError(s.t, response.Body.Close())
	return response.StatusCode
}

// log is a log that is read while others write.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count says how often the log holds a text.
func (l *log) count(text string) int { return strings.Count(l.String(), text) }

func TestSubscribe(t *testing.T) {
	c := newControl(t)
	p := c.subscribe("")
	c.accepted(c.apply(perUser(2), ""))
	<-p.Ready()
	require.Equal(t, []int{200, 200, 429}, []int{p.status(), p.status(), p.status()})

	c.accepted(c.apply(perUser(3), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()}, "counters survive")

	// A revision whose filter is not there is refused and withdrawn.
	c.refused(c.apply(perUser(9), "/nowhere/sluice.wasm"), "open /nowhere/sluice.wasm: no such file")
	c.status("withdrawn", func(s xds.ProxyStatus) bool { return s.Acked == 2 && !s.Waiting && !s.Unsettled })
	require.Equal(t, http.StatusTooManyRequests, p.status())

	// So is one that the filter itself refuses.
	c.refused(c.apply(perUser(9), refusingFile), "does not know policy version 1")
	c.status("withdrawn", func(s xds.ProxyStatus) bool { return s.Acked == 2 && !s.Waiting && !s.Unsettled })
	require.Equal(t, http.StatusTooManyRequests, p.status())

	c.accepted(c.apply(perUser(4), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
}

// TestAnotherFilter: counters survive a filter whose code differs, and going
// back.
func TestAnotherFilter(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.wasm")
	// A section of its own makes other code of the same meaning.
	require.NoError(t, os.WriteFile(other, append(filter[:len(filter):len(filter)], 0, 3, 1, 'x', 0), 0o600))
	c := newControl(t)
	p := c.subscribe("")
	c.accepted(c.apply(perUser(2), ""))
	require.Equal(t, []int{200, 200, 429}, []int{p.status(), p.status(), p.status()})
	c.accepted(c.apply(perUser(3), other))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
	c.accepted(c.apply(perUser(4), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
}

func TestFilterFromAFile(t *testing.T) {
	c := newControl(t)
	p := c.subscribe(filterFile)
	c.accepted(c.apply(perUser(1), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
}

func TestControlPlaneGoesAndComes(t *testing.T) {
	c := newControl(t)
	p := c.subscribe("")
	c.accepted(c.apply(perUser(1), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})

	c.kill()
	require.Eventually(t, func() bool { return p.log.count("control plane is away") == 1 }, patience, moment)
	require.Equal(t, http.StatusTooManyRequests, p.status(), "the last policy stays")
	c.start()
	c.status("back, and known to hold revision 1", func(s xds.ProxyStatus) bool { return s.Connected && s.Acked == 1 })
	require.Zero(t, c.server.Counts().Pushes, "what it holds is not sent again")
	c.accepted(c.apply(perUser(2), ""))
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})

	c.kill()
	number := c.apply(perUser(3), "") // while nobody serves
	c.start()
	c.accepted(number)
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
}

func TestControlPlaneThatIsNotThere(t *testing.T) {
	c := newControl(t)
	c.kill()
	p := c.subscribe("")
	require.Eventually(t, func() bool { return p.log.count("control plane is away") == 1 }, patience, moment)
	require.Equal(t, http.StatusOK, p.status())
	c.apply(perUser(1), "")
	c.start()
	<-p.Ready()
	require.Equal(t, []int{200, 429}, []int{p.status(), p.status()})
}

// TestPushesUnderTraffic: no request is lost and none is let through too many
// while revisions come.
func TestPushesUnderTraffic(t *testing.T) {
	c := newControl(t)
	p := c.subscribe("")
	c.accepted(c.apply(perUser(10), ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	allowed := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			switch code := p.status(); code {
			case http.StatusOK:
				n++
			case http.StatusTooManyRequests:
			default:
				t.Error("status", code)
			}
		}
		allowed <- n
	}()
	for limit := 11; limit <= 30; limit++ {
		c.accepted(c.apply(perUser(limit), ""))
	}
	require.Eventually(t, func() bool { return p.status() == http.StatusTooManyRequests }, patience, moment)
	cancel()
	require.LessOrEqual(t, <-allowed, 30)
}
