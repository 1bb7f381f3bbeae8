//go:build long

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

const answersOverAll = `
version: 1
quota: {timeout: 2s}
rules:
  - {name: failed-logins, scope: cluster, match: {paths: ["/login/*"]}, key: [{path: full}], limits: [5/1d],
     settle: {when: {status: [401, 403]}}, hold: 10s}
  - {name: in-flight, scope: cluster, match: {paths: [/flight]}, on_unavailable: deny, algorithm: concurrency,
     limits: [10], hold: 10s, linger: 0s}
  - {name: cost, scope: cluster, match: {paths: [/flight]}, on_unavailable: deny, limits: [1000000/366d],
     cost: 5, settle: {to: {header: x-cost}}, hold: 10s}
`

// answersIdle is how long Envoy leaves a stream be that a trap has left paused: longer than an
// Envoy is stopped in a request that takes 3 s.
const answersIdle = 16 * time.Second

// answersFleet is three Envoys of four workers, which ask a pair of quota services on one
// Redis that loses nothing when it is killed.
type answersFleet struct {
	*answering
	*quotaPair

	store   *servertest.RedisServer
	control *controlPlane
	proxies []*proxy
	lost    int64 // units charged for answers that nobody has seen
}

func startAnswersFleet(t *testing.T, d driver) *answersFleet {
	f := &answersFleet{answering: startAnswering(t),
		store: servertest.StartRedis(t, servertest.Redis(t), "--appendonly", "yes")}
	url := "redis://" + f.store.Addr()
	f.quotaPair, f.control = startPair(t, url, 3), startControlPlane(t, "--quota-store", url)
	f.control.apply(t, answersOverAll)
	for _, both := range f.gates {
		f.proxies = append(f.proxies, d.start(t, proxyOptions{
			policy: answersOverAll, quota: both.address(), upstream: f.URL, wasm: buildtest.Filter(t, "sluice_faults"),
			edit: idleAfter(answersIdle),
		}))
	}
	return f
}

const (
	flying = 30 // clients
	// each proxy has a third of the clients, and each of their requests may hold 5 units: they
	// are charged in full where nobody sees the answers.
	lostUnits = flying / 3 * 5
	// lateRequests is how many requests a proxy sends on at most that it had decided when it was
	// stopped, while others have their slots by now: one a worker.
	lateRequests = workers
)

// mishap is what happens to a fleet under load, and what may come of it.
type mishap struct {
	name   string
	moving bool          // demand, after 6 s
	lasts  time.Duration // of the load
	judged time.Duration // of it; the part of the slots that is used in the rest is
	least  float64       // at least
	over   int           // requests at the upstream at once, beyond the limit
	lost   int64         // units charged for answers that nobody has seen
	may    []int         // be statuses, beside 200 and 429
	happen func(t *testing.T, f *answersFleet)
}

var mishaps = []mishap{
	{name: "even demand, then moving", moving: true, lasts: 12 * time.Second, judged: 2 * time.Second, least: 0.9},
	{name: "a service is killed and connections end", lasts: 10 * time.Second, judged: 2 * time.Second, least: 0.8,
		happen: func(t *testing.T, f *answersFleet) {
			f.services[0].kill()
			time.Sleep(2 * time.Second)
			f.services[0].start(t)
			f.gates[1].cut()
		}},
	{name: "Redis is killed and starts with its data", lasts: 12 * time.Second, judged: 7 * time.Second, least: 0.6,
		happen: func(_ *testing.T, f *answersFleet) {
			f.store.Kill()
			time.Sleep(1500 * time.Millisecond)
			f.store.Restart()
		}},
	{
		name: "the VMs of an Envoy trap", lasts: 19 * time.Second, judged: 4*time.Second + lostFor, least: 0.6,
		lost: lostUnits,
		may:  []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}, // some only when they have been idle for long
		happen: func(t *testing.T, f *answersFleet) {
			for range workers { // each has as many connections
				client := &http.Client{Transport: &http.Transport{}}
				t.Cleanup(client.CloseIdleConnections)
				require.Equal(t, http.StatusServiceUnavailable, get(client, f.proxies[0], "x-fault", "panic-counted"))
			}
		},
	},
	{name: "an Envoy is stopped for less than the hold", lasts: 12 * time.Second, judged: 8 * time.Second, least: 0.6,
		happen: standStill(4 * time.Second)},
	{name: "an Envoy is stopped for longer than the hold", lasts: 20 * time.Second, judged: 16 * time.Second, least: 0.6,
		over: lateRequests, lost: lostUnits, happen: standStill(11 * time.Second)},
}

// standStill ends before Envoy's own timeout of 15 s, with a request of 3 s before it.
func standStill(lasts time.Duration) func(t *testing.T, f *answersFleet) {
	return func(t *testing.T, f *answersFleet) {
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGSTOP))
		time.Sleep(lasts)
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGCONT))
	}
}

// TestAnswersOverAllProxies: three Envoys of four workers and a pair of quota services on one
// Redis hold to five failed logins and ten requests in flight. Whatever happens to one of them or
// to their store, no more requests run at once than the limit and what a stopped proxy sends late,
// the slots come back, and each answer is charged, once or, where it was lost, in full.
func TestAnswersOverAllProxies(t *testing.T) {
	t.Parallel()
	for _, d := range envoys(t, false) { // one after the other: else they take each other's processor
		f := startAnswersFleet(t, d)
		for _, path := range []string{"/login/a", "/login/b"} {
			all := slices.Concat(sendAll(t, f.proxies, 300, func(int, int) request { return request{path, "x-do", "401"} })...)
			require.Equal(t, []int{5, len(all) - 5}, []int{count(all, http.StatusUnauthorized), count(all, denied)})
		}
		require.Equal(t, 10, f.failed)
		for _, m := range mishaps {
			t.Run(d.name+", "+m.name, func(t *testing.T) { f.fly(t, &m) })
		}
	}
}

// fly has clients ask for slots while something happens.
func (f *answersFleet) fly(t *testing.T, m *mishap) {
	f.forget(t)
	ctx, cancel := context.WithTimeout(t.Context(), m.lasts)
	defer cancel()
	var failures sync.Map
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range flying {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		wg.Go(func() {
			for ctx.Err() == nil {
				to := i
				if passed := int(time.Since(begin) / time.Second); m.moving && passed >= 6 {
					to = passed
				}
				took := 50 + rand.IntN(451)
				if rand.IntN(16) == 0 {
					took = 3000
				}
				status := get(client, f.proxies[to%len(f.proxies)], "x-do", "200", "x-ms", fmt.Sprint(took), "x-send",
					fmt.Sprint("x-cost: ", 1+rand.IntN(5)))
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
		before, most = f.since()
	})
	if m.happen != nil {
		time.Sleep(3 * time.Second)
		m.happen(t, f)
	}
	<-ctx.Done()
	busy, during := f.since()
	share := (busy - before).Seconds() / (m.lasts - m.judged).Seconds() / slots
	wg.Wait()
	_, late := f.since()
	again := max(during, late)
	t.Logf("%.3f of the slots used; at most %d at once, then %d", share, most, again)
	failures.Range(func(status, client any) bool { return assert.Fail(t, "failed", "%v of client %v", status, client) })
	require.LessOrEqual(t, max(most, again), slots+m.over)
	require.GreaterOrEqual(t, again, slots, "all slots are used again")
	require.GreaterOrEqual(t, share, m.least)
	f.requireCharged(t, m.lost)
	f.requireAllFree(t)
}

// get asks for a slot, and returns the status, 0 if there is none.
func get(client *http.Client, p *proxy, headers ...string) (status int) {
	r, err := http.NewRequest(http.MethodGet, "http://"+p.address+"/flight", http.NoBody)
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
func (f *answersFleet) requireCharged(t *testing.T, lost int64) {
	var charged int64
	eventually(t, 12*time.Second, "all holds to end", func() bool {
		slots, units := f.control.counters(t, "get", "--rule", "in-flight").Quota,
			f.control.counters(t, "get", "--rule", "cost").Quota
		charged = int64(units.Windows[0].Used)
		return *slots.Held+*units.Held == 0 && charged >= f.costs.Load()+f.lost
	})
	over := charged - f.costs.Load() - f.lost
	t.Logf("answers cost %d units, %d were lost", f.costs.Load(), over)
	require.LessOrEqual(t, over, lost)
	f.lost += over
}

// requireAllFree: all slots are there, and not one more.
func (f *answersFleet) requireAllFree(t *testing.T) {
	var statuses [2 * slots]int
	atOnce(len(statuses), func(i int) {
		statuses[i] = get(http.DefaultClient, f.proxies[i%len(f.proxies)], "x-do", "200", "x-ms", "500", "x-send",
			"x-cost: 1")
	})
	slices.Sort(statuses[:])
	require.Equal(t, append(slices.Repeat([]int{allowed}, slots), slices.Repeat([]int{denied}, slots)...), statuses[:])
}

// lostFor is the longest that a lost slot is taken, of a hold of 10 s, and until it is used.
const lostFor = 10*time.Second*9/8 + time.Second

// TestAnswersFaults: whatever happens to a proxy under load, never more than so many requests
// are at the upstream, and slots that are lost come back. Envoy ends connections after 20 s.
func TestAnswersFaults(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		rig := func(t *testing.T) *answerRig {
			t.Parallel()
			return newAnswerRig(t, d, proxyOptions{policy: edgesPolicy, wasm: buildtest.Filter(t, "sluice_faults"),
				edit: replacing("common_http_protocol_options: {",
					"common_http_protocol_options: {max_connection_duration: 20s, ")})
		}
		t.Run("first", func(t *testing.T) {
			r := rig(t)
			t.Run("clients' connections break", r.connectionsBreak)
			t.Run("it stands still", r.standsStill)
		})
		t.Run("second", func(t *testing.T) {
			r := rig(t)
			t.Run("a VM traps", r.vmTraps)
			t.Run("it is killed", func(t *testing.T) { r.killed(t, d) })
		})
	})
}

// during runs a load for so long, and then, a fault of it, after three seconds.
func (r *answerRig) during(t *testing.T, visits []visit, lasts time.Duration, then func()) *flight {
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(3 * time.Second)
		then()
	}()
	f := r.fly(ctx, t, 200, visits)
	<-done
	require.LessOrEqual(t, r.upstream.most, slots)
	require.Equal(t, slots, r.upstream.most)
	return f
}

func (r *answerRig) connectionsBreak(t *testing.T) {
	g := newGate(t, r.address)
	r.through(g).during(t, visits, 12*time.Second, func() {
		for range 4 {
			g.cut()
			time.Sleep(2 * time.Second)
		}
	})
	t.Logf("%s: %d reached the upstream", t.Name(), r.upstream.reached)
	r.requireAllFree(t)
}

// through is the rig, which clients reach by a gate.
func (r *answerRig) through(g *gate) *answerRig {
	p := *r.proxy
	p.address = g.address()
	return &answerRig{proxy: &p, upstream: r.upstream, accessLog: r.accessLog}
}

// standsStill: nothing lapses while nobody can say that a request is alive.
func (r *answerRig) standsStill(t *testing.T) {
	lost := r.operate(t, "stats", "rule=in-flight").Rules[0].Metrics["holds_lost"]
	f := r.during(t, visits, 30*time.Second, func() {
		require.NoError(t, r.envoy.Signal(syscall.SIGSTOP))
		time.Sleep(15 * time.Second) // longer than lostFor
		require.NoError(t, r.envoy.Signal(syscall.SIGCONT))
	})
	share := f.share(t, f.begin.Add(20*time.Second), f.begin.Add(30*time.Second))
	t.Logf("%s: %.1f %% of the slots used afterwards", t.Name(), 100*share)
	require.GreaterOrEqual(t, share, 0.97)
	require.Equal(t, lost, r.operate(t, "stats", "rule=in-flight").Rules[0].Metrics["holds_lost"])
	r.requireAllFree(t)
}

// vmTraps: the slots of the worker whose VM traps are lost for the time of a hold.
func (r *answerRig) vmTraps(t *testing.T) {
	const lasts = 25 * time.Second
	var trapped time.Time
	f := r.during(t, visits, lasts, func() {
		require.Equal(t, 503, r.status(t, "/flight", "x-do", "200", "x-fault", "panic-counted", "connection", "close"))
		trapped = time.Now()
	})
	lost := f.share(t, trapped.Add(2*time.Second), trapped.Add(9*time.Second))
	share := f.share(t, trapped.Add(lostFor), f.begin.Add(lasts))
	t.Logf("%s: %.1f %% of the slots used while some were lost, then %.1f %%", t.Name(), 100*lost, 100*share)
	require.GreaterOrEqual(t, share, 0.97)
	r.requireAllFree(t)
}

// killed: another Envoy that takes its place has all slots, and the upstream no more requests.
func (r *answerRig) killed(t *testing.T, d driver) {
	g := newGate(t, r.address)
	r.through(g).during(t, visits[:1], 15*time.Second, func() {
		r.kill()
		r.proxy = r.another(t, d, proxyOptions{policy: edgesPolicy})
		g.lead(r.address)
	})
	r.requireAllFree(t)
	r.noTraps(t)
}
