package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// fixture is a control plane on a real store and a real socket.
type fixture struct {
	t     *testing.T
	dir   string
	wasm  string // of the server
	keep  int
	tls   *tls.Config
	names string // node names, as in the file

	clientCAs func() *x509.CertPool

	log    *slog.Logger
	store  *store.Bolt
	server *Server
	grpc   *grpc.Server
	addr   string
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, dir: t.TempDir(), wasm: "/lib/sluice.wasm", log: slog.New(slog.DiscardHandler)}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) start() {
	f.t.Helper()
	var err error
	f.store, err = store.Open(f.dir)
	require.NoError(f.t, err)
	f.serve(f.store)
}

// serve starts a server on a store.
func (f *fixture) serve(s store.Store) {
	f.t.Helper()
	names, err := access.ParseNodeIDs("names", []byte(f.names))
	require.NoError(f.t, err)
	f.server, err = New(f.t.Context(), Options{
		Store: s, Keep: f.keep, Wasm: f.wasm, Log: f.log, Identify: names.SAN, ClientCAs: f.clientCAs,
	})
	require.NoError(f.t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	f.addr = listener.Addr().String()
	server := grpc.NewServer(ServerOptions(f.tls)...)
	f.server.Register(server)
	f.grpc = server
	go func() { _ = server.Serve(listener) }()
}

func (f *fixture) stop() {
	f.server.Stop()
	f.grpc.GracefulStop()
	require.NoError(f.t, f.store.Close())
}

func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

// add appends a revision to a store that nobody else changes.
func add(ctx context.Context, s store.Store, d store.Draft) (store.Revision, error) {
	last, err := s.Last(ctx)
	if err != nil {
		return store.Revision{}, err
	}
	list, err := s.Append(ctx, store.Change{Last: last, Drafts: []store.Draft{d}})
	if err != nil {
		return store.Revision{}, err
	}
	return list[0], nil
}

// apply appends a revision that proxies can tell by its domain.
func (f *fixture) apply(domain string) uint64 {
	f.t.Helper()
	r, err := add(f.t.Context(), f.store, store.Draft{
		File: "p.yaml", YAML: []byte("domain: " + domain), JSON: []byte(`{"version":1,"domain":"` + domain + `"}`),
	})
	require.NoError(f.t, err)
	// A proxy that connects before the server knows of it would get the one before.
	f.eventually("the server to know it", func() bool { return f.server.Ledger().Newest() >= r.Number })
	return r.Number
}

func (f *fixture) status(node string) ProxyStatus {
	f.t.Helper()
	for _, p := range f.server.Ledger().Proxies() {
		if p.Node == node {
			return p
		}
	}
	require.Failf(f.t, "no such proxy", "%s", node)
	return ProxyStatus{}
}

// subscribed says whether any stream of the node wants the policy.
func (f *fixture) subscribed(node string) bool {
	l := f.server.Ledger()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.proxies[store.Identity{Node: node}].sessions {
		if s.subscribed {
			return true
		}
	}
	return false
}

func (f *fixture) eventually(what string, check func() bool) {
	f.t.Helper()
	require.Eventually(f.t, check, patience, 2*time.Millisecond, what)
}

// proxyClient speaks Delta xDS as Envoy does: the node in the first request only,
// what it holds likewise, every response answered by its nonce.
type proxyClient struct {
	f       *fixture
	tls     *tls.Config // nil = plain text
	from    string      // IP address, if it matters
	node    *corev3.Node
	version string // of what it accepted last
	stream  extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsClient
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	got     chan *discoveryv3.DeltaDiscoveryResponse
	ended   chan error
}

func (f *fixture) proxy(id string) *proxyClient {
	f.t.Helper()
	p := &proxyClient{f: f, node: &corev3.Node{Id: id}}
	p.connect()
	f.t.Cleanup(func() { p.hangUp() })
	return p
}

// dial opens a stream.
func (p *proxyClient) dial() {
	t := p.f.t
	t.Helper()
	security := insecure.NewCredentials()
	if p.tls != nil {
		security = credentials.NewTLS(p.tls)
	}
	dialer := &net.Dialer{}
	if p.from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(p.from)}
	}
	var err error
	p.conn, err = grpc.NewClient(p.f.addr, grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	require.NoError(t, err)
	p.open()
}

// open opens a stream on the connection there is.
func (p *proxyClient) open() {
	t := p.f.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := extensionv3.NewExtensionConfigDiscoveryServiceClient(p.conn).DeltaExtensionConfigs(ctx)
	require.NoError(t, err)
	p.cancel, p.stream = cancel, stream
	got, ended := make(chan *discoveryv3.DeltaDiscoveryResponse, 100), make(chan error, 1)
	p.got, p.ended = got, ended
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			got <- r
		}
	}()
}

// subscribe sends the first request. A process that lives on reports what it
// holds.
func (p *proxyClient) subscribe() {
	p.f.t.Helper()
	require.NoError(p.f.t, p.sendFirst())
}

func (p *proxyClient) sendFirst() error {
	first := &discoveryv3.DeltaDiscoveryRequest{
		Node: p.node, TypeUrl: TypeURL, ResourceNamesSubscribe: []string{envoy.ResourceName},
	}
	if p.version != "" {
		first.InitialResourceVersions = map[string]string{envoy.ResourceName: p.version}
	}
	return p.stream.Send(first)
}

// connect opens a stream that the server lets in.
func (p *proxyClient) connect() {
	p.f.t.Helper()
	p.dial()
	p.subscribe()
	p.f.eventually("session opened", func() bool {
		for _, st := range p.f.server.Ledger().Proxies() {
			if st.Node == p.node.GetId() && st.Connected {
				return true
			}
		}
		return false
	})
}

func (p *proxyClient) hangUp() {
	p.cancel()
	_ = p.conn.Close()
}

// hangUpAndWait returns once the server has noticed.
func (p *proxyClient) hangUpAndWait() {
	p.f.t.Helper()
	p.hangUp()
	p.f.eventually("session closed", func() bool { return !p.f.status(p.node.GetId()).Connected })
}

func (p *proxyClient) receive() *discoveryv3.DeltaDiscoveryResponse {
	p.f.t.Helper()
	select {
	case r := <-p.got:
		require.Len(p.f.t, r.GetResources(), 1, "one resource a response")
		require.Empty(p.f.t, r.GetRemovedResources())
		require.NotEmpty(p.f.t, r.GetNonce())
		return r
	case err := <-p.ended:
		require.NoError(p.f.t, err, "stream ended")
	case <-time.After(patience):
		require.Fail(p.f.t, "nothing was pushed")
	}
	return nil
}

// nothingMore asserts that nothing is pushed for a while.
func (p *proxyClient) nothingMore() {
	p.f.t.Helper()
	select {
	case r := <-p.got:
		require.Failf(p.f.t, "pushed again", "%s", r.GetSystemVersionInfo())
	case <-time.After(100 * time.Millisecond):
	}
}

func (p *proxyClient) ack(r *discoveryv3.DeltaDiscoveryResponse) {
	p.f.t.Helper()
	p.version = r.GetResources()[0].GetVersion()
	require.NoError(p.f.t, p.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: r.GetNonce()}))
}

func (p *proxyClient) nack(r *discoveryv3.DeltaDiscoveryResponse) {
	p.f.t.Helper()
	require.NoError(p.f.t, p.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResponseNonce: r.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: 13, Message: "Unable to create Wasm plugin sluice"},
	}))
}

// expect receives a push and asserts which policy it is.
func (p *proxyClient) expect(domain string) *discoveryv3.DeltaDiscoveryResponse {
	p.f.t.Helper()
	r := p.receive()
	require.Contains(p.f.t, policyIn(p.f.t, r), `"domain":"`+domain+`"`)
	return r
}

func (p *proxyClient) accept(domain string) {
	p.f.t.Helper()
	p.ack(p.expect(domain))
}

func (p *proxyClient) refuse(domain string) {
	p.f.t.Helper()
	p.nack(p.expect(domain))
}

func filterIn(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) *wasmfilterv3.Wasm {
	t.Helper()
	resource := r.GetResources()[0]
	require.Equal(t, envoy.ResourceName, resource.GetName())
	config, filter := new(corev3.TypedExtensionConfig), new(wasmfilterv3.Wasm)
	require.NoError(t, resource.GetResource().UnmarshalTo(config))
	require.Equal(t, envoy.ResourceName, config.GetName())
	require.NoError(t, config.GetTypedConfig().UnmarshalTo(filter))
	return filter
}

func policyIn(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	text := new(wrapperspb.StringValue)
	require.NoError(t, filterIn(t, r).GetConfig().GetConfiguration().UnmarshalTo(text))
	return text.GetValue()
}

func wasmIn(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	return filterIn(t, r).GetConfig().GetVmConfig().GetCode().GetLocal().GetFilename()
}

func metadata(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"sluice": fields})
	require.NoError(t, err)
	return s
}

// revisionStamp is the text of the policy's revision field.
func revisionStamp(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	_, rest, ok := strings.Cut(policyIn(t, r), `"revision":"`)
	require.True(t, ok)
	tag, _, ok := strings.Cut(rest, `"`)
	require.True(t, ok)
	return tag
}
