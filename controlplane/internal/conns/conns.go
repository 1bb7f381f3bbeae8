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
	"maps"
	"net"
	"slices"
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
}

// Bound returns a listener that has at most maxOpen connections open.
func Bound(l net.Listener, maxOpen int) *Listener {
	return &Listener{Listener: l, maxOpen: maxOpen, open: map[*Conn]struct{}{}}
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
	defer l.mu.Unlock()
	if len(l.open) == l.maxOpen {
		v := l.victim(c)
		if v == nil {
			return false
		}
		delete(l.open, v)
		defer v.Conn.Close() // the server finds out when it reads or writes
	}
	l.open[c] = struct{}{}
	return true
}

// victim chooses the connection that gives way, if any.
func (l *Listener) victim(c *Conn) (v *Conn) {
	of, kept := map[string]int{}, map[string]int{} // by address: open ones, and of these the kept
	for o := range l.open {
		of[o.address]++
		if o.uses > 0 {
			kept[o.address]++
		}
	}
	before := func(a, b *Conn) int {
		return cmp.Or(cmp.Compare(min(a.uses, 1), min(b.uses, 1)),
			cmp.Compare(of[b.address], of[a.address]), cmp.Compare(a.heard.Load(), b.heard.Load()))
	}
	v = slices.MinFunc(slices.Collect(maps.Keys(l.open)), before)
	if v.uses > 0 && (kept[c.address] > 0 || kept[v.address] <= l.maxOpen/5) {
		return nil
	}
	return v
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
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.uses += uses
}

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
	delete(c.listener.open, c)
	return err
}
