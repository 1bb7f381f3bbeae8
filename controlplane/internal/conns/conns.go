// Package conns bounds the connections of a listener, so that idle connections can
// neither take all file descriptors of a server nor keep others out.
//
// Its invariant: a listener never has more connections open than its bound, and
// it accepts the next one at once. Where there is no room, it closes one: first
// those that are not kept, of these the ones of the address with the most
// connections (see Origin), and of these the one that was silent for longest. A
// kept connection gives way only to an address without kept connections, and only
// where its own address has more than a fifth of the room. Otherwise the new
// connection is closed.
//
// The package knows no protocol and must never import a server.
package conns

import (
	"cmp"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// Listener bounds another listener. Make one with Bound.
type Listener struct {
	net.Listener
	maxOpen int

	mu   sync.Mutex
	open map[*Conn]struct{}
	of   map[string]int // open ones by address
	kept map[string]int // of these, the kept ones
}

// Bound returns a listener that has at most maxOpen connections open.
func Bound(l net.Listener, maxOpen int) *Listener {
	return &Listener{
		Listener: l, maxOpen: maxOpen, open: map[*Conn]struct{}{}, of: map[string]int{}, kept: map[string]int{},
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: accepted, listener: l, address: Origin(accepted.RemoteAddr().String())}
		c.heard.Store(time.Now().UnixNano())
		if l.admit(c) {
			return c, nil
		}
		_ = accepted.Close()
	}
}

// Origin is what counts as one address: see origin.Of.
func Origin(peer string) string { return cmp.Or(origin.Of(peer), peer) }

// admit makes room for a connection, if it can.
func (l *Listener) admit(c *Conn) bool {
	l.mu.Lock()
	if len(l.open) < l.maxOpen {
		l.add(c)
		l.mu.Unlock()
		return true
	}
	v := l.victim(c)
	if v == nil {
		l.mu.Unlock()
		return false
	}
	l.remove(v)
	l.add(c)
	l.mu.Unlock()
	_ = v.Conn.Close() // the server finds out when it reads or writes
	return true
}

func (l *Listener) add(c *Conn) {
	l.open[c] = struct{}{}
	l.of[c.address]++
}

func (l *Listener) remove(c *Conn) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	take(l.of, c.address)
	if c.kept() {
		take(l.kept, c.address)
	}
}

func take(counts map[string]int, address string) {
	if counts[address]--; counts[address] == 0 {
		delete(counts, address)
	}
}

// victim chooses the connection that gives way, if any.
func (l *Listener) victim(c *Conn) *Conn {
	var v *Conn
	for o := range l.open {
		if v == nil || l.before(o, v) < 0 {
			v = o
		}
	}
	if v != nil && v.kept() && (l.kept[c.address] > 0 || l.kept[v.address] <= l.maxOpen/5) {
		return nil
	}
	return v
}

// before orders connections: the first one gives way first.
func (l *Listener) before(a, b *Conn) int {
	if a.kept() != b.kept() {
		if b.kept() {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(l.of[b.address], l.of[a.address]), cmp.Compare(a.heard.Load(), b.heard.Load()))
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	listener *Listener
	address  string
	heard    atomic.Int64 // when something was read last, Unix time in nanoseconds
	uses     int          // guarded by the listener's mu
}

// Keep adds to the uses of the connection, or takes from them. While it has uses,
// it is kept.
func (c *Conn) Keep(uses int) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	before := c.kept()
	c.uses += uses
	if _, open := l.open[c]; !open || c.kept() == before {
		return
	}
	if before {
		take(l.kept, c.address)
	} else {
		l.kept[c.address]++
	}
}

func (c *Conn) kept() bool { return c.uses > 0 }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.remove(c)
	return err
}
