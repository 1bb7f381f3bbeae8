//go:build long

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
)

const answersOverAll = `
version: 1
quota: {timeout: 2s}
rules:
  - name: failed-logins
    scope: cluster
    match: {paths: [/login]}
    key: [{header: x-user-id}]
    limits: [5/1d]
    settle: {when: {status: [401, 403]}}
    hold: 10s
  - name: in-flight
    scope: cluster
    match: {paths: [/flight]}
    algorithm: concurrency
    limits: [10]
    hold: 10s
    linger: 0s
`

// runner is an upstream that counts what runs.
type runner struct {
	*httptest.Server
	running, most, reached, spentMs atomic.Int64
}

func startRunner(t *testing.T) *runner {
	u := &runner{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := u.running.Add(1)
		defer u.running.Add(-1)
		for most := u.most.Load(); n > most && !u.most.CompareAndSwap(most, n); most = u.most.Load() {
		}
		u.reached.Add(1)
		took := time.Duration(50+rand.IntN(451)) * time.Millisecond
		if r.URL.Path == "/login" {
			time.Sleep(30 * time.Millisecond)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/flight" {
			time.Sleep(took)
			u.spentMs.Add(took.Milliseconds())
		}
	}))
	t.Cleanup(u.Close)
	return u
}

// TestAnswersOverAllProxies: three Envoys of four workers and a pair of quota services on one
// Redis hold to five failed logins and ten requests in flight.
func TestAnswersOverAllProxies(t *testing.T) {
	store := "redis://" + redistest.Start(t, redistest.Redis(t)[0]).Addr()
	services := []*quotaService{startQuota(t, store), startQuota(t, store)}
	u, d := startRunner(t), newest(t)
	var proxies []*proxy
	var gates []*gate
	for range 3 {
		both := newGate(t, services[0].address, services[1].address)
		gates = append(gates, both)
		proxies = append(proxies, d.start(t, proxyOptions{policy: answersOverAll, quota: both.address(), upstream: u.URL}))
	}
	require.Equal(t, []int16{http.StatusTooManyRequests}, proxies[0].load(1).send(t, 1, func(int) request { return request{"/login", "x-user-id", "first"} }),
		"a new store grants nothing before each process has stated what it holds")
	time.Sleep(5500 * time.Millisecond) // an eighth of hold, and 4 s

	u.reached.Store(0)
	for _, user := range []string{"a", "b"} {
		statuses := sendAll(t, proxies, 300, func(int, int) request { return request{"/login", "x-user-id", user} })
		failed := 0
		for _, of := range statuses {
			failed += count(of, http.StatusUnauthorized)
			require.Len(t, of, count(of, http.StatusUnauthorized)+count(of, http.StatusTooManyRequests))
		}
		require.Equal(t, 5, failed)
	}
	require.EqualValues(t, 10, u.reached.Load())

	for _, moving := range []bool{false, true} {
		t.Run(fmt.Sprint("moving demand ", moving), func(t *testing.T) { u.fly(t, proxies, moving, 0.9, func() {}) })
	}
	t.Run("a service is killed and connections end", func(t *testing.T) {
		u.fly(t, proxies, false, 0.8, func() {
			time.Sleep(3 * time.Second)
			services[0].kill()
			time.Sleep(2 * time.Second)
			services[0].start(t)
			gates[1].cut()
		})
	})
}

// TestPushesOverAllProxies: requests of a policy that is replaced while they run free their
// slots, without waiting for the end of the hold.
func TestPushesOverAllProxies(t *testing.T) {
	u := startRunner(t)
	c := startControlPlane(t)
	p := newest(t).start(t, proxyOptions{node: "edge", xds: c.xds, upstream: u.URL, manage: freeAddress(t)})
	c.awaitConnected(t, "edge")
	policy := func(n int) string {
		return fmt.Sprintf("version: 1\nquota: {timeout: 2s}\nrules:\n  - {name: in-flight, scope: cluster, match: {paths: [/flight]}, algorithm: concurrency, limits: [%d], hold: 20s}\n", n)
	}
	c.apply(t, policy(100))
	eventually(t, 10*time.Second, "the new store to grant", func() bool {
		return p.load(1).send(t, 1, func(int) request { return request{"/flight", "a", "b"} })[0] == http.StatusOK
	})
	for round := range 5 {
		var wg sync.WaitGroup
		wg.Go(func() {
			statuses := p.load(60).send(t, 240, func(int) request { return request{"/flight", "a", "b"} })
			require.Equal(t, 240, count(statuses, http.StatusOK))
		})
		time.Sleep(300 * time.Millisecond)
		c.apply(t, policy(101+round))
		wg.Wait()
		eventually(t, 4*time.Second, "all slots to be free", func() bool {
			return *c.counters(t, "get", "--rule", "in-flight").Quota.Held == 0
		})
	}
}

// fly has sixty clients ask for slots while something happens.
func (u *runner) fly(t *testing.T, proxies []*proxy, moving bool, least float64, happens func()) {
	t.Helper()
	const lasts, warm = 12 * time.Second, 2 * time.Second
	u.most.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var failures atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range 60 {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		wg.Go(func() {
			for ctx.Err() == nil {
				to := i
				if moving {
					to = int(time.Since(begin) / time.Second)
				}
				r, err := client.Get("http://" + proxies[to%len(proxies)].address + "/flight")
				if err != nil {
					failures.Add(1)
					continue
				}
				r.Body.Close()
				if r.StatusCode == http.StatusTooManyRequests {
					time.Sleep(time.Duration(20+rand.IntN(40)) * time.Millisecond)
				} else if r.StatusCode != http.StatusOK {
					failures.Add(1)
				}
			}
		})
	}
	var before int64
	wg.Go(func() {
		time.Sleep(warm)
		before = u.spentMs.Load()
	})
	wg.Go(happens)
	<-ctx.Done()
	spent := u.spentMs.Load() - before
	wg.Wait()
	share := float64(spent) / float64((lasts - warm).Milliseconds()) / 10
	t.Logf("%.3f of the slots used, %d at once at most", share, u.most.Load())
	require.LessOrEqual(t, u.most.Load(), int64(10))
	require.GreaterOrEqual(t, share, least)
	require.Zero(t, failures.Load())
}
