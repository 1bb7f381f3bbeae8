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

func TestSubscribeWithoutNode(t *testing.T) {
	p := serve(t, hello)
	require.ErrorContains(t, p.Subscribe(t.Context(), proxy.Subscription{Addresses: []string{"127.0.0.1:1"}}), "no node id")
}

// counted is a control plane that counts its streams, and says nothing or refuses each.
type counted struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	refusal error
	streams atomic.Int64
}

func (c *counted) DeltaExtensionConfigs(stream extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer) error {
	c.streams.Add(1)
	if c.refusal == nil {
		<-stream.Context().Done()
	}
	return c.refusal
}

// start serves it until the test ends, or stop is called.
func (c *counted) start(t *testing.T) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server.Stop
}

// TestRefusedByTheControlPlane: the log says why, once.
func TestRefusedByTheControlPlane(t *testing.T) {
	t.Parallel()
	refusing := &counted{refusal: status.Error(codes.PermissionDenied, "write \x1b[31mn\" into the file"+strings.Repeat("x", 2000))}
	address, _ := refusing.start(t)
	p := serve(t, hello)
	subscribe(t, p, proxy.Subscription{Addresses: []string{address}})
	require.Eventually(t, func() bool { return p.log.count("control plane refuses this proxy") == 1 }, patience, moment)
	require.Eventually(t, func() bool { return refusing.streams.Load() > 2 }, patience, moment)
	log := p.log.String()
	require.Equal(t, 1, strings.Count(log, "control plane refuses this proxy"))
	require.Contains(t, log, `reason="write \x1b[31mn\" into the file`)
	require.Less(t, len(log), 3000)
	require.NotContains(t, log, "is away")
}

// TestSeveralControlPlanes: the first is asked while it is there, and then the next.
func TestSeveralControlPlanes(t *testing.T) {
	t.Parallel()
	var first, next counted
	one, stop := first.start(t)
	other, _ := next.start(t)
	p := serve(t, hello)
	subscribe(t, p, proxy.Subscription{Addresses: []string{one, other}})
	require.Eventually(t, func() bool { return first.streams.Load() == 1 }, patience, moment)
	require.Zero(t, next.streams.Load())
	stop()
	require.Eventually(t, func() bool { return next.streams.Load() == 1 }, patience, moment)
}
