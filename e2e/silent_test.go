package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// While the quota service does not answer a proxy, explain and counters say so, whichever
// worker they ask, and what the proxy has counted by itself.
func TestASilentQuotaServiceIsSaid(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t)
	g := newGate(t, c.xds)
	p := c.proxy(t, newest(t), proxyOptions{node: "edge", manage: freeAddress(t), quota: g.address()})
	c.apply(t, "version: 1\n"+managed+"rules:\n  - {name: r, scope: cluster, key: [{header: x-user-id}], limits: [30/"+far+"]}\n")
	get := []string{"counters", "get", "--rule", "r", "--key", "alice", "--server", c.url()}
	explain := []string{"explain", "--header", "x-user-id: alice", "--server", c.url()}
	require.Equal(t, allowed, p.status(t, "/", "x-user-id", "bob"))
	require.Regexp(t, `\nquota service +0 +0 of 30 `, sluiceOK(t, get...))

	g.hold()
	g.cut()
	require.Equal(t, allowed, p.status(t, "/", "x-user-id", "alice"))
	eventually(t, 10*time.Second, "the proxy to know", func() bool {
		_, _, exit := sluice(t, get...)
		return exit == 1
	})
	for range 2 * workers {
		require.Regexp(t, `\n    limit     30 per .*: 1 used, 29 left.*\n    lease     the proxy holds no units; the quota service does not answer: on_unavailable decides, which is local`,
			sluiceOK(t, explain...))
		out, _, exit := sluice(t, get...)
		require.Equal(t, 1, exit)
		require.Regexp(t, `\nedge +holds 0; the quota service does not answer: .* +1 of 30 per `, out)
	}

	g.open()
	eventually(t, 30*time.Second, "the service to be asked again", func() bool {
		_, _, exit := sluice(t, get...)
		return exit == 0
	})
}
