package conns

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// pair is both ends of a connection.
type pair struct {
	client net.Conn
	server *Conn
}

type fixture struct {
	t *testing.T
	*Listener
}

func newFixture(t *testing.T, maxOpen int) fixture {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return fixture{t, Bound(l, maxOpen)}
}

func (f fixture) dial(from string) net.Conn {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(f.t.Context(), "tcp", f.Addr().String())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (f fixture) connect(from string) pair {
	f.t.Helper()
	client := f.dial(from)
	server, err := f.Accept()
	require.NoError(f.t, err)
	require.Equal(f.t, client.LocalAddr().String(), server.RemoteAddr().String())
	return pair{client, server.(*Conn)}
}

// closed asserts that the server closes the connection.
func (p pair) closed(t *testing.T) {
	t.Helper()
	require.NoError(t, p.client.SetReadDeadline(time.Now().Add(patience)))
	_, err := p.client.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// open asserts that the connection carries what the server writes.
func (p pair) open(t *testing.T, why ...any) {
	t.Helper()
	_, err := io.WriteString(p.server, "x")
	require.NoError(t, err, why...)
	_, err = io.ReadFull(p.client, make([]byte, 1))
	require.NoError(t, err, why...)
}

func (p pair) says(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(p.client, text)
	require.NoError(t, err)
	_, err = io.ReadFull(p.server, make([]byte, len(text)))
	require.NoError(t, err)
}

func TestLongestSilentGivesWay(t *testing.T) {
	f := newFixture(t, 3)
	a, b, c := f.connect("127.0.0.1"), f.connect("127.0.0.1"), f.connect("127.0.0.1")
	a.says(t, "x")
	d := f.connect("127.0.0.1")
	b.closed(t)
	for _, p := range []pair{a, c, d} {
		p.open(t)
	}
	require.NoError(t, a.server.Close())
	f.connect("127.0.0.1")
	c.open(t, "there was room")
	require.Len(t, f.open, 3)
}

func TestAddressWithMostGivesWay(t *testing.T) {
	f := newFixture(t, 3)
	alone := f.connect("127.0.0.2")
	one, two := f.connect("127.0.0.1"), f.connect("127.0.0.1")
	f.connect("127.0.0.1")
	one.closed(t)
	alone.open(t)
	two.open(t)
}

func TestOrigin(t *testing.T) {
	for peer, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "@": "@",
	} {
		require.Equal(t, want, Origin(peer))
	}
}

func TestKeptGivesWayToAnotherAddressOnly(t *testing.T) {
	f := newFixture(t, 10)
	var kept []pair
	for range 10 {
		p := f.connect("127.0.0.1")
		p.server.Keep(1)
		kept = append(kept, p)
	}
	refused := f.dial("127.0.0.1")
	newcomer := f.connect("127.0.0.2") // accepts both
	pair{client: refused}.closed(t)
	kept[0].closed(t)
	newcomer.open(t)

	// What is not kept gives way first, whoever has it.
	f.connect("127.0.0.1")
	newcomer.closed(t)
	kept[1].open(t)
}

func TestFairShareIsKept(t *testing.T) {
	f := newFixture(t, 5)
	for _, from := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		f.connect(from).server.Keep(1)
	}
	refused := pair{client: f.dial("127.0.0.6")}
	go func() { _, _ = f.Accept() }() // ends with the listener
	refused.closed(t)
}

func TestKeepCounts(t *testing.T) {
	f := newFixture(t, 2)
	p := f.connect("127.0.0.1")
	for range 3 {
		p.server.Keep(1)
	}
	p.server.Keep(-1)
	p.server.Keep(-1)
	require.True(t, p.server.kept())
	p.server.Keep(-1)
	require.Empty(t, f.kept)
	p.server.Keep(1)
	require.NoError(t, p.server.Close())
	require.Error(t, p.server.Close(), "closed twice")
	p.server.Keep(-1)
	require.Empty(t, f.kept)
	require.Equal(t, map[string]int{}, f.of)
}

func TestRequestKeepsItsConnection(t *testing.T) {
	for _, secure := range []bool{false, true} {
		f := newFixture(t, 3)
		kept := make(chan int, 1)
		s := httptest.NewUnstartedServer(Keep(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			kept <- len(f.kept)
		})))
		require.NoError(t, s.Listener.Close())
		s.Listener, s.Config.ConnContext, s.EnableHTTP2 = f, Context, true
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		r, err := s.Client().Get(s.URL)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, 1, <-kept)
		s.Close()
		require.Empty(t, f.kept)
	}
}

func TestShare(t *testing.T) {
	for files, want := range map[uint64]Shares{
		64: {30, 10}, 1024: {750, 250}, 20_000: {maxXDS, maxHTTP}, 1 << 63: {maxXDS, maxHTTP},
	} {
		got, err := share(files)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d", files)
		require.LessOrEqual(t, uint64(got.XDS+got.HTTP+reserve), files)
	}
	_, err := share(55)
	require.EqualError(t, err, "this process may open 55 files, it needs 56: raise ulimit -n")
	_, err = Share()
	require.NoError(t, err)
}
