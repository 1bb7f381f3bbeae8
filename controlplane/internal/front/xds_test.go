package front

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// within is how long a test waits for what must happen.
const within = time.Minute

// ads is an xDS server that answers as Envoy Gateway's does: at once if the client names another
// version than the one it has, so also when the client rejects that one.
type ads struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	t        testing.TB
	address  string
	server   *grpc.Server
	requests chan *discoveryv3.DiscoveryRequest
	headers  chan metadata.MD // of each stream

	mu        sync.Mutex
	version   int
	resources []*anypb.Any
	changed   chan struct{} // closed by the next change
	away      error         // how streams end; nil = they do not
}

func newADS(t testing.TB) *ads {
	return &ads{
		t: t, address: "127.0.0.1:0", changed: make(chan struct{}),
		requests: make(chan *discoveryv3.DiscoveryRequest, 1000), headers: make(chan metadata.MD, 1000),
	}
}

type adsStream = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer

// start serves at the address that it had before, if it had one.
func (a *ads) start() {
	a.t.Helper()
	listener, err := net.Listen("tcp", a.address)
	require.NoError(a.t, err)
	a.address = listener.Addr().String()
	a.server = grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(a.server, a)
	server := a.server
	go func() { _ = server.Serve(listener) }()
	a.t.Cleanup(server.Stop)
}

// set makes the messages the server's newest version.
func (a *ads) set(version int, messages ...proto.Message) {
	a.t.Helper()
	resources := make([]*anypb.Any, len(messages))
	for i, m := range messages {
		var err error
		resources[i], err = anypb.New(m)
		require.NoError(a.t, err)
	}
	a.setAny(version, resources...)
}

func (a *ads) setAny(version int, resources ...*anypb.Any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version = version
	a.resources = resources
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *ads) endStreams(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = err
}

// newest is the answer to a client that has a version, nil if it is the newest.
func (a *ads) newest(has string, nonce int) (*discoveryv3.DiscoveryResponse, chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version := strconv.Itoa(a.version)
	if a.version == 0 || has == version {
		return nil, a.changed
	}
	return &discoveryv3.DiscoveryResponse{
		VersionInfo: version, Nonce: strconv.Itoa(nonce), TypeUrl: configType, Resources: a.resources,
	}, a.changed
}

// StreamAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (a *ads) StreamAggregatedResources(s adsStream) error {
	headers, _ := metadata.FromIncomingContext(s.Context())
	a.headers <- headers
	a.mu.Lock()
	away := a.away
	a.mu.Unlock()
	if away != nil {
		return away
	}
	for nonce := 1; ; nonce++ {
		request, err := s.Recv()
		if err != nil {
			return err
		}
		a.requests <- request
		answer, changed := a.newest(request.GetVersionInfo(), nonce)
		for answer == nil {
			select {
			case <-changed:
			case <-s.Context().Done():
				return nil
			}
			answer, changed = a.newest(request.GetVersionInfo(), nonce)
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

// next is the next request that a client sends.
func (a *ads) next() *discoveryv3.DiscoveryRequest {
	a.t.Helper()
	select {
	case r := <-a.requests:
		return r
	case <-time.After(within):
		require.Fail(a.t, "the client sends nothing")
		return nil
	}
}

// nextWith is the next request that has this version as accepted and this in its reason, "" = it has
// none. Some that were sent before may come first.
func (a *ads) nextWith(version, reason string) *discoveryv3.DiscoveryRequest {
	a.t.Helper()
	var r *discoveryv3.DiscoveryRequest
	for range 5 {
		r = a.next()
		has := r.GetErrorDetail().GetMessage()
		if r.GetVersionInfo() == version && (has == "") == (reason == "") && strings.Contains(has, reason) {
			return r
		}
	}
	require.Fail(a.t, "the client sends something else", "%s with %q, but %v", version, reason, r)
	return nil
}

// accepts expects an ACK of the version.
func (a *ads) accepts(version string) {
	a.t.Helper()
	a.nextWith(version, "")
}

func configOf(domain string, n uint32) *rlsconfv3.RateLimitConfig {
	return &rlsconfv3.RateLimitConfig{
		Name: domain, Domain: domain, Descriptors: []*rlsconfv3.RateLimitDescriptor{{
			Key:       "user",
			RateLimit: &rlsconfv3.RateLimitPolicy{Unit: rlsconfv3.RateLimitUnit_HOUR, RequestsPerUnit: n},
		}},
	}
}

func TestConfigurationByXDS(t *testing.T) {
	r, a := newSourceRig(t), newADS(t)
	a.start()
	a.set(7, configOf("shop", 1), configOf("bank", 2))
	require.NoError(t, r.WatchXDS(t.Context(), XDSOptions{
		Target: a.address, Node: "edge", NodeMetadata: map[string]string{"zone": "a"},
		Headers: map[string]string{"X-Key": "secret"},
	}))
	require.Equal(t, []uint32{1, 2}, []uint32{r.limitOf("shop"), r.limitOf("bank")})
	require.Equal(t, []string{"secret"}, (<-a.headers)["x-key"])
	first := a.next()
	require.Equal(t, "edge", first.GetNode().GetId())
	require.Equal(t, "a", first.GetNode().GetMetadata().AsMap()["zone"])
	require.Empty(t, first.GetVersionInfo()+first.GetResponseNonce())
	ack := a.next()
	require.Equal(t, "7 1", ack.GetVersionInfo()+" "+ack.GetResponseNonce())

	a.set(8, configOf("shop", 3))
	a.accepts("8")
	require.Equal(t, []uint32{3, 0}, []uint32{r.limitOf("shop"), r.limitOf("bank")})
	a.set(9)
	a.accepts("9")
	require.Zero(t, r.Domains(), "no resources are no domains")
	require.Contains(t, r.log.String(), "has no domain")

	large := configOf("shop", 4)
	for i := range 40_000 {
		large.Descriptors = append(large.Descriptors, &rlsconfv3.RateLimitDescriptor{
			Key: "path", Value: strings.Repeat("x", 100) + strconv.Itoa(i),
		})
	}
	a.set(10, large)
	a.accepts("10")
	require.Equal(t, uint32(4), r.limitOf("shop"), "more than gRPC's four MiB")
}

var badResources = []struct {
	name     string
	resource proto.Message
	want     string
}{
	{"no domain", &rlsconfv3.RateLimitConfig{Name: "front"}, "front: domain: is missing"},
	{"a domain twice", configOf("shop", 5), "the domain shop is that of"},
	{"another type", &rlsconfv3.RateLimitDescriptor{}, "mismatched message type"},
	{"many problems", &rlsconfv3.RateLimitConfig{
		Domain: "bank", Descriptors: make([]*rlsconfv3.RateLimitDescriptor, 50),
	}, "more problems"},
}

func TestBadResourcesAreRejected(t *testing.T) {
	r, a := newSourceRig(t), newADS(t)
	a.start()
	a.set(1, configOf("shop", 1))
	require.NoError(t, r.WatchXDS(t.Context(), XDSOptions{Target: a.address}))
	a.accepts("1")
	for i, bad := range badResources {
		a.set(2+i, configOf("shop", 2), bad.resource)
		nack := a.nextWith("1", bad.want)
		require.Equal(t, int32(codes.InvalidArgument), nack.GetErrorDetail().GetCode())
		require.Equal(t, uint32(1), r.limitOf("shop"))
		require.Equal(t, i+1, r.rejected())
		require.Equal(t, i+1, strings.Count(r.log.String(), "level=ERROR"))
	}
	a.setAny(90, &anypb.Any{TypeUrl: configType, Value: []byte{0xff}})
	a.nextWith("1", "resource 0: ")

	// The server sends what was rejected again at once. It is rejected no more than once a second.
	begin, rejected := time.Now(), r.rejected()
	require.NotNil(t, a.next().GetErrorDetail())
	require.NotNil(t, a.next().GetErrorDetail())
	require.GreaterOrEqual(t, time.Since(begin), rejectAgainAfter)
	require.Equal(t, rejected, r.rejected())
	a.set(91, configOf("shop", 3))
	a.accepts("91")
	require.Equal(t, uint32(3), r.limitOf("shop"))
}

// A server that restarts may count its versions from the beginning.
func TestXDSServerRestarts(t *testing.T) {
	r, a := newSourceRig(t), newADS(t)
	a.start()
	a.set(1, configOf("shop", 1))
	require.NoError(t, r.WatchXDS(t.Context(), XDSOptions{Target: a.address}))
	for i := range 3 {
		a.server.Stop()
		require.Equal(t, uint32(1+i), r.limitOf("shop"), "what is in force stays")
		for len(a.requests) > 0 {
			<-a.requests
		}
		a.set(1, configOf("shop", uint32(2+i)))
		a.start()
		require.Empty(t, a.next().GetVersionInfo())
		a.accepts("1")
		require.Equal(t, uint32(2+i), r.limitOf("shop"))
	}
}

// An xDS server that is away, and then refuses streams, is waited for.
func TestXDSServerIsWaitedFor(t *testing.T) {
	r, a := newSourceRig(t), newADS(t)
	a.start()
	a.server.Stop()
	a.set(1, configOf("shop", 1))
	done := make(chan error)
	go func() { done <- r.WatchXDS(t.Context(), XDSOptions{Target: a.address}) }()
	isRefused := func() bool { return strings.Contains(r.log.String(), "connection refused") }
	require.Eventually(t, isRefused, within, time.Millisecond)
	a.endStreams(status.Error(codes.PermissionDenied, "not yet"))
	a.start()
	<-a.headers
	<-a.headers
	require.Equal(t, 1, strings.Count(r.log.String(), "not yet"), "%s", &r.log)
	a.endStreams(nil)
	require.NoError(t, <-done)
	require.Equal(t, uint32(1), r.limitOf("shop"))
	require.Equal(t, 1, strings.Count(r.log.String(), "connection refused"))
}

func TestWaitForXDSEndsWithItsContext(t *testing.T) {
	a := newADS(t)
	a.start()
	why := errors.New("told to stop")
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- New(Options{}).WatchXDS(ctx, XDSOptions{Target: a.address}) }()
	a.next()
	stop(why)
	require.Equal(t, why, <-done)
	require.ErrorContains(t, New(Options{}).WatchXDS(t.Context(), XDSOptions{Target: "%zz"}), "invalid URL")
}
