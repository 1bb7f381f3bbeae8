package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/certtest"
)

func local(t *testing.T, places int) *Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	bounded := Bound(l, places)
	t.Cleanup(func() { _ = bounded.Close() })
	return bounded
}

// connect opens a connection: its two ends.
func connect(t *testing.T, l *Listener) (here *Conn, there net.Conn) {
	t.Helper()
	there, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = there.Close() })
	accepted, err := l.Accept()
	require.NoError(t, err)
	return accepted.(*Conn), there
}

func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

func TestTheOldestNewcomerGivesWay(t *testing.T) {
	l := local(t, 4)
	known, knownEnd := connect(t, l)
	known.LetIn()
	known.LetIn()
	_, first := connect(t, l)
	_, second := connect(t, l)
	_, third := connect(t, l)
	require.False(t, isOpen(first), "two may be unknown")
	require.True(t, isOpen(second))
	require.True(t, isOpen(third))
	require.True(t, isOpen(knownEnd))
}

// Newcomers keep nobody out either where those that are let in leave them few places.
func TestNewcomersGiveWayWhereMostPlacesAreTaken(t *testing.T) {
	l := local(t, 4)
	var known []net.Conn
	for range 3 {
		for range 3 {
			connect(t, l)
		}
		c, end := connect(t, l)
		c.LetIn()
		known = append(known, end)
	}
	for _, end := range known {
		require.True(t, isOpen(end))
	}
}

func TestAConnectionThatIsClosedGivesItsPlaceBack(t *testing.T) {
	l := local(t, 2)
	for range 5 {
		c, _ := connect(t, l)
		require.NoError(t, c.Close())
		require.Error(t, c.Close())
	}
	first, _ := connect(t, l)
	first.LetIn()
	second, end := connect(t, l)
	second.LetIn()
	next := make(chan struct{})
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
		}
		close(next)
	}()
	waits, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer waits.Close()
	select {
	case <-next:
		t.Fatal("more connections than places")
	case <-time.After(50 * time.Millisecond):
	}
	require.True(t, isOpen(end), "who is let in stays")
	require.NoError(t, first.Close())
	<-next
}

// A connection is let in by a request of a known caller, with TLS and without.
func TestARequestLetsItsConnectionIn(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){
		"plain": (*httptest.Server).Start, "HTTP/2 with TLS": (*httptest.Server).StartTLS,
	} {
		t.Run(name, func(t *testing.T) {
			l := local(t, 3)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/known" {
					LetIn(r)
				}
			}))
			defer s.Close()
			require.NoError(t, s.Listener.Close())
			s.Listener, s.EnableHTTP2 = l, true
			s.Config.ConnContext = Context
			start(s)
			newcomersAfter := func(path string) int {
				r, err := s.Client().Get(s.URL + path)
				require.NoError(t, err)
				require.NoError(t, r.Body.Close())
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.newcomers.Len()
			}
			require.Equal(t, 1, newcomersAfter("/"))
			require.Zero(t, newcomersAfter("/known"))
		})
	}
}

// serveEcho serves a stream that says by whose certificate it came, and lets in all but "stranger".
func serveEcho(t *testing.T, l *Listener, config *tls.Config) {
	t.Helper()
	s := grpc.NewServer(ServerOptions(config)...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			peer, _ := PeerOf(stream.Context())
			name := "nobody"
			if c := peer.Certificate(); c != nil {
				name = c.DNSNames[0]
			}
			if name == "stranger" {
				return status.Error(codes.PermissionDenied, name)
			}
			peer.LetIn()
			return status.Error(codes.OK, name)
		},
	}}}, nil)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

// ask opens a stream and waits for its end.
func ask(t *testing.T, l *Listener, security credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(security))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test/stream")
	if err != nil {
		return err
	}
	if err := stream.RecvMsg(new(any)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Peers without a certificate, or with one that grants nothing, give way to one that has a right one.
func TestOnlyTheRightCertificateIsLetIn(t *testing.T) {
	authority := certtest.Issue(nil, nil)
	pool := certtest.Pool(authority)
	server := certtest.Issue(authority, []string{"localhost"})
	l := local(t, 6)
	serveEcho(t, l, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*server}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	})
	as := func(name string) credentials.TransportCredentials {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: "localhost"}
		if name != "" {
			config.Certificates = []tls.Certificate{*certtest.Issue(authority, []string{name})}
		}
		return credentials.NewTLS(config)
	}
	require.NoError(t, ask(t, l, as("proxy")))
	for range 20 {
		err := ask(t, l, as("stranger"))
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
		silent, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer silent.Close()
	}
	err := ask(t, l, as(""))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NoError(t, ask(t, l, as("proxy")), "strangers leave places")
}

func TestWithoutTLSAPeerShowsNothing(t *testing.T) {
	l := local(t, 4)
	serveEcho(t, l, nil)
	require.NoError(t, ask(t, l, insecure.NewCredentials()))
}

// A connection has many calls at a time, where streams are few.
func TestCallsShareAConnection(t *testing.T) {
	for want, more := range map[uint32][]grpc.ServerOption{maxStreams: nil, maxCalls: CallOptions()} {
		l := local(t, 2)
		s := grpc.NewServer(append(ServerOptions(nil), more...)...)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, http2.ClientPreface)
		require.NoError(t, err)
		first, err := http2.NewFramer(c, c).ReadFrame()
		require.NoError(t, err)
		streams, _ := first.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams)
		require.Equal(t, want, streams)
	}
}

// The certificate of a connection with calls is verified once in a while, and then it is let in.
func TestCallsAreAdmittedAgainAfterAWhile(t *testing.T) {
	authority := certtest.Issue(nil, nil)
	proxy := certtest.Issue(authority, []string{"proxy"})
	l := local(t, 2)
	conn, _ := connect(t, l)
	chain := []*x509.Certificate{proxy.Leaf}
	p := NewPeer(credentials.TLSInfo{State: tls.ConnectionState{
		PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain},
	}}, conn)
	trusted := certtest.Pool(authority)
	authorities := func() *x509.CertPool { return trusted }
	require.NoError(t, p.AdmitCall(authorities))
	require.Zero(t, l.newcomers.Len())
	trusted = x509.NewCertPool()
	require.NoError(t, p.AdmitCall(authorities))
	before := time.Now().Add(-admitFor)
	p.admitted.Store(&before)
	err := p.AdmitCall(authorities)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
}

func TestPlacesFollowTheLimitOfOpenFiles(t *testing.T) {
	for files, want := range map[uint64]Places{
		64: {30, 10}, 1024: {750, 250}, 20_000: {maxProxies, maxHTTP}, 1 << 63: {maxProxies, maxHTTP},
	} {
		got, err := placesOf(files)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d", files)
		require.LessOrEqual(t, uint64(got.Proxies+got.HTTP+reserve), files)
	}
	_, err := placesOf(55)
	require.EqualError(t, err, "this process may open 55 files, it needs 56: raise ulimit -n")
}
