package proxy

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

// crowd bounds the connections of a listener. A newcomer that is one too many
// takes the place of the connection that has waited longest for a request; where
// all are busy, it is closed.
type crowd struct {
	net.Listener
	max      int
	patience time.Duration // of a stalling connection
	turned   func()        // counts those that are closed for want of a place

	mu   sync.Mutex
	all  map[net.Conn]*list.Element // nil while busy
	idle list.List                  // of net.Conn, longest first
}

func newCrowd(l net.Listener, limit int, patience time.Duration, turned func()) *crowd {
	return &crowd{Listener: l, max: limit, patience: patience, turned: turned, all: map[net.Conn]*list.Element{}}
}

func (c *crowd) Accept() (net.Conn, error) {
	for {
		accepted, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &stalling{Conn: accepted, patience: c.patience}
		if c.admit(conn) {
			return conn, nil
		}
		_ = accepted.Close()
	}
}

func (c *crowd) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= c.max {
		c.turned()
		longest := c.idle.Front()
		if longest == nil {
			return false
		}
		evicted := longest.Value.(net.Conn)
		c.forget(evicted)
		_ = evicted.Close()
	}
	c.all[conn] = c.idle.PushBack(conn)
	return true
}

func (c *crowd) forget(conn net.Conn) {
	if at := c.all[conn]; at != nil {
		c.idle.Remove(at)
	}
	delete(c.all, conn)
}

// follow is the server's ConnState.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.all[conn]
	switch {
	case !known: // it had to make room
	case state == http.StateClosed || state == http.StateHijacked:
		c.forget(conn)
	case state == http.StateActive && at != nil:
		c.idle.Remove(at)
		c.all[conn] = nil
	case state == http.StateIdle && at == nil:
		c.all[conn] = c.idle.PushBack(conn)
	}
}
