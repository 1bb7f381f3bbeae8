package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/envoy"
)

const resourceType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// fleet is many proxies, each with a connection and a Delta stream of its own,
// as Envoys have them. They accept everything at once, and connect again as
// soon as they can when the control plane is gone.
type fleet struct {
	acks    chan ack
	stop    context.CancelFunc
	running sync.WaitGroup
}

// ack is an acceptance at the moment when its client has handed it over.
type ack struct {
	revision uint64
	at       time.Time
	bytes    int // of the resource
}

// retryAfter is about how long a client waits before it connects again; Envoy
// waits longer, and more each time.
const retryAfter = 50 * time.Millisecond

// newFleet connects so many proxies to the control plane.
func newFleet(ctx context.Context, address string, clients int) (*fleet, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &fleet{acks: make(chan ack, clients), stop: stop}
	for i := range clients {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryAfter, Multiplier: 1, Jitter: 0.5, MaxDelay: retryAfter}}),
		)
		if err != nil {
			f.close()
			return nil, err
		}
		f.running.Go(func() {
			defer conn.Close()
			f.client(ctx, conn, fmt.Sprintf("proxy-%04d", i))
		})
	}
	return f, nil
}

// close ends every client.
func (f *fleet) close() {
	f.stop()
	f.running.Wait()
}

// client is one proxy until ctx ends.
func (f *fleet) client(ctx context.Context, conn *grpc.ClientConn, id string) {
	held := map[string]string{}
	for ctx.Err() == nil {
		_ = f.stream(ctx, conn, id, held) // always ends in an error: the server's end, or ours
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(retryAfter)): //nolint:gosec // no secret
		}
	}
}

// stream is one stream of a proxy that holds versions of resources.
func (f *fleet) stream(ctx context.Context, conn *grpc.ClientConn, id string, held map[string]string) error {
	s, err := extensionv3.NewExtensionConfigDiscoveryServiceClient(conn).DeltaExtensionConfigs(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: id}, TypeUrl: resourceType,
		ResourceNamesSubscribe: []string{envoy.ResourceName}, InitialResourceVersions: held,
	}); err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourceType, ResponseNonce: r.GetNonce()}); err != nil {
			return err
		}
		at := time.Now()
		for _, resource := range r.GetResources() {
			held[resource.GetName()] = resource.GetVersion()
			number, _, _ := strings.Cut(resource.GetVersion(), "-")
			revision, _ := strconv.ParseUint(number, 10, 64) // 0 is no revision
			select {
			case f.acks <- ack{revision, at, len(resource.GetResource().GetValue())}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// patience is how long the fleet is waited for.
const patience = 2 * time.Minute

// await waits until so many acceptances of a revision are in and returns the last
// of them.
func (f *fleet) await(ctx context.Context, revision uint64, n int) (last ack, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for have := 0; have < n; {
		select {
		case a := <-f.acks:
			if a.revision != revision {
				continue
			}
			have++
			if a.at.After(last.at) {
				last = a
			}
		case <-ctx.Done():
			return last, fmt.Errorf("%d of %d proxies took revision %d: %w", have, n, revision, ctx.Err())
		}
	}
	return last, nil
}
