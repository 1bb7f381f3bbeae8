// Package listener bounds what connects to a server.
//
// Its invariant: connections that are not let in have at most half of a listener's places,
// and fewer where others have taken the rest; the oldest of them is closed for the next one.
// So they keep no proxy and no caller out. Once proxies and callers are let in, the number of
// places bounds them, and the options of gRPC (see ServerOptions) and of net/http.
//
// The package knows no service and must never import one.
package listener

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
)

// perSecond is how many connections a listener accepts in a second: a handshake with TLS
// takes the processor for about a millisecond.
const perSecond = 1000

// Listener has a number of places for connections, and accepts the next one when one of
// them is free. Make one with Bound.
type Listener struct {
	net.Listener
	rate   *rate.Limiter
	places int

	mu           sync.Mutex
	open         int        // connections, let in or not
	newcomers    *list.List // of *Conn that are not let in, the oldest first
	maxNewcomers int
}

// Bound returns a listener with so many places.
func Bound(l net.Listener, places int) *Listener {
	return &Listener{
		Listener: netutil.LimitListener(l, places), rate: rate.NewLimiter(perSecond, perSecond), places: places,
		newcomers: list.New(), maxNewcomers: max(places/2, 1),
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_ = l.rate.Wait(context.Background()) // it fails only where one is more than the burst
	c := &Conn{Conn: accepted, listener: l}
	if oldest := l.add(c); oldest != nil {
		_ = oldest.Close() // its server finds out when it reads or writes
	}
	return c, nil
}

// add adds a newcomer, and returns the oldest other one if there are too many now, or no place
// is free for the next.
func (l *Listener) add(c *Conn) (oldest *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	c.place = l.newcomers.PushBack(c)
	first := l.newcomers.Front().Value.(*Conn)
	if first == c || l.newcomers.Len() <= l.maxNewcomers && l.open < l.places {
		return nil
	}
	return first
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	listener *Listener

	// The listener's mu guards the rest.
	place  *list.Element // among the newcomers
	closed bool
}

// LetIn keeps the connection: its server knows who is at the other end.
func (c *Conn) LetIn() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.newcomers.Remove(c.place) // does nothing the second time
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// leave forgets the connection.
func (c *Conn) leave() {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newcomers.Remove(c.place)
	if !c.closed {
		c.closed = true
		l.open--
	}
}

// letIn lets in the connection of a Listener that another one is made of, if it is one.
func letIn(conn net.Conn) {
	for {
		switch c := conn.(type) {
		case *Conn:
			c.LetIn()
			return
		case interface{ NetConn() net.Conn }: // TLS
			conn = c.NetConn()
		default:
			return
		}
	}
}

type connKey struct{}

// Context is for http.Server.ConnContext. LetIn does nothing for a server without it.
func Context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// LetIn keeps the connection that a request came on: its caller is known.
func LetIn(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		letIn(c)
	}
}

// Places are how many connections each of a server's listeners has.
type Places struct{ Proxies, HTTP int }

const (
	// reserve is how many files stay free for the store, for files that are read again,
	// and for connections that the process makes.
	reserve = 24
	// minPlaces is how many connections a listener needs at least.
	minPlaces = 8
	// maxProxies and maxHTTP bound memory where files are plenty: a connection takes up
	// to 100 KB.
	maxProxies = 10_000
	maxHTTP    = 1_000
)

// PlacesOfProcess divides the files that this process may open: a quarter for HTTP, the
// rest for proxies.
func PlacesOfProcess() (Places, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return Places{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	return placesOf(limit.Cur)
}

func placesOf(files uint64) (Places, error) {
	const atLeast = reserve + 4*minPlaces
	if files < atLeast {
		return Places{}, fmt.Errorf("this process may open %d files, it needs %d: raise ulimit -n", files, atLeast)
	}
	n := int(min(files, 1<<20)) - reserve
	return Places{Proxies: min(n-n/4, maxProxies), HTTP: min(n/4, maxHTTP)}, nil
}
