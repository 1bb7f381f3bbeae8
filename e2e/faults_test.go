//go:build long

package e2e

import (
	"flag"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

var faultNames = flag.String("fault-names", ".", "`REGEXP` for the faults to happen")

// faultRig is proxies under limits of quota services that share a store, and a steady
// load on them. Faults happen to its parts.
type faultRig struct {
	*quotaPair

	driver  driver
	store   *servertest.RedisServer
	cluster *servertest.Cluster // or this
	proxies []*proxy
	load    *steady
	stopped [][2]int64 // when the proxy 0 stood still
	names   int
}

// faultLimits are the rules of a rig. Windows of a year do not end meanwhile. What all
// proxies may admit alone of a key is less than what it asks for.
var faultLimits = []steadyRule{{"deny", 100, 150}, {"local", 30, 90}, {"each", 60, 100}, {"second", 30, 0}}

const faultPolicy = `
version: 1
rules:
  - {name: deny, match: {paths: [/deny]}, scope: cluster, on_unavailable: deny, key: [{header: x-user-id}],
     limits: [100/366d]}
  - {name: local, match: {paths: [/local]}, scope: cluster, on_unavailable: local, key: [{header: x-user-id}],
     limits: [30/366d]}
  - {name: each, match: {paths: [/each]}, scope: cluster, on_unavailable: deny, lease: off,
     key: [{header: x-user-id}], limits: [60/366d]}
  - {name: second, match: {paths: [/second]}, scope: cluster, on_unavailable: deny, key: [{header: x-user-id}],
     limits: [30/1s]}
`

// newFaultRig starts services on the store, and n proxies.
func newFaultRig(t *testing.T, n int, url string) *faultRig {
	f := &faultRig{
		quotaPair: startPair(t, url, n), driver: newest(t), proxies: make([]*proxy, n),
		load: &steady{rules: faultLimits, sent: make([]int, len(faultLimits)), addresses: make([]string, n)},
	}
	atOnce(n, func(i int) { f.startProxy(t, i) })
	return f
}

func (f *faultRig) startProxy(t *testing.T, i int) {
	f.proxies[i] = f.driver.start(t,
		proxyOptions{policy: faultPolicy, quota: f.gates[i].address(), workers: 2, edit: func(bootstrap []byte) []byte {
			return spread(withoutUpstream(bootstrap))
		}})
	f.load.move(i, f.proxies[i].address)
}

const (
	faultBefore = time.Second     // of load
	faultAfter  = 4 * time.Second // until the services are used again
)

// run lets a fault happen once, and judges what came of it.
func (f *faultRig) run(t *testing.T, c fault) {
	f.names++
	f.load.take(fmt.Sprintf("%d-%d", f.names, time.Now().UnixNano()))
	f.stopped = nil
	before := f.alone(t)
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { f.load.run(stop) })
	began := time.Now()
	time.Sleep(faultBefore)
	c.happen(t, f)
	time.Sleep(faultAfter)
	close(stop)
	load.Wait()
	took, late := time.Since(began), time.Now().Add(-faultAfter/2).UnixNano()
	all, beside := f.load.take("")
	time.Sleep(time.Second) // a worker shows its counts at least so often
	cut := f.cutOff(t, c, before, all)
	var moving []exchange // requests that no stopped proxy held
	ended := 0
	failed := 0
	admittedLate := map[string]bool{}
	for _, e := range all {
		switch {
		case e.excused:
			ended++
		case e.status == allowed:
			if e.from > late {
				admittedLate[e.rule] = true
			}
		case e.status != denied:
			failed++
			t.Logf("%s: %s of proxy %d came to %d after %s", c.Name, e.rule, e.proxy, e.status, time.Duration(e.until-e.from))
		}
		if e.proxy != 0 || !f.stood(e) {
			moving = append(moving, e)
		}
	}
	wait, longest := waits(moving, beside)
	said := fmt.Sprintf("%s: %d requests, %.0f a second, %d failed, %d ended with their proxy, waited %s of %s",
		c.Name, len(all), float64(len(all))/took.Seconds(), failed, ended, wait, longest)
	for _, r := range faultLimits {
		over, may := overFar(all, r), c.losses*r.limit
		switch r.name {
		case "local":
			may += cut * max(1, r.limit/len(f.proxies))
		case "second":
			over = overWindows(all, r)
		}
		assert.LessOrEqual(t, over, may, "%s: %s", c.Name, r.name)
		said += fmt.Sprintf("; %s over by %d of %d units", r.name, over, may)
	}
	t.Log(said)
	assert.Zero(t, failed, c.Name)
	assert.Less(t, wait, faultWait+faultSlack(), c.Name)
	assert.Len(t, admittedLate, len(faultLimits), "%s: all rules lease again", c.Name)
}

// alone returns how many requests of the rule that is local each proxy has decided without the services.
func (f *faultRig) alone(t *testing.T) (counts []uint64) {
	for _, p := range f.proxies {
		n, _ := p.metric(t, "rate_limit_quota_unavailable_total", "local")
		counts = append(counts, n)
	}
	return counts
}

// cutOff returns how many proxies were cut off: by the fault, or because a busy machine let a service
// be silent for the timeout. Then nobody need have waited for so long: proxies also ask ahead. A machine
// of its own is not so busy, so that a proxy which is alone there without need fails the test.
func (f *faultRig) cutOff(t *testing.T, c fault, before []uint64, all []exchange) int {
	late, alone := map[int]bool{}, 0
	for _, e := range all {
		if e.until-e.from >= int64(faultTimeout) {
			late[e.proxy] = true
		}
	}
	for i, n := range f.alone(t) {
		if n > 0 && n != before[i] { // one that was started anew begins at 0
			alone++
		}
	}
	may := max(min(c.cut, len(f.proxies)), len(late))
	if *faultRuns > 0 {
		assert.LessOrEqual(t, alone, may, "%s: proxies that were alone", c.Name)
	}
	return max(may, alone)
}

// stood reports whether the proxy 0 stood still during the request.
func (f *faultRig) stood(e exchange) bool {
	for _, s := range f.stopped {
		if e.from <= s[1] && e.until >= s[0] {
			return true
		}
	}
	return false
}

// What clients see of faults is what docs/cluster.md says.
func TestFaults(t *testing.T) {
	binary := servertest.Redis(t)
	server := servertest.StartRedis(t, binary, "--enable-debug-command", "yes")
	n := 3
	if *faultRuns == 0 {
		n = 2
	}
	f := newFaultRig(t, n, "redis://"+server.Addr())
	f.store = server
	t.Logf("%s, %s, %d processors, timeout %s", f.driver.name, binary, runtime.NumCPU(), faultTimeout)
	f.runAll(t, faults)
	if *faultRuns == 0 {
		f.withoutServices(t)
		return
	}
	f.moveToCluster(t, binary)
	f.runAll(t, clusterFaults)
}

// runAll lets the faults happen, in a short run only those that are part of it.
func (f *faultRig) runAll(t *testing.T, list []fault) {
	which := regexp.MustCompile(*faultNames)
	warmUp := fault{Name: "warm up", cut: len(f.proxies), losses: 1, happen: func(*testing.T, *faultRig) {}}
	f.run(t, warmUp)
	for _, c := range list {
		if *faultRuns == 0 && !c.short || !which.MatchString(c.Name) {
			continue
		}
		for range max(1, *faultRuns) {
			f.run(t, c)
		}
	}
}

// moveToCluster puts services whose store is a Cluster in place of those there are.
func (f *faultRig) moveToCluster(t *testing.T, binary servertest.Binary) {
	f.cluster = servertest.StartCluster(t, binary)
	f.cluster.FailOver()
	for i, s := range f.services {
		s.kill()
		f.services[i] = startQuota(t, f.cluster.URL())
	}
	f.eachGate(func(g *gate) { g.lead(f.addresses()...) })
	time.Sleep(3 * time.Second) // until the proxies are known to be alive
}

// withoutServices ends the services for good: each of two proxies admits its share.
func (f *faultRig) withoutServices(t *testing.T) {
	for _, s := range f.services {
		s.kill()
	}
	got := slices.Concat(sendAll(t, f.proxies, 200,
		func(int, int) request { return request{"/local", "x-user-id", "alone"} })...)
	require.LessOrEqual(t, count(got, allowed), 30, "half of the limit each")
	require.GreaterOrEqual(t, count(got, allowed), 15)
	require.Equal(t, len(got), count(got, allowed)+count(got, denied))
	require.Equal(t, denied, f.proxies[0].status(t, "/deny", "x-user-id", "alone"))
}

// fault is something that goes wrong.
type fault struct {
	Name   string
	cut    int // proxies that it cuts off from the services or from what they count
	losses int // times that the store loses what was counted
	short  bool
	happen func(t *testing.T, f *faultRig)
}

// faults are those of one store.
var faults = []fault{
	{Name: "nothing", happen: func(*testing.T, *faultRig) { time.Sleep(2 * time.Second) }},
	{Name: "a quota service killed (`kill -9`)", short: true, happen: func(t *testing.T, f *faultRig) {
		f.services[0].kill()
		time.Sleep(2 * time.Second)
		f.services[0].start(t)
	}},
	{Name: "all quota services killed", cut: 3, happen: func(t *testing.T, f *faultRig) {
		for _, s := range f.services {
			s.kill()
		}
		time.Sleep(2 * time.Second)
		for _, s := range f.services {
			s.start(t)
		}
	}},
	{Name: "a quota service stopped for 30 s (`SIGSTOP`)", cut: 3, happen: func(t *testing.T, f *faultRig) {
		f.services[0].signal(t, syscall.SIGSTOP)
		time.Sleep(30 * time.Second)
		f.services[0].signal(t, syscall.SIGCONT)
	}},
	{Name: "a quota service replaced, a third one beside", happen: func(t *testing.T, f *faultRig) {
		third := startQuota(t, f.services[0].store)
		f.eachGate(func(g *gate) { g.lead(append(f.addresses(), third.address)...) })
		time.Sleep(time.Second)
		f.services[0].stop(t)
		time.Sleep(time.Second)
		f.services[0].start(t)
		time.Sleep(time.Second)
		f.eachGate(func(g *gate) { g.lead(f.addresses()...) })
		third.stop(t)
	}},
	{Name: "an Envoy killed (`kill -9`)", happen: func(t *testing.T, f *faultRig) {
		f.load.move(0, "")
		f.proxies[0].kill()
		f.startProxy(t, 0)
	}},
	{Name: "an Envoy stopped for 30 s (`SIGSTOP`)", cut: 1, happen: func(t *testing.T, f *faultRig) {
		from := time.Now().UnixNano()
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGSTOP))
		time.Sleep(30 * time.Second)
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGCONT))
		f.stopped = append(f.stopped, [2]int64{from, time.Now().UnixNano()})
	}},
	{Name: "one Envoy cut off for 3 s", cut: 1, happen: func(_ *testing.T, f *faultRig) {
		f.gates[0].hold()
		time.Sleep(3 * time.Second)
		f.gates[0].open()
	}},
	{Name: "all Envoys cut off for 3 s", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.eachGate((*gate).hold)
		time.Sleep(3 * time.Second)
		f.eachGate((*gate).open)
	}},
	{Name: "answers held back for 50 ms, again and again", happen: func(_ *testing.T, f *faultRig) {
		for range 20 {
			f.eachGate((*gate).hold)
			time.Sleep(50 * time.Millisecond)
			f.eachGate((*gate).open)
			time.Sleep(70 * time.Millisecond)
		}
	}},
	{Name: "connections reset, every 150 ms", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 20 {
			f.eachGate((*gate).cut)
			time.Sleep(150 * time.Millisecond)
		}
	}},
	{Name: "answers lost", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 10 {
			f.eachGate((*gate).loseAnswers)
			time.Sleep(30 * time.Millisecond)
			f.eachGate((*gate).cut)
			f.eachGate((*gate).open)
			time.Sleep(270 * time.Millisecond)
		}
	}},
	{Name: "first messages replayed to another service", happen: func(t *testing.T, f *faultRig) {
		for range 10 {
			f.eachGate(func(g *gate) { g.replay(t) })
			time.Sleep(300 * time.Millisecond)
		}
	}},
	{Name: "Redis sleeps 1 s (`DEBUG SLEEP`)", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 2 {
			f.store.Do("DEBUG", "SLEEP", "1")
			time.Sleep(time.Second)
		}
	}},
	{Name: "Redis full (`maxmemory`, noeviction)", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.store.Do("CONFIG", "SET", "maxmemory", "1")
		time.Sleep(2 * time.Second)
		f.store.Do("CONFIG", "SET", "maxmemory", "0")
	}},
	{Name: "Redis read-only", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.store.Do("REPLICAOF", "127.0.0.1", "1")
		time.Sleep(2 * time.Second)
		f.store.Do("REPLICAOF", "NO", "ONE")
	}},
	{Name: "connections of the services to Redis killed", cut: 3, short: true, happen: func(_ *testing.T, f *faultRig) {
		for range 10 {
			f.store.Do("CLIENT", "KILL", "TYPE", "normal")
			time.Sleep(100 * time.Millisecond)
		}
	}},
	{Name: "Redis restarts without persistence, then a service", cut: 3, losses: 1,
		happen: func(t *testing.T, f *faultRig) {
			f.store.Kill()
			time.Sleep(time.Second)
			f.store.Restart()
			f.services[0].kill()
			f.services[0].start(t)
		}},
}

// clusterFaults are those of a Cluster as the store.
var clusterFaults = []fault{
	{Name: "a master of the Cluster fails over", cut: 3, losses: 1, happen: func(t *testing.T, f *faultRig) {
		for _, s := range f.cluster.Servers[:3] {
			if s.Running() {
				s.Kill()
				break
			}
		}
		time.Sleep(time.Second) // until the Cluster has missed it
		require.Eventually(t, func() bool {
			return strings.Contains(f.cluster.Servers[5].Do("CLUSTER", "INFO"), "cluster_state:ok")
		}, 20*time.Second, 50*time.Millisecond)
	}},
}
