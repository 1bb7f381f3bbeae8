package e2e

import (
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// calledFault is something that goes wrong while Envoy calls two services on one store.
type calledFault struct {
	name   string
	failed bool // calls may end with an error, which failure_mode_deny denies
	happen func(t *testing.T, c *calledByEnvoy, store *servertest.RedisServer)
}

var calledFaults = []calledFault{
	{name: "Redis is killed and starts with its data", failed: true,
		happen: func(_ *testing.T, _ *calledByEnvoy, store *servertest.RedisServer) {
			store.Kill()
			time.Sleep(500 * time.Millisecond)
			store.Restart()
		}},
	{name: "Redis is stopped for longer than calls wait for it", failed: true,
		happen: func(_ *testing.T, _ *calledByEnvoy, store *servertest.RedisServer) {
			store.Signal(syscall.SIGSTOP)
			time.Sleep(2500 * time.Millisecond)
			store.Signal(syscall.SIGCONT)
		}},
	{name: "a service is killed", failed: true, happen: func(t *testing.T, c *calledByEnvoy, _ *servertest.RedisServer) {
		c.quota.kill()
		c.untilHealthy(t, 1)
		c.quota.start(t)
	}},
	{name: "a service is told to stop", happen: func(t *testing.T, c *calledByEnvoy, _ *servertest.RedisServer) {
		c.quota.stop(t)
		c.untilHealthy(t, 1)
		c.quota.start(t)
	}},
}

// calledRule are the limits of the load: a key gets more requests than it may have, then the next has
// its turn.
var calledRule = steadyRule{"fault", 60, 100}

// calledAfter is how many calls are sent after a fault, at least: of so many in a row some pass.
var calledAfter = calledRule.requests

// TestEnvoyRateLimitFaults: whatever happens to a service or to the store, no call passes beyond the limit
// where failure_mode_deny is set, none that passed is lost from what is counted, and calls go on by
// themselves.
func TestEnvoyRateLimitFaults(t *testing.T) {
	t.Parallel()
	// Redis is killed, its machine is not: what Redis has written stays without an fsync. With one, all calls
	// would wait for a busy disk.
	store := servertest.StartRedis(t, servertest.Redis(t), "--appendonly", "yes", "--appendfsync", "no")
	c := startCalled(t, newest(t), "redis://"+store.Addr())
	for _, f := range calledFaults {
		t.Run(f.name, func(t *testing.T) { c.suffer(t, f, store) })
	}
}

// TestEnvoyRateLimitClusterMoves: while the slots of a Cluster that have counters move to other masters,
// calls go on as if nothing were.
func TestEnvoyRateLimitClusterMoves(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartCluster(t, servertest.Redis(t))
	c := startCalled(t, newest(t), cluster.URL(), "REDIS_TYPE=CLUSTER")
	c.suffer(t, calledFault{name: "slots move", happen: func(t *testing.T, _ *calledByEnvoy, _ *servertest.RedisServer) {
		moved := map[string]bool{}
		for from := range 3 {
			for _, key := range strings.Fields(cluster.Servers[from].Do("KEYS", "*:"+strings.Repeat("?", 22))) { // not the marks
				slot := cluster.Servers[from].Do("CLUSTER", "KEYSLOT", key)
				number, err := strconv.Atoi(slot)
				require.NoError(t, err)
				if !moved[slot] {
					cluster.Move(number, from, (from+1)%3)
					moved[slot] = true
				}
			}
		}
		require.NotEmpty(t, moved)
	}}, nil)
}

// suffer lets a fault happen while clients call, and judges what came of it.
func (c *calledByEnvoy) suffer(t *testing.T, f calledFault, store *servertest.RedisServer) {
	c.untilHealthy(t, 2)
	before := c.charged(t, "all=calls")
	load := &steady{rules: []steadyRule{calledRule}, sent: []int{0}, addresses: []string{c.closed.address}}
	load.take(strings.ReplaceAll(f.name, " ", "-"))
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { load.run(stop) })
	time.Sleep(500 * time.Millisecond)
	f.happen(t, c, store)
	c.untilHealthy(t, 2)
	healed := time.Now().UnixNano()
	goOn := assert.Eventually(t, func() bool { return load.since(healed) >= calledAfter }, time.Minute, time.Millisecond)
	close(stop)
	sending.Wait()
	require.True(t, goOn, "calls go on")
	all, _ := load.take("")
	var answered, failed, passedAfter int
	for _, e := range all {
		switch e.status {
		case allowed, denied:
			answered++
			if e.from > healed && e.status == allowed {
				passedAfter++
			}
		default:
			failed++
		}
	}
	counted := c.charged(t, "all=calls") - before
	t.Logf("%d calls answered, %d failed, %d counted, %d passed after it", answered, failed, counted, passedAfter)
	assert.LessOrEqual(t, overFar(all, calledRule), 0)
	assert.GreaterOrEqual(t, counted, answered)
	assert.LessOrEqual(t, counted, answered+failed)
	require.Positive(t, passedAfter, "calls go on")
	if !f.failed {
		require.Zero(t, failed)
	}
}
