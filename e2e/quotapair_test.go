//go:build long

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
)

// TestQuotaPair is what operators run: two quota services on one Redis, and three Envoys
// of which each asks both.
func TestQuotaPair(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.Start(t, redistest.Redis(t)[0]).Addr()
	services := []*quotaService{startQuota(t, store), startQuota(t, store)}
	c := &controlPlane{
		data: filepath.Join(t.TempDir(), "data"), xds: freeAddress(t), http: freeAddress(t), flags: []string{"--quota-store", store},
	}
	c.start(t)
	t.Cleanup(func() { c.kill(t) })
	d, proxies := newest(t), make([]*proxy, 3)
	for i := range proxies {
		node := fmt.Sprint("edge-", i)
		both := newGate(t, services[0].address, services[1].address)
		proxies[i] = d.start(t, proxyOptions{node: node, xds: c.xds, quota: both.address(), manage: freeAddress(t)})
		c.awaitConnected(t, node)
	}
	t.Run("one limit", func(t *testing.T) { oneLimitOverAllProxies(t, c, proxies, 9000) })
	t.Run("fresh keys", func(t *testing.T) { freshKeysOverAllProxies(t, c, proxies, 3000) })
	t.Run("denied by a rule of the proxy", func(t *testing.T) { deniedBesideTheCluster(t, c, proxies) })
	for _, s := range services {
		require.Regexp(t, `(?m)^sluice_quota_asks_total\{result="granted"\} [1-9]`, body(t, "http://"+s.http+"/metrics"))
	}
}

// A rule of the proxy that denies leaves the units of the cluster's limit unspent.
func deniedBesideTheCluster(t *testing.T, c *controlPlane, proxies []*proxy) {
	t.Helper()
	const local = 100
	c.apply(t, clusterPolicy+clusterRule("1000/"+far, ", counter: beside")+
		fmt.Sprintf("  - {name: local, key: [{header: x-user-id}], limits: [%d/%s]}\n", local, far))
	for _, statuses := range sendAll(t, proxies, 3000, func(int, int) request { return request{"/", "x-user-id", "beside"} }) {
		require.Equal(t, local, count(statuses, allowed))
		require.Equal(t, len(statuses)-local, count(statuses, denied))
	}
	want := uint32(local * len(proxies))
	var used uint32
	eventually(t, 20*time.Second, "units that nobody spent to go back", func() bool {
		r := c.counters(t, "get", "--rule", "r", "--key", "beside")
		used = r.Quota.Windows[0].Used
		require.GreaterOrEqual(t, used, want)
		return used == want
	})
}
