package ports_test

import (
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
)

// A free port can be listened on, also again, by whoever names it; who asks for any
// port, or connects from any, is given another one.
func TestFree(t *testing.T) {
	const n = 3
	free, err := ports.Free(n)
	require.NoError(t, err)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(free))), n)
	for _, port := range free {
		for range 2 {
			for _, host := range []string{"127.0.0.1", "127.0.0.2", "0.0.0.0"} {
				listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
				require.NoError(t, err)
				require.NoError(t, listener.Close())
			}
		}
	}
	for _, anyPort := range []string{"127.0.0.1:0", "127.0.0.2:0"} {
		for range 30_000 { // more than there are
			l, err := net.Listen("tcp", anyPort)
			require.NoError(t, err)
			require.NotContains(t, free, l.Addr().(*net.TCPAddr).Port, anyPort)
			require.NoError(t, l.Close())
		}
	}
}
