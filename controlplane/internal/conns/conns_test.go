package conns

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// conn is a connection that always has something to read.
type conn struct {
	net.Conn
	from   string
	closed bool
}

func (c *conn) RemoteAddr() net.Addr       { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 1} }
func (c *conn) Read(b []byte) (int, error) { return 1, nil }

func (c *conn) Close() error {
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	return nil
}

// queue is a listener with connections that wait at it.
type queue struct {
	net.Listener
	waiting chan *conn
}

func (q queue) Accept() (net.Conn, error) {
	if c, ok := <-q.waiting; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

type fixture struct {
	*Listener
	waiting chan *conn
}

func newFixture(maxOpen int) *fixture {
	waiting := make(chan *conn, 10)
	return &fixture{Bound(queue{waiting: waiting}, maxOpen), waiting}
}

// connect has connections accepted, one from each address.
func (f *fixture) connect(t *testing.T, from ...string) (list []*Conn) {
	t.Helper()
	for _, address := range from {
		f.waiting <- &conn{from: address}
		c, err := f.Accept()
		require.NoError(t, err)
		list = append(list, c.(*Conn))
	}
	return list
}

// isClosed says which of the connections are closed.
func isClosed(list ...*Conn) (closed []bool) {
	for _, c := range list {
		closed = append(closed, c.Conn.(*conn).closed)
	}
	return closed
}

const a, b = "127.0.0.1", "127.0.0.2"

func TestLongestSilentGivesWay(t *testing.T) {
	f := newFixture(3)
	list := f.connect(t, a, a, a)
	_, err := list[0].Read(make([]byte, 1))
	require.NoError(t, err)
	list = append(list, f.connect(t, a)...)
	require.Equal(t, []bool{false, true, false, false}, isClosed(list...))
	require.NoError(t, list[0].Close())
	f.connect(t, a)
	require.Equal(t, []bool{false, false}, isClosed(list[2:]...), "there was room")
	require.Len(t, f.open, 3)
}

func TestAddressWithMostGivesWay(t *testing.T) {
	f := newFixture(3)
	list := f.connect(t, b, a, a, a)
	require.Equal(t, []bool{false, true, false, false}, isClosed(list...))
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
	f := newFixture(10)
	var kept []*Conn
	for range 10 {
		kept = append(kept, f.connect(t, a)...)
		kept[len(kept)-1].Keep(1)
	}
	refused := &conn{from: a}
	f.waiting <- refused
	newcomer := f.connect(t, b) // accepts both
	require.True(t, refused.closed)
	require.Equal(t, []bool{true, false, false}, isClosed(kept[0], kept[1], newcomer[0]))

	// What is not kept gives way first, whoever has it.
	f.connect(t, a)
	require.Equal(t, []bool{true, false}, isClosed(newcomer[0], kept[1]))
}

func TestFairShareIsKept(t *testing.T) {
	f := newFixture(5)
	for _, c := range f.connect(t, a, b, "127.0.0.3", "127.0.0.4", "127.0.0.5") {
		c.Keep(1)
	}
	refused := &conn{from: "127.0.0.6"}
	f.waiting <- refused
	close(f.waiting)
	_, err := f.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.True(t, refused.closed)
}

func TestKeepCounts(t *testing.T) {
	f := newFixture(2)
	list := f.connect(t, a, a)
	list[0].Keep(3)
	list[0].Keep(-2)
	list = append(list, f.connect(t, a)...)
	require.Equal(t, []bool{false, true, false}, isClosed(list...), "it has a use still")
	list[0].Keep(-1)
	list = append(list, f.connect(t, a)...)
	require.Equal(t, []bool{true, true, false, false}, isClosed(list...))
	require.NoError(t, list[2].Close())
	require.Error(t, list[2].Close(), "closed twice")
	list[2].Keep(1)
	f.connect(t, a)
	require.Equal(t, []bool{false}, isClosed(list[3:]...), "there was room")
}

func keptOf(l *Listener) (uses int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		uses += c.uses
	}
	return uses
}

func TestRequestKeepsItsConnection(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var l *Listener
		kept := make(chan int, 1)
		s := httptest.NewUnstartedServer(Keep(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			kept <- keptOf(l)
		})))
		l = Bound(s.Listener, 3)
		s.Listener, s.Config.ConnContext, s.EnableHTTP2 = l, Context, true
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
		require.Zero(t, keptOf(l))
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
}
