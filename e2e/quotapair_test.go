//go:build long

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// TestQuotaPair is what operators run: two quota services on one Redis, and three Envoys
// of which each asks both.
func TestQuotaPair(t *testing.T) {
	t.Parallel()
	store := "redis://" + servertest.StartRedis(t, servertest.Redis(t)).Addr()
	pair, c := startPair(t, store, 3), startControlPlane(t, "--quota-store", store)
	d, proxies := newest(t), make([]*proxy, 3)
	for i := range proxies {
		proxies[i] = c.proxy(t, d, proxyOptions{node: fmt.Sprint("edge-", i), quota: pair.gates[i].address(),
			manage: freeAddress(t)})
	}
	t.Run("one limit", func(t *testing.T) { oneLimitOverAllProxies(t, c, proxies) })
	t.Run("fresh keys", func(t *testing.T) { freshKeysOverAllProxies(t, c, proxies, 3000) })
	t.Run("denied by a rule of the proxy", func(t *testing.T) { deniedBesideTheCluster(t, c, proxies) })
	t.Run("pushes while requests run", func(t *testing.T) { pushesFreeSlots(t, c, proxies[0]) })
	for _, s := range pair.services {
		require.Regexp(t, `(?m)^sluice_quota_asks_total\{result="granted"\} [1-9]`, body(t, "http://"+s.http+"/metrics"))
	}
}

// A rule of the proxy that denies leaves the units of the cluster's limit unspent.
func deniedBesideTheCluster(t *testing.T, c *controlPlane, proxies []*proxy) {
	const local = 100
	c.apply(t, clusterPolicy+clusterRule("1000/"+far, ", counter: beside")+
		fmt.Sprintf("  - {name: local, key: [{header: x-user-id}], limits: [%d/%s]}\n", local, far))
	for _, statuses := range sendAll(t, proxies, 3000,
		func(int, int) request { return request{"/", "x-user-id", "beside"} }) {
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

// Requests of a policy that is replaced while they run free their slots, without waiting for
// the end of the hold.
func pushesFreeSlots(t *testing.T, c *controlPlane, p *proxy) {
	apply := func(n int) {
		c.apply(t, clusterPolicy+
			fmt.Sprintf("  - {name: in-flight, scope: cluster, algorithm: concurrency, limits: [%d], hold: 20s}\n", n))
	}
	slow := func(int) request { return request{"/", "x-wait", "500ms"} }
	apply(100)
	eventually(t, 10*time.Second, "slots to be granted", func() bool { return p.load(1).send(t, 1, slow)[0] == allowed })
	for round := range 5 {
		var wg sync.WaitGroup
		wg.Go(func() {
			require.Equal(t, 240, count(p.load(60).send(t, 240, slow), allowed))
		})
		time.Sleep(300 * time.Millisecond)
		apply(101 + round)
		wg.Wait()
		eventually(t, 4*time.Second, "all slots to be free", func() bool {
			return *c.counters(t, "get", "--rule", "in-flight").Quota.Held == 0
		})
	}
}
