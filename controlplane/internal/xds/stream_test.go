package xds

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
)

// authority issues certificates for a test.
type authority struct{ *tls.Certificate }

func (a authority) pool() *x509.CertPool { return certtest.Pool(a.Certificate) }

// certify has a proxy connect with a certificate for the name. It returns the proxy's end.
func (a authority) certify(p *proxyClient, name string, more ...func(*x509.Certificate)) net.Conn {
	chain := []*x509.Certificate{certtest.Issue(a.Certificate, []string{name}, more...).Leaf}
	here, there := net.Pipe()
	p.peer.AuthInfo = listener.NewPeer(credentials.TLSInfo{State: tls.ConnectionState{
		PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain},
	}}, here)
	return there
}

// secure is run with an authority for proxies' certificates.
func secure(t *testing.T, test func(t *testing.T, f *fixture, a authority)) {
	t.Helper()
	run(t, func(t *testing.T, f *fixture) {
		a := authority{certtest.Issue(nil, nil)}
		f.o.ClientCAs = a.pool
		f.restart()
		test(t, f, a)
	})
}

func (p *proxyClient) refused(code codes.Code, text string) {
	p.f.t.Helper()
	require.NotEmpty(p.f.t, p.ended, "let in")
	err := <-p.ended
	require.Equal(p.f.t, code, status.Code(err))
	require.ErrorContains(p.f.t, err, text)
}

// One proxy cannot speak for another: neither does its refusal withdraw the
// other's revision, nor is it remembered as the other's.
func TestNobodyRefusesForAnother(t *testing.T) {
	secure(t, func(t *testing.T, f *fixture, a authority) {
		lines := f.logged()
		f.apply("one")
		victim := f.named("edge-1")
		a.certify(victim, "edge-1")
		victim.connect()
		accept("one", victim)
		other := f.named("edge-1")
		a.certify(other, "edge-9")
		other.connect()
		other.refused(codes.PermissionDenied, `node id "edge-1" is not granted by its certificate, which grants edge-9: `+
			`set node.id to that, or write "edge-9 edge-1" into the file of serve --node-names`)
		require.Equal(t, uint64(1), f.Foreign.Load())
		require.Contains(t, lines.String(), "proxy refused")
		f.restart()
		victim.connect()
		idle(victim)
		require.Equal(t, "edge-1", f.state("edge-1", "connected").SAN)
	})
}

// A stream ends with the trust in its certificate, which the connection may outlive: the proxy has to
// connect again.
func TestTrustEnds(t *testing.T) {
	for why, later := range map[string]bool{
		"expired": true, "unknown authority": true, "signed by unknown authority": false,
	} {
		secure(t, func(t *testing.T, f *fixture, a authority) {
			var pool atomic.Pointer[x509.CertPool]
			pool.Store(a.pool())
			f.o.ClientCAs = pool.Load
			f.restart()
			f.apply("one")
			p := f.named("edge-1")
			far := a.certify(p, "edge-1", func(c *x509.Certificate) {
				if why == "expired" {
					c.NotAfter = time.Now().Add(verifyEvery / 3)
				}
			})
			p.connect()
			accept("one", p)
			switch {
			case why == "expired":
				time.Sleep(verifyEvery / 2)
			case later:
				pool.Store(x509.NewCertPool())
				time.Sleep(verifyEvery)
			default: // at the next stream of the connection
				pool.Store(x509.NewCertPool())
				p.connect()
			}
			p.refused(codes.Unauthenticated, why)
			_, err := far.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "the connection is closed")
			require.Zero(t, f.Foreign.Load())
			pool.Store(a.pool())
			a.certify(p, "edge-1")
			f.apply("two")
			p.connect()
			accept("two", p)
		})
	}
}

// So does that of a proxy that does not read its push.
func TestTrustEndsWhereNothingIsRead(t *testing.T) {
	secure(t, func(t *testing.T, f *fixture, a authority) {
		var pool atomic.Pointer[x509.CertPool]
		pool.Store(a.pool())
		f.o.ClientCAs = pool.Load
		f.restart()
		p := f.named("edge-1")
		far := a.certify(p, "edge-1")
		p.connect()
		for len(p.stream.got) < cap(p.stream.got) {
			p.stream.got <- nil
		}
		f.apply("one")
		pool.Store(x509.NewCertPool())
		require.NoError(t, far.SetReadDeadline(time.Now().Add(2*verifyEvery)))
		_, err := far.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the connection is closed")
		p.hangUp()
		require.NotEmpty(t, p.ended)
	})
}

func TestNodeStays(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		e := f.proxy("e1")
		f.apply("one")
		e.ack(e.expect("one"))
		e.send(&discoveryv3.DeltaDiscoveryRequest{Node: e.node})
		require.Empty(t, e.ended)
		e.send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "e2"}})
		e.refused(codes.InvalidArgument, "a stream is for one node")
	})
}

func TestStreamWithoutARequestEnds(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		silent, quick := f.named("silent"), f.proxy("quick")
		silent.dial()
		time.Sleep(firstWithin - time.Second)
		require.Empty(t, silent.ended)
		time.Sleep(time.Second)
		idle(quick) // the deadline is of the first request only
		silent.refused(codes.DeadlineExceeded, "no request within 10s")
		require.Empty(t, quick.ended)
	})
}

func TestLogLinesAreBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		lines := f.logged()
		e := f.proxy("e1")
		r := request{typeURL: TypeURL, nonce: "made\nup\x1b[31m", others: 1, unserved: []string{"other"}}
		for range 400 {
			e.stream.requests <- r
		}
		settle()
		require.Equal(t, burstLines+1, strings.Count(lines.String(), "\n"), "and that the proxy is connected")
		time.Sleep(time.Second)
		e.stream.requests <- r
		settle()
		require.Contains(t, lines.String(), "omitted=")
		require.NotContains(t, lines.String(), "\x1b")
	})
}

// Kinds of proxies are theirs to make up. They share the policy's text.
func TestKindsShareThePolicy(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		number := f.apply(strings.Repeat("x", 1<<20))
		r, err := f.readPushable(t.Context(), number)
		require.NoError(t, err)
		for i := range 100 {
			e, err := newResponse(f.plugin(r, &node{vmID: fmt.Sprint(i)}), r, "0123456789abcdef")
			require.NoError(t, err)
			require.Same(t, &r.policy[0], &e.message.policy[0])
			require.Less(t, len(e.message.own), 8<<10)
		}
	})
}
