package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// TestOneControlPlane is the facts about several Envoys under one control plane. They
// share three Envoys, and each has a domain of its own.
func TestOneControlPlane(t *testing.T) {
	t.Parallel()
	d, c := newest(t), startControlPlane(t)
	f := startBudgetUpstream(t)
	proxies := make([]*proxy, 3)
	for i := range proxies {
		proxies[i] = c.proxy(t, d, proxyOptions{node: fmt.Sprint("edge-", i), manage: freeAddress(t), upstream: f.URL,
			edit: withoutTimeout})
	}
	t.Run("no connection", func(t *testing.T) { noConnectionWithoutClusterRules(t, c, proxies) })
	t.Run("one limit", func(t *testing.T) { oneLimitOverAllProxies(t, c, proxies) })
	t.Run("fresh keys", func(t *testing.T) { freshKeysOverAllProxies(t, c, proxies, 1000) })
	t.Run("top denied keys", func(t *testing.T) { topCommand(t, c, proxies) })
	t.Run("budgets", func(t *testing.T) { f.overAllProxies(t, c, proxies) })
}

// sendAll sends n requests to each proxy at once, and returns their statuses.
func sendAll(t *testing.T, proxies []*proxy, n int, nth func(proxy, i int) request) [][]int16 {
	statuses := make([][]int16, len(proxies))
	errs := make([]error, len(proxies))
	atOnce(len(proxies), func(i int) {
		statuses[i], errs[i] = proxies[i].load(8).try(n, func(j int) request { return nth(i, j) })
	})
	require.NoError(t, errors.Join(errs...))
	return statuses
}

// clusterRule is a rule of scope cluster, named r, for each user.
func clusterRule(limits, more string) string {
	return "  - {name: r, scope: cluster, on_unavailable: deny, key: [{header: x-user-id}], limits: [" + limits + "]" +
		more + "}\n"
}

const clusterPolicy = "version: 1\nquota: {timeout: 5s}\nrules:\n" // a busy machine answers late

// The limit holds over three Envoys of four workers, for each algorithm and with
// several rules on a request.
func oneLimitOverAllProxies(t *testing.T, c *controlPlane, proxies []*proxy) {
	for name, rules := range map[string]string{
		"fixed window":           clusterRule("1000/"+far, ""),
		"fixed window per key":   clusterRule("1000/"+far, ", algorithm: fixed_window_per_key"),
		"sliding window counter": clusterRule("1000/"+far, ", algorithm: sliding_window_counter"),
		"sliding window log":     clusterRule("500/"+far, ", algorithm: sliding_window_log"),
		"token bucket":           clusterRule("{requests: 1, per: "+far+", burst: 1000}", ", algorithm: token_bucket"),
		"layered":                clusterRule("1000/"+far+", {requests: 1500, per: 365d}", ""),
		"without a lease":        clusterRule("1000/"+far, ", lease: off"),
		"two scopes": clusterRule("1000/"+far, "") +
			"  - {name: local, key: [{header: x-user-id}], limits: [2000/" + far + "]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			want, least := 1000, 1000
			switch name {
			case "sliding window log":
				want, least = 500, 500
			case "token bucket": // of which a lease holds a token back until it ends
				least = 999
			}
			user := "hot " + name
			c.apply(t, clusterPolicy+rules)
			send := func(n int) []int16 {
				return slices.Concat(sendAll(t, proxies, n, func(int, int) request { return request{"/", "x-user-id", user} })...)
			}
			got := send(1000)
			// Units go back that one proxy holds while the others remember a denial for a
			// second: idle ones within 10 s.
			for end := time.Now().Add(12 * time.Second); count(got, allowed) < least && time.Now().Before(end); {
				time.Sleep(200 * time.Millisecond)
				got = append(got, send(100)...)
			}
			require.LessOrEqual(t, count(got, allowed), want)
			require.GreaterOrEqual(t, count(got, allowed), least)
			require.Equal(t, len(got), count(got, allowed)+count(got, denied))
		})
	}
}

// A policy without a cluster rule does not connect to the quota service.
func noConnectionWithoutClusterRules(t *testing.T, c *controlPlane, proxies []*proxy) {
	connections := func(rules string) (n uint64) {
		c.apply(t, clusterPolicy+rules)
		sendAll(t, proxies, 100, func(int, int) request { return request{"/", "x-user-id", "first"} })
		for _, p := range proxies {
			stats, err := p.envoy.Stats(t.Context(), `^cluster\.sluice_quota\.upstream_cx_total$`)
			require.NoError(t, err)
			require.Len(t, stats, 1)
			n += stats["cluster.sluice_quota.upstream_cx_total"]
		}
		return n
	}
	require.Zero(t, connections("  - {name: local, key: [{header: x-user-id}], limits: [1000/"+far+"]}\n"))
	require.NotZero(t, connections(clusterRule("1000/"+far, "")))
}

func freshKeysOverAllProxies(t *testing.T, c *controlPlane, proxies []*proxy, keys int) {
	const times = 3 // on each proxy
	c.apply(t, strings.Replace(clusterPolicy, "version: 1", "version: 1\ndomain: fresh", 1)+clusterRule("1/"+far, ""))
	got := sendAll(t, proxies, keys*times, func(_, i int) request {
		return request{"/", "x-user-id", fmt.Sprint("user-", i/times)}
	})
	passed := perKey(t, slices.Concat(got...), keys, func(i int) int { return i % (keys * times) / times })
	require.Equal(t, slices.Repeat([]int{1}, keys), passed)
}

// TestServeAdmitsFromItsFirstRequestOn: started as README does, with a store in memory that has no
// state, serve has its proxies give their share of what is held until an answer, and says so. A user whose requests
// come as the store begins to grant may be given one more, so no user does that here: see docs/cluster.md.
func TestServeAdmitsFromItsFirstRequestOn(t *testing.T) {
	t.Parallel()
	begun := time.Now() // the store grants nothing for at least 4 s from here
	c := startControlPlane(t)
	shares := strings.Replace(clusterRule("2/1d", ", settle: {}"), "on_unavailable: deny, ", "", 1)
	// A slot that has just ended may be taken for a moment more, one on each worker.
	inFlight := fmt.Sprintf("  - {name: in-flight, scope: cluster, algorithm: concurrency, limits: [%d]}\n", workers)
	c.push(t, clusterPolicy+shares+inFlight)
	p := c.proxy(t, driver{name: "sim"}, proxyOptions{node: "edge"})
	says, ready := sluiceOK(t, "status", "--server", c.url()), answered(c.url()+"/healthz")
	require.True(t, ready || strings.Contains(says, "the quota store is starting: "), says)

	user := 0
	next := func() {
		user++
		var got []int
		for range 3 {
			got = append(got, p.status(t, "/", "x-user-id", fmt.Sprint(user)))
		}
		require.Equal(t, []int{allowed, allowed, denied}, got, "user %d", user)
	}
	for time.Since(begun) < 3*time.Second { // so the last user has a second
		next()
	}
	t.Logf("%d users came while the store was starting", user)
	eventually(t, 20*time.Second, "serve to be ready", func() bool { return answered(c.url() + "/healthz") })
	require.NotContains(t, sluiceOK(t, "status", "--server", c.url()), "starting")
	for range 100 {
		next()
	}
}

// quotaService is a running `sluice quota`.
type quotaService struct {
	*child.Child

	address, http string
	store         string   // URL, or memory
	flags         []string // further ones
}

// startQuota starts a quota service for this test alone, with further flags.
func startQuota(t *testing.T, store string, flags ...string) *quotaService {
	s := &quotaService{address: freeAddress(t), http: freeAddress(t), store: store, flags: flags}
	s.start(t)
	t.Cleanup(func() { end(t, s.Child) })
	return s
}

// start starts the service, also again after a kill: at the same address.
func (s *quotaService) start(t *testing.T) {
	s.begin(t)
	require.NoError(t, s.Until(t.Context(), "answer", func() bool { return answered("http://" + s.http + "/healthz") }))
}

// begin is start that does not wait until its store has started.
func (s *quotaService) begin(t *testing.T) {
	var err error
	args := []string{"quota", "--listen", s.address, "--http", s.http, "--quota-store", s.store}
	s.Child, err = child.Start(exec.Command(built.sluice, append(args, s.flags...)...))
	require.NoError(t, err)
}

// kill ends the service as kill -9 does.
func (s *quotaService) kill() { _ = s.Kill() }

// stop ends the service as an operator does.
func (s *quotaService) stop(t *testing.T) {
	s.signal(t, syscall.SIGTERM)
	<-s.Done()
}

// quotaPair is two quota services on one store, and a gate to both for each of some proxies.
type quotaPair struct {
	services []*quotaService
	gates    []*gate
}

func startPair(t *testing.T, store string, proxies int) *quotaPair {
	p := &quotaPair{services: []*quotaService{startQuota(t, store), startQuota(t, store)}}
	for range proxies {
		p.gates = append(p.gates, newGate(t, p.addresses()...))
	}
	return p
}

func (p *quotaPair) addresses() (all []string) {
	for _, s := range p.services {
		all = append(all, s.address)
	}
	return all
}

func (p *quotaPair) eachGate(do func(g *gate)) {
	for _, g := range p.gates {
		do(g)
	}
}

func (s *quotaService) signal(t *testing.T, signal os.Signal) {
	require.NoError(t, s.Signal(signal))
}
