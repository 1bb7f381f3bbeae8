package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
)

const (
	// MaxRequest bounds a message of a proxy. The first one of an Envoy has 100 KB, most of
	// it the list of its extensions; Istio adds the labels and annotations of a pod.
	MaxRequest = 256 << 10
	// maxStreams bounds the streams of one connection. Envoy needs one or two.
	maxStreams = 16
	// maxHeaders bounds the bytes of a stream's headers.
	maxHeaders = 16 << 10
	// streamWindow is how many bytes gRPC takes before the server reads.
	streamWindow = 64 << 10
	// handshakeWithin is the time-out of a connection's handshake.
	handshakeWithin = 10 * time.Second
	// idleAfter is when a connection without a stream is closed.
	idleAfter = 30 * time.Second
	// maxCall bounds a rate limit call, maxCalls those of one connection at a time: Envoy has one
	// connection a worker thread.
	maxCall  = 4 << 20
	maxCalls = 1024
	// admitFor is how long the calls of a connection need no further look at its certificate.
	admitFor = time.Minute
	// minPings is how often proxies may ping: the rendered cluster does it each second.
	minPings = 500 * time.Millisecond
)

// Keepalive finds out about a proxy that is gone without a word. The time-out of a ping is
// long because a large binary blocks Envoy's main thread for seconds.
func Keepalive() keepalive.ServerParameters {
	return keepalive.ServerParameters{MaxConnectionIdle: idleAfter, Time: 30 * time.Second, Timeout: 20 * time.Second}
}

// ServerOptions are those of a gRPC server for proxies: TLS if config is not nil, and bounds.
func ServerOptions(config *tls.Config) []grpc.ServerOption {
	security := insecure.NewCredentials()
	if config != nil {
		security = credentials.NewTLS(config)
	}
	return []grpc.ServerOption{
		grpc.Creds(handshake{security}),
		grpc.MaxRecvMsgSize(MaxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		// Windows that do not grow with the speed of the connection.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(4 * streamWindow),
		grpc.ConnectionTimeout(handshakeWithin),
		grpc.KeepaliveParams(Keepalive()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPings, PermitWithoutStream: true}),
	}
}

// CallOptions go after ServerOptions if a server also answers rate limit calls.
func CallOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(maxCall), grpc.MaxConcurrentStreams(maxCalls)}
}

// handshake makes the Peer that streams find in their context.
type handshake struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, security, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return conn, NewPeer(security, raw), nil
}

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone()}
}

// Peer is the other end of a gRPC server's connection.
type Peer struct {
	security credentials.AuthInfo
	conn     net.Conn // nil where there was no handshake
	admitted atomic.Pointer[time.Time]
}

// NewPeer returns the peer at the end of a connection whose handshake is done.
func NewPeer(security credentials.AuthInfo, conn net.Conn) *Peer {
	return &Peer{security: security, conn: conn}
}

// PeerOf finds the peer of a stream.
func PeerOf(ctx context.Context) (p *Peer, address string) {
	of, ok := peer.FromContext(ctx)
	if !ok {
		return NewPeer(nil, nil), ""
	}
	p, ok = of.AuthInfo.(*Peer)
	if !ok {
		p = NewPeer(of.AuthInfo, nil)
	}
	return p, of.Addr.String()
}

// AuthType makes a peer a credentials.AuthInfo, which gRPC hands from the handshake to
// every stream.
func (p *Peer) AuthType() string {
	if p.security == nil {
		return "none"
	}
	return p.security.AuthType()
}

// chain is what the peer showed when it connected, its own certificate first; nil if none
// was asked for.
func (p *Peer) chain() []*x509.Certificate {
	info, ok := p.security.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.PeerCertificates
}

// Certificate returns the peer's certificate, nil if none was asked for.
func (p *Peer) Certificate() *x509.Certificate {
	if chain := p.chain(); chain != nil {
		return chain[0]
	}
	return nil
}

// Verify says whether the authorities still vouch for the certificate, if there is one. If
// not, it closes the connection soon, so that the proxy reads why, and shows the certificate
// it has by now.
func (p *Peer) Verify(clientCAs func() *x509.CertPool) error {
	chain := p.chain()
	if chain == nil {
		return nil
	}
	if err := access.Verify(chain, clientCAs()); err != nil {
		time.AfterFunc(time.Second, p.Close)
		return status.Errorf(codes.Unauthenticated, "certificate is not trusted any more: %s", err)
	}
	return nil
}

// AdmitCall verifies the peer of a call, and lets its connection in. It looks again after a while.
func (p *Peer) AdmitCall(clientCAs func() *x509.CertPool) error {
	now := time.Now()
	if last := p.admitted.Load(); last != nil && now.Sub(*last) < admitFor {
		return nil
	}
	if err := p.Verify(clientCAs); err != nil {
		return err
	}
	p.LetIn()
	p.admitted.Store(&now)
	return nil
}

// LetIn keeps the connection: it is known who the peer is.
func (p *Peer) LetIn() {
	if p.conn != nil {
		letIn(p.conn)
	}
}

// Close closes the connection at once, with all its streams.
func (p *Peer) Close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
}
