package envoy_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// TestClientsDoNotLockOperatorsOut holds every connection that clients may have:
// the admin interface and the management listener still answer.
func TestClientsDoNotLockOperatorsOut(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, ctx context.Context, binary string) {
		bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
			Plugin:   envoy.Plugin{Wasm: buildtest.Filter(t)},
			Listen:   "127.0.0.1:0",
			Upstream: unusedAddress(t),
			Admin:    "127.0.0.1:0",
			Manage:   "127.0.0.1:0",
		})
		require.NoError(t, err)
		require.Contains(t, string(bootstrap), "connections: 50000\n")
		p := startBootstrap(t, ctx, binary,
			bytes.Replace(bootstrap, []byte("connections: 50000\n"), []byte("connections: 3\n"), 1))
		ingress, manage := listener(t, ctx, p, envoy.ListenerName), listener(t, ctx, p, "manage")
		dial := func() net.Conn {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(ingress, "http://"))
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			_, err = c.Write([]byte("GET / HTTP/1.1\r\nhost: a\r\n\r\n"))
			require.NoError(t, err)
			return c
		}
		answered := func(c net.Conn) bool {
			n, _ := c.Read(make([]byte, 1))
			return n == 1
		}
		for range 3 {
			require.True(t, answered(dial()))
		}
		require.False(t, answered(dial()), "there are three already")
		require.Equal(t, http.StatusNotFound, ask(t, ctx, manage))
		require.Equal(t, http.StatusOK, ask(t, ctx, p.Admin()+"/stats/prometheus")) // by a new connection
	})
}
