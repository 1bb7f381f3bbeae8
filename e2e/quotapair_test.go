//go:build long

package e2e

import (
	"flag"
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
	d, f := newest(t), startBudgetUpstream(t)
	proxies := make([]*proxy, 3)
	for i := range proxies {
		proxies[i] = c.proxy(t, d, proxyOptions{node: fmt.Sprint("edge-", i), quota: pair.gates[i].address(),
			manage: freeAddress(t), upstream: f.URL, edit: withoutTimeout})
	}
	t.Run("one limit", func(t *testing.T) { oneLimitOverAllProxies(t, c, proxies) })
	t.Run("fresh keys", func(t *testing.T) { freshKeysOverAllProxies(t, c, proxies, 3000) })
	t.Run("denied by a rule of the proxy", func(t *testing.T) { deniedBesideTheCluster(t, c, proxies) })
	t.Run("pushes while requests run", func(t *testing.T) { pushesFreeSlots(t, c, proxies[0]) })
	t.Run("both services have granted", func(t *testing.T) {
		for _, s := range pair.services {
			require.Regexp(t, `(?m)^sluice_quota_asks_total\{result="granted"\} [1-9]`, body(t, "http://"+s.http+"/metrics"))
		}
	})
	t.Run("budgets", func(t *testing.T) {
		f.overAllProxies(t, c, proxies)
		f.throughFaults(t, pair)
		f.paidBack(t)
		f.requireMetrics(t)
	})
}

var budgetRounds = flag.Int("budget-rounds", 1, "how often quota services die and are replaced under budgets")

// budgetFault is what becomes of quota services and their messages: while requests ask, while
// answers are on their way, after these, and once they are charged.
type budgetFault struct {
	name                         string
	asking, amid, after, charged func()
}

func budgetFaults(t *testing.T, pair *quotaPair) []budgetFault {
	start := func(services ...*quotaService) {
		for _, s := range services {
			s.start(t)
		}
	}
	first, both := pair.services[0], pair.services
	kill := func() {
		first.kill()
		both[1].kill()
	}
	return []budgetFault{
		{name: "grants-are-lost", amid: func() { pair.eachGate((*gate).loseAnswers) }, after: func() {
			for range 5 { // what was reported is noted, and reported again on the next stream
				time.Sleep(200 * time.Millisecond)
				pair.eachGate((*gate).cut)
			}
			pair.eachGate((*gate).open)
			pair.eachGate((*gate).cut)
		}},
		{name: "messages-are-replayed", amid: func() { pair.eachGate(func(g *gate) { g.replay(t) }) }},
		{name: "one-is-dead", amid: first.kill, charged: func() { start(first) }},
		{name: "one-dies-amid-asks", asking: func() {
			first.kill()
			start(first)
		}},
		{name: "both-die", amid: func() {
			kill()
			start(both...)
		}},
		{name: "both-are-dead", amid: kill, after: func() { start(both...) }},
		{name: "one-is-replaced", amid: func() {
			third := startQuota(t, first.store)
			pair.eachGate(func(g *gate) { g.lead(both[1].address, third.address) })
			first.stop(t)
		}, after: func() {
			pair.eachGate(func(g *gate) { g.lead(pair.addresses()...) })
			start(first)
		}},
	}
}

// throughFaults: whatever becomes of quota services, each answer is charged, once.
func (f *budgetFleet) throughFaults(t *testing.T, pair *quotaPair) {
	for _, fault := range budgetFaults(t, pair) {
		for i := range 2 * *budgetRounds {
			b := f.budget([]string{"bounded", "low"}[i%2], fmt.Sprint(fault.name, "-", i))
			first, second := b.through(t, &fault), 0
			eventually(t, 20*time.Second, "requests to be admitted again", func() bool {
				second = b.send(t, b.mixed(), func() {})
				return second > 0
			})
			b.requireCharged(t)
			t.Logf("%s: %d streams, then %d, were charged %d", b.tenant, first, second, b.charged)
		}
	}
}

// through sends calls at once while the fault happens. It returns how many were admitted.
func (b *budget) through(t *testing.T, fault *budgetFault) (admitted int) {
	do := func(then func()) {
		if then != nil {
			then()
		}
	}
	var asking sync.WaitGroup
	asking.Go(func() { do(fault.asking) })
	admitted = b.send(t, b.mixed(), func() {
		asking.Wait()
		do(fault.amid)
	})
	do(fault.after)
	b.requireCharged(t)
	do(fault.charged)
	return admitted
}

// paidBack: what an answer takes beyond the limit is paid by the next windows.
func (f *budgetFleet) paidBack(t *testing.T) {
	b := f.budget("paid", "paid")
	over := b.call(whole)
	over.budgetAnswer = f.shapes[0].with(100, 0, 0, 4240, 0)
	over.sent = 0
	sent := time.Now()
	require.Equal(t, 1, b.send(t, []*budgetCall{over}, func() {}))
	free := sent.Truncate(paidWindow).Add(time.Duration(over.cost/paidLimit) * paidWindow)
	eventually(t, 10*time.Second, "the windows to have paid", func() bool {
		return b.send(t, []*budgetCall{b.call(whole)}, func() {}) > 0
	})
	t.Logf("an answer of %d units blocked %d units in %s for %s", over.cost, paidLimit, paidWindow, time.Since(sent))
	require.False(t, time.Now().Before(free), "the excess is not forgiven")
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
