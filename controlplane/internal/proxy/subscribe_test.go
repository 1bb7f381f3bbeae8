package proxy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/proxy"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// refuseTag builds a filter that refuses every policy.
const refuseTag = "sluice_refuses"

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
	r, err := c.store.Append(c.t.Context(), store.Draft{YAML: []byte(text), JSON: inJSON(c.t, text), Wasm: wasm})
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
	require.Equal(c.t, text, v.Text)
}

// status waits until the ledger's line about the proxy is as asked.
func (c *control) status(what string, is func(xds.ProxyStatus) bool) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		all := c.server.Ledger().Proxies()
		return len(all) == 1 && is(all[0])
	}, patience, moment, what)
}

func subscribe(t *testing.T, p *plane, c *control) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Subscribe(ctx, proxy.Subscription{Address: c.address, Node: "n"}) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

func TestSubscribe(t *testing.T) {
	c, p := newControl(t), serve(t, hello)
	subscribe(t, p, c)
	c.accepted(c.apply(perUser(2), ""))
	<-p.Ready()
	require.Equal(t, []int{200, 200, 429}, []int{p.status("alice"), p.status("alice"), p.status("alice")})

	c.accepted(c.apply(perUser(3), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")}, "counters survive")

	// A revision whose filter is not there is refused and withdrawn.
	c.refused(c.apply(perUser(9), "/nowhere/sluice.wasm"), "Invalid path: /nowhere/sluice.wasm")
	c.status("withdrawn", func(s xds.ProxyStatus) bool { return s.Acked == 2 && !s.Waiting && !s.Unsettled })
	require.Equal(t, http.StatusTooManyRequests, p.status("alice"))

	// So is one that the filter itself refuses.
	c.refused(c.apply(perUser(9), refusingFile), "Unable to create Wasm plugin sluice")
	c.status("withdrawn", func(s xds.ProxyStatus) bool { return s.Acked == 2 && !s.Waiting && !s.Unsettled })
	require.Equal(t, http.StatusTooManyRequests, p.status("alice"))
	require.Contains(t, p.log.String(), "does not know policy version 1", "the log knows why")

	c.accepted(c.apply(perUser(4), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
}

// TestAnotherFilter: counters survive a filter whose code differs, and going
// back.
func TestAnotherFilter(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.wasm")
	// A section of its own makes other code of the same meaning.
	require.NoError(t, os.WriteFile(other, append(filter[:len(filter):len(filter)], 0, 3, 1, 'x', 0), 0o600))
	c, p := newControl(t), serve(t, hello)
	subscribe(t, p, c)
	c.accepted(c.apply(perUser(2), ""))
	require.Equal(t, []int{200, 200, 429}, []int{p.status("alice"), p.status("alice"), p.status("alice")})
	c.accepted(c.apply(perUser(3), other))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
	c.accepted(c.apply(perUser(4), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
}

func TestFilterFromAFile(t *testing.T) {
	c := newControl(t)
	p := serve(t, hello, func(o *proxy.Options) { o.WasmName = filterFile })
	subscribe(t, p, c)
	c.accepted(c.apply(perUser(1), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
}

func TestControlPlaneGoesAndComes(t *testing.T) {
	c, p := newControl(t), serve(t, hello)
	subscribe(t, p, c)
	c.accepted(c.apply(perUser(1), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})

	c.kill()
	require.Eventually(t, func() bool { return p.log.count("control plane is away") == 1 }, patience, moment)
	require.Equal(t, http.StatusTooManyRequests, p.status("alice"), "the last policy stays")
	c.start()
	c.status("back, and known to hold revision 1", func(s xds.ProxyStatus) bool { return s.Connected && s.Acked == 1 })
	require.Zero(t, c.server.Counts().Pushes, "what it holds is not sent again")
	c.accepted(c.apply(perUser(2), ""))
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})

	c.kill()
	number := c.apply(perUser(3), "") // while nobody serves
	c.start()
	c.accepted(number)
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
}

func TestControlPlaneThatIsNotThere(t *testing.T) {
	c := newControl(t)
	c.kill()
	p := serve(t, hello)
	subscribe(t, p, c)
	require.Eventually(t, func() bool { return p.log.count("control plane is away") == 1 }, patience, moment)
	require.Equal(t, http.StatusOK, p.status("alice"))
	c.apply(perUser(1), "")
	c.start()
	<-p.Ready()
	require.Equal(t, []int{200, 429}, []int{p.status("alice"), p.status("alice")})
}

// TestPushesUnderTraffic: no request is lost and none is let through too many
// while revisions come.
func TestPushesUnderTraffic(t *testing.T) {
	c, p := newControl(t), serve(t, hello)
	subscribe(t, p, c)
	c.accepted(c.apply(perUser(10), ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	allowed := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			switch code := p.status("alice"); code {
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
	require.Eventually(t, func() bool { return p.status("alice") == http.StatusTooManyRequests }, patience, moment)
	cancel()
	require.LessOrEqual(t, <-allowed, 30)
}

func TestSubscribeWithoutNode(t *testing.T) {
	p := serve(t, hello)
	require.ErrorContains(t, p.Subscribe(t.Context(), proxy.Subscription{Address: "127.0.0.1:1"}), "no node id")
}

// fickle is a control plane that gives a policy and takes it away.
type fickle struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	policy *discoveryv3.Resource
}

func (f *fickle) DeltaExtensionConfigs(stream extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for _, response := range []*discoveryv3.DeltaDiscoveryResponse{
		{Nonce: "1", Resources: []*discoveryv3.Resource{f.policy}},
		{Nonce: "2", RemovedResources: []string{envoy.ResourceName}},
	} {
		if err := stream.Send(response); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// closed is a control plane that lets nobody in.
type closed struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	streams atomic.Int64
}

func (c *closed) DeltaExtensionConfigs(extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer) error {
	c.streams.Add(1)
	return status.Error(codes.PermissionDenied, "write \x1b[31mn\" into the file"+strings.Repeat("x", 2000))
}

// TestRefusedByTheControlPlane: the log says why, once, and the control plane
// is not asked twice a second.
func TestRefusedByTheControlPlane(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, refusing := grpc.NewServer(), new(closed)
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(server, refusing)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	p := serve(t, hello)
	subscribe(t, p, &control{address: listener.Addr().String()})
	require.Eventually(t, func() bool { return p.log.count("control plane refuses this proxy") == 1 }, patience, moment)
	require.Never(t, func() bool { return refusing.streams.Load() > 1 }, 2*time.Second, moment)
	log := p.log.String()
	require.Contains(t, log, `reason="write \x1b[31mn\" into the file`)
	require.Less(t, len(log), 3000)
	require.NotContains(t, log, "is away")
}

// TestPolicyTakenAway: what Configure was given is in force again.
func TestPolicyTakenAway(t *testing.T) {
	extension, err := envoy.Plugin{Wasm: proxy.Embedded, Policy: inJSON(t, perUser(1))}.ExtensionConfig()
	require.NoError(t, err)
	packed, err := anypb.New(extension)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(server, &fickle{
		policy: &discoveryv3.Resource{Name: envoy.ResourceName, Version: "1", Resource: packed},
	})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	p := serve(t, hello)
	p.configure(perUser(2))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = p.Subscribe(ctx, proxy.Subscription{Address: listener.Addr().String(), Node: "n", Without: "the file"})
	}()
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), `in_force="the file"`) }, patience, moment, p.log)
	require.Contains(t, p.log.String(), "policy in force")
	require.Equal(t, []int{200, 200, 429}, []int{p.status("alice"), p.status("alice"), p.status("alice")})
}
