package policytest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of that name
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/transport"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Serve starts an HTTP server on this machine that limits by a policy what it passes on to the
// upstream, and returns its URL. It counts by the real clock. Its only client's address is
// 127.0.0.1. It ends with the test.
func Serve(tb TB, o Options, upstream http.Handler) (address string) {
	tb.Helper()
	text, err := o.text()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	_, node, _, err := policyfile.Read(o.Policy, text)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = fleet.CacheDir()
	}
	behind := start(tb, func(_ context.Context, l net.Listener) error {
		s := &http.Server{Handler: upstream, ReadHeaderTimeout: time.Minute}
		tb.Cleanup(func() { _ = s.Close() })
		return s.Serve(l)
	})
	quotas := dialQuotas(tb)
	p, err := proxy.New(tb.Context(), proxy.Options{
		Wasm: o.Wasm, Upstream: &url.URL{Scheme: "http", Host: behind}, CacheDir: o.CacheDir,
		Cluster: func(string) grpc.ClientConnInterface { return quotas },
	})
	if err != nil {
		tb.Fatalf("start the filter: %v", err)
	}
	tb.Cleanup(p.Close)
	if _, err := p.Configure(policy.PushedJSON(node)); err != nil {
		tb.Fatalf("give the filter its policy: %v", err)
	}
	return "http://" + start(tb, func(ctx context.Context, l net.Listener) error { return p.Serve(ctx, l, nil) })
}

// start serves on a port of this machine until the test ends, and returns the address.
func start(tb TB, serve func(context.Context, net.Listener) error) (address string) {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("%v", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	var done sync.WaitGroup
	tb.Cleanup(func() {
		stop()
		_ = l.Close()
		done.Wait()
	})
	done.Go(func() { _ = serve(ctx, l) }) // it ends when the test does
	return l.Addr().String()
}

// dialQuotas connects to a quota service of its own.
func dialQuotas(tb TB) *grpc.ClientConn {
	tb.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	service, err := quotaservice.NewService(ctx, quotaservice.Options{
		Store: swapstore.NewMemory(swapstore.SteadyClock()).Aged(),
	})
	if err != nil {
		tb.Fatalf("start the quota service: %v", err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(transport.NewCodec(encoding.GetCodecV2("proto"))))
	transport.NewServer(service, nil).Register(server)
	const buffer = 1 << 16
	l := bufconn.Listen(buffer)
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///quota",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		tb.Fatalf("%v", fmt.Errorf("connect to the quota service: %w", err))
	}
	tb.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		stop()
	})
	return conn
}
