package xds

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// fixture is a control plane on a store, in time that stands still while it works.
type fixture struct {
	*Server
	t     *testing.T
	dir   string
	o     Options
	store *store.Bolt
	ports int // of proxies so far
}

func run(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, dir: t.TempDir(), o: Options{Wasm: "/lib/sluice.wasm"}}
		f.start()
		defer func() { f.halt() }()
		test(t, f)
	})
}

// settle waits until nothing goes on any more. A store takes replies together that come soon after each
// other.
func settle() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

func (f *fixture) start() {
	f.t.Helper()
	var err error
	f.store, err = store.Open(f.dir)
	require.NoError(f.t, err)
	f.serveOn(f.store)
}

func (f *fixture) serveOn(s store.Store) {
	f.t.Helper()
	var err error
	f.o.Store = s
	f.Server, err = New(f.t.Context(), f.o)
	require.NoError(f.t, err)
	settle()
}

func (f *fixture) halt() {
	f.Stop()
	settle()
	require.NoError(f.t, f.store.Close())
}

func (f *fixture) restart() {
	f.t.Helper()
	f.halt()
	f.start()
}

// kill starts a server on what the disk has, as after kill -9, and has the proxies come back.
func (f *fixture) kill(proxies ...*proxyClient) {
	f.t.Helper()
	left := f.t.TempDir()
	require.NoError(f.t, os.CopyFS(left, os.DirFS(f.dir)))
	f.halt()
	f.dir = left
	f.start()
	for _, p := range proxies {
		p.connect()
	}
}

// logged has the server log into what it returns.
func (f *fixture) logged() *strings.Builder {
	f.t.Helper()
	lines := new(strings.Builder) // slog's handler has a lock
	f.o.Log = slog.New(slog.NewTextHandler(lines, nil))
	f.restart()
	return lines
}

// add makes a draft the next revision. Proxies can tell it by its domain.
func (f *fixture) add(domain string, d store.Draft) uint64 {
	f.t.Helper()
	d.YAML, d.JSON = []byte("domain: "+domain), []byte(`{"version":1,"domain":"`+domain+`"}`)
	return f.append(store.Change{Drafts: []store.Draft{d}})[0].Number
}

// append changes a store that nobody else changes.
func (f *fixture) append(c store.Change) []store.Revision {
	f.t.Helper()
	last, err := f.store.Last(f.t.Context())
	require.NoError(f.t, err)
	c.Last = last
	list, err := f.store.Append(f.t.Context(), c)
	require.NoError(f.t, err)
	settle()
	return list
}

func (f *fixture) apply(domains ...string) (number uint64) {
	f.t.Helper()
	for _, domain := range domains {
		number = f.add(domain, store.Draft{})
	}
	return number
}

func (f *fixture) status(node string) ProxyStatus {
	f.t.Helper()
	settle()
	for _, p := range f.ledger.Proxies() {
		if p.Node == node {
			return p
		}
	}
	require.Failf(f.t, "no such proxy", "%s", node)
	return ProxyStatus{}
}

// state asserts the proxy's state.
func (f *fixture) state(node, want string) ProxyStatus {
	f.t.Helper()
	st := f.status(node)
	require.Equal(f.t, want, st.State)
	return st
}

// runs asserts which revisions the nodes run.
func (f *fixture) runs(nodes string, want ...uint64) {
	f.t.Helper()
	var got []uint64
	for node := range strings.FieldsSeq(nodes) {
		got = append(got, f.status(node).Runs)
	}
	require.Equal(f.t, want, got, nodes)
}

// numbers lists the revisions in the store, newest first.
func (f *fixture) numbers() string {
	f.t.Helper()
	history, err := f.store.History(f.t.Context(), "", 0)
	require.NoError(f.t, err)
	var list []uint64
	for _, s := range history {
		list = append(list, s.Number)
	}
	return fmt.Sprint(list)
}

// outcomes are those of a revision that nobody is waited for.
func (f *fixture) outcomes(number uint64) (list []ProxyOutcome) {
	f.t.Helper()
	require.Empty(f.t, f.ledger.Follow(f.t.Context(), number, func(o ProxyOutcome) { list = append(list, o) }))
	return list
}

// proxyClient speaks Delta xDS as Envoy does: the node in the first request only,
// what it holds likewise, and replies to each response by its nonce.
type proxyClient struct {
	f       *fixture
	node    *corev3.Node
	names   []string // that it asks for
	peer    peer.Peer
	version string // of what it accepted last
	stream  memoryStream
	ended   chan error
	hangUp  func()
}

// memoryStream is a stream whose proxy sends these requests.
type memoryStream struct {
	ctx      context.Context
	requests chan request
	got      chan any
}

func (s memoryStream) Context() context.Context { return s.ctx }

func (s memoryStream) SendMsg(response any) error {
	select {
	case s.got <- response:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s memoryStream) RecvMsg(into any) error {
	select {
	case *into.(*request) = <-s.requests:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// named makes a proxy that is not connected yet.
func (f *fixture) named(id string) *proxyClient {
	f.ports++
	return &proxyClient{
		f: f, node: &corev3.Node{Id: id}, names: []string{envoy.ResourceName},
		peer: peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: f.ports}},
	}
}

func (f *fixture) proxy(id string) *proxyClient {
	f.t.Helper()
	p := f.named(id)
	p.connect()
	return p
}

// dial opens a stream, and does not say who it is.
func (p *proxyClient) dial() {
	ctx, cancel := context.WithCancel(peer.NewContext(p.f.t.Context(), &p.peer))
	p.stream, p.ended = memoryStream{ctx, make(chan request, 1000), make(chan any, 100)}, make(chan error, 1)
	p.hangUp = func() { cancel(); settle() }
	go func(server *Server, stream memoryStream, ended chan<- error) {
		defer cancel()
		ended <- server.serve(stream)
	}(p.f.Server, p.stream, p.ended)
	settle()
}

// connect opens a stream. A process that lives on reports what it holds.
func (p *proxyClient) connect() {
	p.f.t.Helper()
	p.dial()
	first := &discoveryv3.DeltaDiscoveryRequest{Node: p.node, ResourceNamesSubscribe: p.names}
	if p.version != "" {
		first.InitialResourceVersions = map[string]string{envoy.ResourceName: p.version}
	}
	p.send(first)
}

func (p *proxyClient) reconnect() {
	p.f.t.Helper()
	p.hangUp()
	p.connect()
}

func (p *proxyClient) send(r *discoveryv3.DeltaDiscoveryRequest) {
	p.f.t.Helper()
	r.TypeUrl = TypeURL
	p.stream.requests <- read(p.f.t, r)
	settle()
}

func (p *proxyClient) asks(subscribe, unsubscribe []string) {
	p.f.t.Helper()
	p.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe})
}

func (p *proxyClient) receive() *discoveryv3.DeltaDiscoveryResponse {
	p.f.t.Helper()
	settle()
	require.NotEmpty(p.f.t, p.stream.got, "nothing was pushed to %s", p.node.GetId())
	return unmarshal(p.f.t, <-p.stream.got)
}

// unmarshal reads a push as it would be on the wire.
func unmarshal(t *testing.T, pushed any) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	parts, err := NewCodec().Marshal(pushed)
	require.NoError(t, err)
	r := new(discoveryv3.DeltaDiscoveryResponse)
	require.NoError(t, proto.Unmarshal(parts.Materialize(), r))
	require.Len(t, r.GetResources(), 1, "one resource a response")
	return r
}

func (p *proxyClient) ack(r *discoveryv3.DeltaDiscoveryResponse) {
	p.f.t.Helper()
	p.version = r.GetResources()[0].GetVersion()
	p.send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()})
}

func (p *proxyClient) nack(r *discoveryv3.DeltaDiscoveryResponse) {
	p.f.t.Helper()
	p.send(&discoveryv3.DeltaDiscoveryRequest{
		ResponseNonce: r.GetNonce(), ErrorDetail: &rpcstatus.Status{Code: 13, Message: "Unable to create Wasm plugin sluice"},
	})
}

// expect receives a push and asserts which policy it is.
func (p *proxyClient) expect(domain string) *discoveryv3.DeltaDiscoveryResponse {
	p.f.t.Helper()
	r := p.receive()
	require.Contains(p.f.t, textOf(r), `"domain":"`+domain+`"`)
	return r
}

// refuse has the proxy refuse a policy, and accept the one that it gets instead.
func (p *proxyClient) refuse(domain, instead string) {
	p.f.t.Helper()
	p.nack(p.expect(domain))
	accept(instead, p)
}

// accept has all proxies receive a policy and accept it.
func accept(domain string, proxies ...*proxyClient) {
	for _, p := range proxies {
		p.f.t.Helper()
		p.ack(p.expect(domain))
	}
}

// idle asserts that nothing is pushed to the proxies.
func idle(proxies ...*proxyClient) {
	for _, p := range proxies {
		p.f.t.Helper()
		settle()
		require.Empty(p.f.t, p.stream.got, p.node.GetId())
	}
}

// textOf is a pushed filter, as bytes.
func textOf(r *discoveryv3.DeltaDiscoveryResponse) string {
	return string(r.GetResources()[0].GetResource().GetValue())
}

func metadata(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"sluice": fields})
	require.NoError(t, err)
	return s
}
