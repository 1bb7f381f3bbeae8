package proxy

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A connection that is kept alive gives way as soon as its response is sent, the one
// that has waited longest first.
func TestKeptAliveConnectionsGiveWay(t *testing.T) {
	turned := 0
	c := newCrowd(nil, 2, 0, func() { turned++ })
	dial := func() net.Conn {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
		return server
	}
	closed := func(conn net.Conn) bool { return conn.SetDeadline(time.Time{}) != nil }
	first, second := dial(), dial()
	for _, conn := range []net.Conn{first, second} {
		require.True(t, c.admit(conn))
		c.follow(conn, http.StateActive)
	}
	require.False(t, c.admit(dial()), "both are busy")

	c.follow(second, http.StateIdle)
	c.follow(first, http.StateIdle)
	require.True(t, c.admit(dial()))
	require.True(t, closed(second))
	require.False(t, closed(first))
	c.follow(second, http.StateClosed)
	require.True(t, c.admit(dial()))
	require.True(t, closed(first))
	require.Equal(t, 3, turned)
}
