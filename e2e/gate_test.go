package e2e

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gate is one address behind which several quota services stand. It passes each new
// connection on to the next of them, and does to connections what networks do.
type gate struct {
	listener net.Listener

	mu       sync.Mutex
	services []string
	next     int
	passages map[*passage]struct{}
	held     chan struct{} // closed when bytes may pass again; nil = they may
	losing   bool          // answers get lost
}

// passage is one connection through the gate.
type passage struct {
	proxy, service net.Conn
	mu             sync.Mutex
	said           []byte // the first that the proxy has said
}

// maxSaid is how much of what a proxy says first can be said again.
const maxSaid = 256 << 10

// newGate opens a gate that ends with the test.
func newGate(t *testing.T, services ...string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: l, services: services, passages: map[*passage]struct{}{}}
	t.Cleanup(func() {
		l.Close()
		g.open()
		g.cut()
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

// lead makes new connections lead to these services.
func (g *gate) lead(services ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.services = services
}

// hold keeps back all bytes and new connections until open is called: as a network
// that loses packets and says nothing.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = make(chan struct{})
	}
}

// open ends hold and loseAnswers. What was held back arrives late.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.losing = false
	if g.held != nil {
		close(g.held)
		g.held = nil
	}
}

// loseAnswers drops what services say until open is called.
func (g *gate) loseAnswers() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.losing = true
}

// cut ends all connections, with what is under way on them.
func (g *gate) cut() {
	for _, p := range g.list() {
		p.close()
	}
}

// replay says again to a service, on a connection of its own, what each proxy has said
// first on its connection.
func (g *gate) replay(t *testing.T) {
	for _, p := range g.list() {
		p.mu.Lock()
		said := bytes.Clone(p.said)
		p.mu.Unlock()
		if c := g.dial(); c != nil {
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, err := c.Write(said)
			require.NoError(t, err)
			go func() {
				_, _ = c.Read(make([]byte, 64<<10)) // it has been served
				time.Sleep(100 * time.Millisecond)
				c.Close()
			}()
		}
	}
}

func (g *gate) list() (all []*passage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.passages {
		all = append(all, p)
	}
	return all
}

// dial connects to the next service that takes connections.
func (g *gate) dial() net.Conn {
	g.mu.Lock()
	services, next := g.services, g.next
	g.next++
	g.mu.Unlock()
	for i := range services {
		if c, err := net.DialTimeout("tcp", services[(next+i)%len(services)], time.Second); err == nil {
			return c
		}
	}
	return nil
}

// mayPass waits while the gate is held, and reports whether answers pass.
func (g *gate) mayPass() bool {
	for {
		g.mu.Lock()
		held, losing := g.held, g.losing
		g.mu.Unlock()
		if held == nil {
			return !losing
		}
		<-held
	}
}

func (g *gate) pass(proxy net.Conn) {
	g.mayPass()
	service := g.dial()
	if service == nil {
		reset(proxy)
		return
	}
	p := &passage{proxy: proxy, service: service}
	g.mu.Lock()
	g.passages[p] = struct{}{}
	g.mu.Unlock()
	go func() {
		defer p.close()
		copyWhile(service, proxy, func(b []byte) bool {
			p.note(b)
			g.mayPass()
			return true
		})
	}()
	copyWhile(proxy, service, func([]byte) bool { return g.mayPass() })
	p.close()
	g.mu.Lock()
	delete(g.passages, p)
	g.mu.Unlock()
}

func (p *passage) note(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.said)+len(b) <= maxSaid {
		p.said = append(p.said, b...)
	}
}

func (p *passage) close() {
	reset(p.proxy)
	reset(p.service)
}

// reset ends a connection without a farewell.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// copyWhile copies, leaving out what passes refuses.
func copyWhile(to, from net.Conn, passes func([]byte) bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if !passes(b[:n]) {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}
