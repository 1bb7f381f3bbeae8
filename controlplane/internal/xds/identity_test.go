package xds

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// authority issues certificates for a test.
type authority struct{ *tls.Certificate }

func (a authority) pool() *x509.CertPool { return buildtest.Pool(a.Certificate) }

// client is the TLS configuration of a proxy with a certificate for these names.
func (a authority) client(names ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.pool(), Certificates: []tls.Certificate{*buildtest.Issue(a.Certificate, names)}}
}

// secure makes a fixture ask for certificates.
func secure(t *testing.T, names string) (*fixture, authority) {
	t.Helper()
	a := authority{buildtest.Issue(nil, nil)}
	f := newFixture(t)
	f.names, f.clientCAs = names, a.pool
	f.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*buildtest.Issue(a.Certificate, nil)},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool(),
	}
	f.restart()
	return f, a
}

// named makes a proxy that claims an id.
func (f *fixture) named(id string, security *tls.Config) *proxyClient {
	p := &proxyClient{f: f, node: &corev3.Node{Id: id}, tls: security}
	f.t.Cleanup(func() { p.hangUp() })
	return p
}

// refusal opens a stream and returns how the server ended it.
func (p *proxyClient) refusal() error {
	p.f.t.Helper()
	p.dial()
	return p.refused()
}

func (p *proxyClient) refused() error {
	p.f.t.Helper()
	// The server may have ended the stream already; p.ended says why.
	if err := p.sendFirst(); !errors.Is(err, io.EOF) {
		require.NoError(p.f.t, err)
	}
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		require.Fail(p.f.t, "let in")
		return nil
	}
}

// One proxy cannot speak for another: neither does its refusal withdraw the
// other's revision, nor is it remembered as the other's.
func TestNobodyRefusesForAnother(t *testing.T) {
	f, a := secure(t, "")
	var lines lockedBuffer
	f.log = slog.New(slog.NewTextHandler(&lines, nil))
	f.restart()
	f.apply("one")
	victim := f.named("edge-1", a.client("edge-1"))
	victim.connect()
	victim.accept("one")
	f.apply("two")
	victim.accept("two")
	f.eventually("runs two", func() bool { return f.status("edge-1").Acked == 2 })

	err := f.named("edge-1", a.client("edge-9")).refusal()
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, `node id "edge-1" is not granted by its certificate, which grants edge-9: `+
		`set node.id to that, or write "edge-9 edge-1" into the file of serve --node-names`)
	require.Equal(t, uint64(1), f.server.Counts().Foreign)
	require.Contains(t, lines.String(), "proxy refused")

	victim.hangUpAndWait()
	f.restart()
	victim.connect()
	f.eventually("its report is taken", func() bool { return f.status("edge-1").Runs == 2 })
	victim.nothingMore()
	st := f.status("edge-1")
	require.Equal(t, "edge-1", st.SAN)
	require.Empty(t, st.Refused)
}

// A connection may outlive the trust in its authority: each stream is judged
// anew, and the proxy has to connect again.
func TestTrustEndsWhileConnected(t *testing.T) {
	f, a := secure(t, "")
	var pool atomic.Pointer[x509.CertPool]
	pool.Store(a.pool())
	f.clientCAs = pool.Load
	f.restart()
	f.apply("one")
	p := f.named("edge-1", a.client("edge-1"))
	p.connect()
	p.accept("one")
	first := p.ended
	pool.Store(x509.NewCertPool())
	p.open()
	err := p.refused()
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.ErrorContains(t, err, "unknown authority")
	require.Equal(t, codes.Unavailable, status.Code(<-first), "the connection is closed")
	require.Zero(t, f.server.Counts().Foreign)
}

// A stream that is open ends with the trust in its certificate.
func TestTrustEndsWhileStreaming(t *testing.T) {
	for name, why := range map[string]string{"expiry": "expired", "authority gone": "unknown authority"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, a := secure(t, "")
			var pool atomic.Pointer[x509.CertPool]
			pool.Store(a.pool())
			f.clientCAs = pool.Load
			f.restart()
			if name == "authority gone" {
				f.server.verifyEvery = 50 * time.Millisecond
			}
			config, end := a.client(), time.Now().Add(time.Hour)
			if name == "expiry" {
				// Time enough to connect again, however busy the machine is.
				began, sooner := time.Now(), f.named("edge-1", a.client("edge-1"))
				sooner.connect()
				sooner.hangUpAndWait()
				end = time.Now().Add(4*time.Second + 20*time.Since(began)).Truncate(time.Second)
			}
			f.apply("one")
			config.Certificates[0] = *buildtest.Issue(a.Certificate, []string{"edge-1"}, func(c *x509.Certificate) { c.NotAfter = end })
			p := f.named("edge-1", config)
			p.connect()
			p.accept("one")
			if name == "authority gone" {
				pool.Store(x509.NewCertPool())
			}
			select {
			case err := <-p.ended:
				require.Equal(t, codes.Unauthenticated, status.Code(err))
				require.ErrorContains(t, err, why)
			case <-time.After(patience):
				require.Fail(t, "it goes on")
			}
			f.eventually("gone", func() bool { return !f.status("edge-1").Connected })
			p.hangUp()
			p.tls = a.client("edge-1")
			pool.Store(a.pool())
			p.connect()
			f.apply("two")
			p.accept("two")
		})
	}
}

// What a proxy holds outranks what it is remembered to have refused.
func TestReportOutranksRefusal(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	parent, child := f.proxy("e1"), f.proxy("e1")
	parent.accept("one")
	child.accept("one")
	f.eventually("both run it", func() bool { return f.server.Counts().Acks == 2 })
	f.apply("two")
	parent.accept("two")
	f.eventually("accepted by one", func() bool { return f.status("e1").Acked == 2 })
	child.refuse("two")
	child.expect("one") // and is gone before it says so
	f.eventually("refused by the other", func() bool { s := f.status("e1"); return s.Nacked == 2 && s.Unsettled })
	child.hangUp()
	parent.hangUpAndWait()
	for range 2 {
		f.restart()
		parent.connect()
		f.eventually("its report is taken", func() bool { return f.status("e1").Runs == 2 })
		parent.nothingMore()
		st := f.status("e1")
		require.Equal(t, uint64(2), st.Acked)
		require.Equal(t, uint64(2), st.Offered)
		require.Empty(t, st.Refused)
		require.False(t, st.Unsettled)
		parent.hangUpAndWait()
	}
}

func TestTwoProcessesOfOneIdentity(t *testing.T) {
	f := newFixture(t)
	l := f.server.Ledger()
	now := time.Now()
	l.mu.Lock()
	l.now = func() time.Time { return now }
	l.mu.Unlock()
	passes := func(d time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		now = now.Add(d)
	}
	here, child := f.proxy("e1"), f.proxy("e1")
	there := &proxyClient{f: f, node: &corev3.Node{Id: "e1"}, from: "127.0.0.2"}
	passes(time.Hour)
	require.Empty(t, f.status("e1").Processes, "one process with two streams")
	there.connect()
	t.Cleanup(func() { there.hangUp() })
	f.eventually("three streams", func() bool { return f.status("e1").Streams == 3 })
	passes(overlap - time.Second)
	require.Empty(t, f.status("e1").Processes, "one takes over from the other")
	passes(time.Second)
	require.Equal(t, []string{"127.0.0.1", "127.0.0.2"}, f.status("e1").Processes)
	here.hangUp()
	child.hangUp()
	f.eventually("one stream", func() bool { return f.status("e1").Streams == 1 })
	require.Empty(t, f.status("e1").Processes)
}

func TestNodeStays(t *testing.T) {
	f := newFixture(t)
	e := f.proxy("e1")
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		r.TypeUrl = TypeURL
		require.NoError(t, e.stream.Send(r))
	}
	send(&discoveryv3.DeltaDiscoveryRequest{Node: e.node, ResourceNamesSubscribe: []string{envoy.ResourceName}})
	f.apply("one")
	e.accept("one")
	send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "e2"}})
	require.Equal(t, codes.InvalidArgument, status.Code(<-e.ended))
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
