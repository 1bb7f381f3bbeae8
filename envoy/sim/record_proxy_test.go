package sim_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// ear keeps what is logged.
type ear struct {
	slog.Handler
	*bench
}

func (e ear) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (e ear) Handle(_ context.Context, r slog.Record) error {
	e.note(&e.lines, r.Message)
	return nil
}

// The proxy takes requests, answers and streams through the filter as Envoys do, except for what
// routes and other filters do there, and for its words if an upstream is unreachable.
func TestProxyAsRecorded(t *testing.T) {
	t.Parallel()
	d, addresses := serveAll(t)
	b := &bench{t: t}
	p, err := proxy.New(t.Context(), proxy.Options{
		Wasm:     guest,
		CacheDir: buildtest.CacheDir(),
		Log:      slog.New(ear{slog.DiscardHandler, b}),
		Upstream: &url.URL{Scheme: "http", Host: addresses["upstream"]},
		Cluster: func(name string) grpc.ClientConnInterface {
			if addresses[name] == "" {
				return nil
			}
			conn, err := grpc.NewClient(addresses[name], grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })
			return conn
		},
	})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, listener, nil) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended); p.Close() })

	lines := func() []string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Clone(b.lines)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	c := &httpCourier{t, client, "http://" + listener.Addr().String() + "/", lines, d}
	isFast := func(s scenario) bool { return !strings.Contains(s.name, "trap") } // the others would wait for minutes
	requireConducted(t, c, isFast, false)
	requireConveyed(t, c, func(a asked) bool {
		return a.path == "" && !a.has("x-before") && !a.has(abort[0][0]) && a.steps != "reset"
	}, false)
	require.Positive(t, d.canceled.Load(), "what the filter cancels is so at the server")
}
