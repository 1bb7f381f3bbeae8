package redisstore_test

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// between passes bytes on from a store to its server, and notes what the store sends.
type between struct {
	listener net.Listener
	server   string
	cuts     atomic.Int32

	mu   sync.Mutex
	sent bytes.Buffer
}

func standBetween(t *testing.T, server string) *between {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &between{listener: l, server: server}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go b.pass(client)
		}
	}()
	return b
}

func (b *between) url() string { return "redis://" + b.listener.Addr().String() }

func (b *between) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", b.server)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		copyTo(server, client, func(p []byte) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.sent.Write(p)
			return true
		})
	}()
	cuts := b.cuts.Load()
	copyTo(client, server, func([]byte) bool { return b.cuts.Load() == cuts })
}

// cut drops the next answer on each connection that there is, and closes it.
func (b *between) cut() { b.cuts.Add(1) }

// copyTo copies while ok holds.
func copyTo(to, from net.Conn, ok func([]byte) bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !ok(buffer[:n]) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// times is how often the store has sent the text.
func (b *between) times(text []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.sent.Bytes(), text)
}
