package conns

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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

// queue is a listener at which connections wait.
type queue struct {
	net.Listener
	waiting []*conn
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.waiting) == 0 {
		return nil, net.ErrClosed
	}
	c := q.waiting[0]
	q.waiting = q.waiting[1:]
	return c, nil
}

// What becomes of connections, by steps: a digit opens one from that address, and one that is
// followed by ! is refused; the others are about the connection whose letter stands first,
// in the order of opening: r it sends something, c it is closed, + and - its uses.
func TestWhoGivesWay(t *testing.T) {
	for name, tc := range map[string]struct {
		maxOpen         int
		steps, givesWay string // letters
	}{
		"the longest silent":                        {3, "1 1 1 ar 1", "b"},
		"nobody while there is room":                {3, "1 1 1 bc 1", ""},
		"one of the address with most":              {3, "2 1 1 1", "b"},
		"none that is kept to its own address":      {3, "1 a+ 1 b+ 1 c+ 1!", ""},
		"one that is kept to another address":       {10, "1 a+ a+ 1 b+ 1 c+ 1 d+ 1 e+ 1 f+ 1 g+ 1 h+ 1 i+ 1 j+ 1! 2", "a"},
		"what is not kept, whoever has it":          {10, "1 a+ 1 b+ 1 c+ 1 d+ 1 e+ 1 f+ 1 g+ 1 h+ 1 i+ 1 j+ 2 1", "ak"},
		"none that is kept of a fair share":         {5, "1 a+ 2 b+ 3 c+ 4 d+ 5 e+ 6!", ""},
		"one with a use left is kept":               {2, "1 1 a+ a+ a+ a- a- 1", "b"},
		"one without":                               {2, "1 1 a+ a- 1", "a"},
		"none to a use of one that is closed twice": {2, "1 1 ac ac a+ 1", ""},
	} {
		q, all := &queue{}, []*Conn(nil)
		l := Bound(q, tc.maxOpen)
		for step := range strings.FieldsSeq(tc.steps) {
			if address, refused := strings.CutSuffix(step, "!"); address[0] < 'a' {
				came := &conn{from: "127.0.0." + address}
				q.waiting = append(q.waiting, came)
				c, err := l.Accept()
				require.Equal(t, []bool{refused, refused}, []bool{err != nil, came.closed}, name)
				if !refused {
					all = append(all, c.(*Conn))
				}
				continue
			}
			switch c := all[step[0]-'a']; step[1] {
			case 'r':
				_, err := c.Read(make([]byte, 1))
				require.NoError(t, err)
			case 'c':
				_ = c.Close()
			case '+':
				c.Keep(1)
			case '-':
				c.Keep(-1)
			}
		}
		gaveWay := ""
		for i, c := range all {
			if c.Conn.(*conn).closed && !strings.Contains(tc.steps, string(rune('a'+i))+"c") {
				gaveWay += string(rune('a' + i))
			}
		}
		require.Equal(t, tc.givesWay, gaveWay, name)
		require.LessOrEqual(t, len(l.open), tc.maxOpen)
	}
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
