//go:build long

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
  - {name: in-flight, scope: cluster, match: {paths: [/flight]}, on_unavailable: deny, algorithm: concurrency, limits: [10], hold: 10s, linger: 0s}
  - {name: cost, scope: cluster, match: {paths: [/flight]}, on_unavailable: deny, limits: [1000000/366d], cost: 5, settle: {to: {header: x-cost}}, hold: 10s}
  - {name: in-flight-here, scope: cluster, match: {paths: [/here]}, on_unavailable: local, algorithm: concurrency, limits: [10], hold: 10s, linger: 0s}
  - {name: cost-here, scope: cluster, match: {paths: [/here]}, on_unavailable: local, limits: [1000000/366d], cost: 5, settle: {to: {header: x-cost}}, hold: 10s}
`

// runner is an upstream that counts what runs, and what its answers cost.
type runner struct {
	*httptest.Server
	failed       atomic.Int64
	flight, here lane
}

// lane is what goes to one path of a runner.
type lane struct {
	path, slots, tokens string // and its rules
	costs               atomic.Int64

	mu            sync.Mutex
	running, most int
	busy          time.Duration // of all slots together
	changed       time.Time
}

// change counts a request that begins or ends, or none, and returns for how long slots have
// been used.
func (l *lane) change(by int) (busy time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.busy += time.Duration(l.running) * now.Sub(l.changed)
	l.running, l.changed = l.running+by, now
	l.most = max(l.most, l.running)
	return l.busy
}

// takeMost returns how many ran at once since the last call.
func (l *lane) takeMost() (most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	most, l.most = l.most, l.running
	return most
}

func startRunner(t *testing.T) *runner {
	u := &runner{}
	u.flight.path, u.flight.slots, u.flight.tokens = "/flight", "in-flight", "cost"
	u.here.path, u.here.slots, u.here.tokens = "/here", "in-flight-here", "cost-here"
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *runner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/login":
		u.failed.Add(1)
		time.Sleep(30 * time.Millisecond)
		w.WriteHeader(http.StatusUnauthorized)
	case u.flight.path:
		u.flight.answer(w, r)
	case u.here.path:
		u.here.answer(w, r)
	}
}

// answer takes 50 to 500 ms, one of sixteen 3 s, and costs 1 to 5.
func (l *lane) answer(w http.ResponseWriter, r *http.Request) {
	l.change(1)
	defer l.change(-1)
	took := time.Duration(50+rand.IntN(451)) * time.Millisecond
	switch {
	case r.Header.Get("x-longest") != "":
		took = 500 * time.Millisecond
	case rand.IntN(16) == 0:
		took = 3 * time.Second
	}
	time.Sleep(took)
	cost := 1 + rand.IntN(5)
	l.costs.Add(int64(cost))
	w.Header().Set("x-cost", strconv.Itoa(cost))
}

// answersIdle is how long Envoy leaves a stream be that a trap has left paused: longer than an
// Envoy is stopped.
const answersIdle = 14 * time.Second

// answersFleet is three Envoys of four workers, which ask a pair of quota services on one
// Redis that loses nothing when it is killed.
type answersFleet struct {
	*runner
	store    *redistest.Server
	services []*quotaService
	control  *controlPlane
	gates    []*gate
	proxies  []*proxy
	lost     map[string]int64 // units charged for answers that nobody has seen, by rule
}

func startAnswersFleet(t *testing.T, d driver, wasm string) *answersFleet {
	t.Helper()
	f := &answersFleet{runner: startRunner(t), store: redistest.Start(t, redistest.Redis(t)[0], "--appendonly", "yes"), lost: map[string]int64{}}
	url := "redis://" + f.store.Addr()
	f.services = []*quotaService{startQuota(t, url), startQuota(t, url)}
	f.control = &controlPlane{data: filepath.Join(t.TempDir(), "data"), xds: freeAddress(t), http: freeAddress(t), flags: []string{"--quota-store", url}}
	f.control.start(t)
	t.Cleanup(func() { f.control.kill(t) })
	f.control.apply(t, answersOverAll)
	for range 3 {
		both := newGate(t, f.services[0].address, f.services[1].address)
		f.gates = append(f.gates, both)
		f.proxies = append(f.proxies, d.start(t, proxyOptions{policy: answersOverAll, quota: both.address(), upstream: f.URL, wasm: wasm, edit: idleAfter(answersIdle)}))
	}
	for _, path := range []string{"/login", "/flight", "/here"} {
		require.Equal(t, denied, f.proxies[0].status(t, path, "x-user-id", "first"), "a new store grants nothing before each process has stated what it holds")
	}
	time.Sleep(5500 * time.Millisecond) // an eighth of hold, and 4 s
	return f
}

// mishap is what happens to a fleet under load, and what may come of it.
type mishap struct {
	name   string
	moving bool          // demand
	here   bool          // half of the clients ask where a proxy that is cut off has its share
	lasts  time.Duration // of the load
	judged time.Duration // of it; the part of the slots that is used in the rest is
	least  float64       // at least
	over   int           // requests at the upstream at once, beyond the limit
	lost   int64         // units charged for answers that nobody has seen
	may    []int         // be statuses, beside 200 and 429
	happen func(t *testing.T, f *answersFleet)
}

var mishaps = []mishap{
	{name: "even demand", lasts: 8 * time.Second, judged: 2 * time.Second, least: 0.9},
	{name: "moving demand", moving: true, lasts: 8 * time.Second, judged: 2 * time.Second, least: 0.9},
	{name: "a service is killed and connections end", lasts: 10 * time.Second, judged: 2 * time.Second, least: 0.8, happen: func(t *testing.T, f *answersFleet) {
		f.services[0].kill()
		time.Sleep(2 * time.Second)
		f.services[0].start(t)
		f.gates[1].cut()
	}},
}

// TestAnswersOverAllProxies: three Envoys of four workers and a pair of quota services on one
// Redis hold to five failed logins and ten requests in flight, and each answer is charged once.
func TestAnswersOverAllProxies(t *testing.T) {
	inTurn(t, func(t *testing.T, d driver) { // else they take each other's processor
		f := startAnswersFleet(t, d, "")
		for _, user := range []string{"a", "b"} {
			failed := 0
			for _, of := range sendAll(t, f.proxies, 300, func(int, int) request { return request{"/login", "x-user-id", user} }) {
				failed += count(of, http.StatusUnauthorized)
				require.Len(t, of, count(of, http.StatusUnauthorized)+count(of, http.StatusTooManyRequests))
			}
			require.Equal(t, 5, failed)
		}
		require.EqualValues(t, 10, f.failed.Load())
		for _, m := range mishaps {
			t.Run(m.name, func(t *testing.T) { f.fly(t, &m) })
		}
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
func (f *answersFleet) fly(t *testing.T, m *mishap) {
	t.Helper()
	lanes := []*lane{&f.flight}
	if m.here {
		lanes = append(lanes, &f.here)
	}
	f.flight.takeMost()
	ctx, cancel := context.WithTimeout(t.Context(), m.lasts)
	defer cancel()
	var failures sync.Map
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range 60 {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		wg.Go(func() {
			for ctx.Err() == nil {
				to := i
				if m.moving {
					to = int(time.Since(begin) / time.Second)
				}
				status := get(client, f.proxies[to%len(f.proxies)], lanes[i/3%len(lanes)].path)
				if status == denied {
					time.Sleep(time.Duration(20+rand.IntN(40)) * time.Millisecond)
				} else if status != allowed && !slices.Contains(m.may, status) {
					failures.Store(status, i)
				}
			}
		})
	}
	var before time.Duration
	var most int
	wg.Go(func() {
		time.Sleep(m.judged)
		before, most = f.flight.change(0), f.flight.takeMost()
	})
	if m.happen != nil {
		time.Sleep(3 * time.Second)
		m.happen(t, f)
	}
	<-ctx.Done()
	share := (f.flight.change(0) - before).Seconds() / (m.lasts - m.judged).Seconds() / slots
	wg.Wait()
	again, here := f.flight.takeMost(), f.here.takeMost()
	t.Logf("%.3f of the slots used; at most %d at once, then %d; %d where each proxy has a share", share, most, again, here)
	failures.Range(func(status, client any) bool { return assert.Fail(t, "failed", "%v of client %v", status, client) })
	require.LessOrEqual(t, max(most, again), slots+m.over)
	require.LessOrEqual(t, here, slots+len(f.proxies)*(slots/len(f.proxies)))
	require.GreaterOrEqual(t, again, slots, "all slots are used again")
	require.GreaterOrEqual(t, share, m.least)
	for _, l := range lanes {
		f.requireCharged(t, l, m.lost)
		f.requireAllFree(t, l)
	}
}

func get(client *http.Client, p *proxy, path string, headers ...string) (status int) {
	r, err := http.NewRequest(http.MethodGet, "http://"+p.address+path, http.NoBody)
	if err != nil {
		return 0
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// requireCharged: in the end nothing is held, and all that answers have cost is charged, with
// what was lost.
func (f *answersFleet) requireCharged(t *testing.T, l *lane, lost int64) {
	t.Helper()
	var charged int64
	eventually(t, 12*time.Second, "all holds to end", func() bool {
		slots, tokens := f.control.counters(t, "get", "--rule", l.slots).Quota, f.control.counters(t, "get", "--rule", l.tokens).Quota
		charged = int64(tokens.Windows[0].Used)
		return *slots.Held+*tokens.Held == 0 && charged >= l.costs.Load()+f.lost[l.path]
	})
	over := charged - l.costs.Load() - f.lost[l.path]
	t.Logf("%s: answers cost %d units, %d were lost", l.path, l.costs.Load(), over)
	require.LessOrEqual(t, over, lost)
	f.lost[l.path] += over
}

// requireAllFree: all slots are there, and not one more.
func (f *answersFleet) requireAllFree(t *testing.T, l *lane) {
	t.Helper()
	var wg sync.WaitGroup
	var statuses [2 * slots]int
	for i := range statuses {
		wg.Go(func() { statuses[i] = get(http.DefaultClient, f.proxies[i%len(f.proxies)], l.path, "x-longest", "yes") })
	}
	wg.Wait()
	slices.Sort(statuses[:])
	require.Equal(t, append(slices.Repeat([]int{allowed}, slots), slices.Repeat([]int{denied}, slots)...), statuses[:])
}
