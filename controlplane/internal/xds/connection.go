package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
)

// What one connection may do before it is slowed down. An Envoy sends one large
// request when it connects, and a few small ones for each revision.
const (
	burstBytes, bytesPerSecond = 2 << 20, 128 << 10 // of requests
	minRequest                 = 4 << 10            // what a request counts at least
	burstAgain                 = 16                 // pushes of what was pushed before, then one a second
	burstLines                 = 100                // of the log, then one a second
)

// connection is what the streams of one connection share. If each stream had its
// own limits, a new stream would begin with a new burst.
type connection struct {
	security credentials.AuthInfo // nil where there was no handshake
	raw      net.Conn             // nil likewise
	frames   *frames              // nil likewise

	requests *rate.Limiter // bytes of requests
	again    *rate.Limiter // pushes of what was pushed before
	lines    *lograte.Limit

	mu     sync.Mutex
	pushed uint64 // the newest revision that was pushed
}

func newConnection(security credentials.AuthInfo, raw net.Conn) *connection {
	return &connection{
		security: security, raw: raw,
		requests: rate.NewLimiter(bytesPerSecond, burstBytes),
		again:    rate.NewLimiter(1, burstAgain),
		lines:    lograte.NewLimit(burstLines),
	}
}

// keep adds to the uses of the connection at a listener that bounds connections, which
// closes those without uses first.
func (c *connection) keep(uses int) {
	if bounded, ok := c.raw.(interface{ Keep(uses int) }); ok {
		bounded.Keep(uses)
	}
}

// AuthType makes a connection a credentials.AuthInfo, which gRPC hands from the
// handshake to every stream.
func (c *connection) AuthType() string {
	if c.security == nil {
		return "none"
	}
	return c.security.AuthType()
}

// connectionOf finds the stream's connection.
func connectionOf(p *peer.Peer) *connection {
	if c, ok := p.AuthInfo.(*connection); ok {
		return c
	}
	return newConnection(p.AuthInfo, nil)
}

// certificates are the chain that the proxy showed when it connected, its own
// first; nil if none was asked for.
func (c *connection) certificates() []*x509.Certificate {
	info, ok := c.security.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.PeerCertificates
}

// verify says whether the authorities vouch for the certificate, if any, still. If
// not, it closes the connection, so that the proxy shows the one it has by now.
func (c *connection) verify(clientCAs func() *x509.CertPool) error {
	chain := c.certificates()
	if chain == nil {
		return nil
	}
	if err := access.Verify(chain, clientCAs()); err != nil {
		c.closeSoon()
		return status.Errorf(codes.Unauthenticated, "certificate is not trusted any more: %s", err)
	}
	return nil
}

// closeSoon closes the connection with all its streams, but leaves the proxy the
// time to read why.
func (c *connection) closeSoon() {
	if c.raw != nil {
		time.AfterFunc(time.Second, func() { _ = c.raw.Close() })
	}
}

// reservePush takes the room for a push of the revision, or says how long to
// wait. A revision that is newer than all before needs no room.
func (c *connection) reservePush(number uint64) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number > c.pushed {
		c.pushed = number
		return 0
	}
	r := c.again.Reserve()
	if wait = r.Delay(); wait > 0 {
		r.Cancel()
	}
	return wait
}

// slowDown waits as long as the proxy has to after a request of that many bytes.
func (c *connection) slowDown(ctx context.Context, size int) error {
	return c.requests.WaitN(ctx, max(size, minRequest))
}

// handshake makes the connection that streams find in their context.
type handshake struct {
	credentials.TransportCredentials
}

func newHandshake(config *tls.Config) handshake {
	if config == nil {
		return handshake{insecure.NewCredentials()}
	}
	return handshake{credentials.NewTLS(config)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, security, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := newConnection(security, raw)
	c.frames = newFrames(conn)
	return c.frames, c, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone()}
}
