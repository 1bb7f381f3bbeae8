package proxy_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// subscribe subscribes a proxy to a control plane until the test ends.
func subscribe(t *testing.T, p *plane, s proxy.Subscription) {
	t.Helper()
	s.Node = "n"
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Subscribe(ctx, s) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

func TestSubscribeNeedsANodeAndAnAddress(t *testing.T) {
	p := serve(t, hello)
	err := p.Subscribe(t.Context(), proxy.Subscription{Addresses: []string{"127.0.0.1:1"}})
	require.ErrorContains(t, err, "no node id")
	err = p.Subscribe(t.Context(), proxy.Subscription{Node: "edge-1"})
	require.EqualError(t, err, "subscribe: no address")
}

// silent is a control plane that counts its streams, and sends nothing or rejects each.
type silent struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	rejection error
	streams   atomic.Int64
}

func (c *silent) DeltaExtensionConfigs(
	stream extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer,
) error {
	c.streams.Add(1)
	if c.rejection == nil {
		<-stream.Context().Done()
	}
	return c.rejection
}

// start serves it until the test ends, or stop is called.
func (c *silent) start(t *testing.T) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server.Stop
}

// The log says once why a control plane rejects the proxy.
func TestControlPlaneRejectsTheProxy(t *testing.T) {
	t.Parallel()
	reason := "write \x1b[31mn\" into the file" + strings.Repeat("x", 2000)
	rejecting := &silent{rejection: status.Error(codes.PermissionDenied, reason)}
	address, _ := rejecting.start(t)
	p := serve(t, hello)
	subscribe(t, p, proxy.Subscription{Addresses: []string{address}})
	isLogged := func() bool { return p.log.count("control plane rejected this proxy") == 1 }
	require.Eventually(t, isLogged, patience, moment)
	require.Eventually(t, func() bool { return rejecting.streams.Load() > 2 }, patience, moment)
	log := p.log.String()
	require.Equal(t, 1, strings.Count(log, "control plane rejected this proxy"))
	require.Contains(t, log, `reason="write \x1b[31mn\" into the file`)
	require.Less(t, len(log), 3000)
	require.NotContains(t, log, "unreachable")
}

// The proxy asks the first control plane while it is there, and then the next one.
func TestSeveralControlPlanes(t *testing.T) {
	t.Parallel()
	var first, next silent
	one, stop := first.start(t)
	other, _ := next.start(t)
	p := serve(t, hello)
	subscribe(t, p, proxy.Subscription{Addresses: []string{one, other}})
	require.Eventually(t, func() bool { return first.streams.Load() == 1 }, patience, moment)
	require.Zero(t, next.streams.Load())
	stop()
	require.Eventually(t, func() bool { return next.streams.Load() == 1 }, patience, moment)
}
