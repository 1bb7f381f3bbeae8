package redisstore_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// between passes bytes on between a store and its server.
type between struct {
	listener net.Listener
	server   atomic.Pointer[string] // that new connections lead to
	cuts     atomic.Int32
	dials    atomic.Int32
}

func standBetween(t *testing.T, server string) *between {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &between{listener: l}
	b.repoint(server)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			b.dials.Add(1)
			go b.pass(client)
		}
	}()
	return b
}

func (b *between) url() string { return "redis://" + b.listener.Addr().String() }

func (b *between) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", *b.server.Load())
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	cuts, buffer := b.cuts.Load(), make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil || b.cuts.Load() != cuts {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// repoint leads new connections to another server, as a Service does whose endpoint has changed.
func (b *between) repoint(server string) { b.server.Store(&server) }

// cut drops the next answer on each connection that there is, and closes it.
func (b *between) cut() { b.cuts.Add(1) }
