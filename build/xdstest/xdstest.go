// Package xdstest has proxies that answer whatever policy a control plane sends them, by the
// thousand.
//
// Its invariant: a proxy says when it connects again what it holds, as Envoy does.
package xdstest

import (
	"context"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const resourceType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// Follow is a proxy that accepts everything at once and says of each version that it does.
func Follow(tb testing.TB, addresses []string, node string, retry time.Duration, takes func(version string)) {
	tb.Helper()
	Answer(tb, addresses, &corev3.Node{Id: node}, retry, func(version string) bool { takes(version); return true })
}

// Answer is a proxy that takes the versions that it is said to, and refuses others. When its stream
// ends, it goes to the next of the addresses after retry, until the test ends.
func Answer(tb testing.TB, addresses []string, node *corev3.Node, retry time.Duration,
	takes func(version string) bool) {
	tb.Helper()
	var conns []*grpc.ClientConn
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: retry, Multiplier: 1, Jitter: 0.5, MaxDelay: retry},
				MinConnectTimeout: 10 * time.Second, // else it is retry: a server to which all come at once takes longer
			}))
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	ctx, held := tb.Context(), map[string]string{}
	go func() {
		for at := 0; ctx.Err() == nil; at++ {
			_ = stream(ctx, conns[at%len(conns)], node, held, takes) // always ends in an error: the server's end, or ours
			time.Sleep(retry)
		}
	}()
}

func stream(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node, held map[string]string,
	takes func(version string) bool) error {
	s, err := extensionv3.NewExtensionConfigDiscoveryServiceClient(conn).DeltaExtensionConfigs(ctx)
	if err != nil {
		return err
	}
	next := &discoveryv3.DeltaDiscoveryRequest{
		Node: node, TypeUrl: resourceType,
		ResourceNamesSubscribe: []string{envoy.ResourceName}, InitialResourceVersions: held,
	}
	for {
		if err := s.Send(next); err != nil {
			return err
		}
		r, err := s.Recv()
		if err != nil {
			return err
		}
		next = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourceType, ResponseNonce: r.GetNonce()}
		if takes(r.GetSystemVersionInfo()) {
			held[envoy.ResourceName] = r.GetSystemVersionInfo()
		} else {
			next.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Unable to create Wasm plugin sluice"}
		}
	}
}
