package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// tick gives every worker one tick.
func (b *bench) tick(t *testing.T) {
	t.Helper()
	for w := range b.Workers() {
		require.NoError(t, b.Tick(w))
	}
}

// The first of the rules that share a table reports its memory. After a policy change
// another rule may be the first.
func TestMemoryUsageMovesWithItsTable(t *testing.T) {
	gauge := func(rule string) string { return "rule=.=" + rule + ";.;rate_limit_memory_usage_bytes" }
	rule := func(name string) string {
		return `{"name":"` + name + `","counter":"c","limits":["5/1h"],"capacity":1}`
	}
	b := start(t, func(o *sim.Options) { o.Workers = 2 })
	require.NoError(t, b.Configure(policy(rule("a")+","+rule("b"))))
	b.serve(t, 0, alice)
	b.serve(t, 1, alice)
	b.tick(t)
	table := b.Metrics()[gauge("a")]
	require.Positive(t, table)
	require.Zero(t, b.Metrics()[gauge("b")])
	require.NoError(t, b.Configure(policy(rule("b")+","+rule("a"))))
	b.serve(t, 0, alice)
	b.serve(t, 1, alice)
	b.tick(t)
	require.Equal(t, table, b.Metrics()[gauge("b")])
	require.Zero(t, b.Metrics()[gauge("a")])
}

// A VM whose policy has had no request still sees which keys have expired.
func TestMemoryUsageOfAnUnusedTable(t *testing.T) {
	live := func(b *bench) any {
		n, have := b.Metrics()["rule=.=per-user;.;rate_limit_live_keys"]
		if !have {
			return nil
		}
		return n
	}
	store := sim.NewStore()
	b := start(t, func(o *sim.Options) { o.Store = store })
	require.NoError(t, b.Configure(policy(perUser)))
	b.serve(t, 0, alice)
	next := start(t, func(o *sim.Options) { o.Store = store })
	next.now = b.now
	require.NoError(t, next.Configure(policy(perUser+`,{"name":"more","limits":["1/1h"]}`)))
	minutes := func() { // a survey takes 46 ticks
		for range 120 {
			next.now += 1_000_000_000
			require.NoError(t, next.Tick(0))
		}
	}
	minutes()
	require.EqualValues(t, 1, live(next))
	before := store.Namespace("sluice").Snapshot()
	next.now += 48 * 3600 * 1_000_000_000
	minutes()
	require.Zero(t, live(next))
	require.Equal(t, before, store.Namespace("sluice").Snapshot(), "nothing is registered")
	require.NotContains(t, next.Metrics(), "rule=.=more;.;rate_limit_live_keys", "nobody has used it")

	// The VM looks for the tables of a new policy, although its rule is unused.
	longer := strings.Replace(perUser, "/1h", "/2h", 1)
	require.NotEqual(t, perUser, longer)
	for _, h := range []*bench{b, next} {
		h.now = next.now
		require.NoError(t, h.Configure(policy(longer+`,{"name":"more","limits":["1/1h"]}`)))
	}
	minutes()
	b.now = next.now
	b.serve(t, 0, alice)
	minutes()
	require.EqualValues(t, 1, live(next))

	// A rule with another key has a counter of its own, without keys.
	anew := strings.Replace(perUser, "x-user-id", "x-tenant", 1)
	require.NoError(t, next.Configure(policy(anew)))
	minutes()
	require.Zero(t, live(next))
}

// Unused rules cost only the heartbeat, and sometimes a read of the directory.
func TestUnusedTablesCostATickLittle(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(manyRules(2000)))
	reads := 0
	for range 60 {
		b.calls = nil
		b.now += 1_000_000_000
		require.NoError(t, b.Tick(0))
		for _, call := range b.calls {
			if call == "get_shared_data" {
				reads++
			}
		}
	}
	require.LessOrEqual(t, reads, 60+6)
}

// A survey of a large table takes many ticks with few reads each.
func TestMemoryUsageOfALargeTable(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(policy(perUser)))
	b.serve(t, 0, alice)
	const gauge = "rule=.=per-user;.;rate_limit_memory_usage_bytes"
	for ticks := 1; ; ticks++ {
		b.calls = nil
		require.NoError(t, b.Tick(0))
		require.Less(t, len(b.calls), 80)
		if _, have := b.Metrics()[gauge]; have {
			require.Equal(t, 46, ticks, "2926 pages, 64 a tick")
			return
		}
		require.Less(t, ticks, 100)
	}
}

// Each VM is counted once, with any number of configurations.
func TestEachVMIsCountedOnce(t *testing.T) {
	const starts = "rate_limit_vm_starts_total"
	b := start(t, func(o *sim.Options) { o.Workers = 2 })
	require.NoError(t, b.Configure(managedBy("right")))
	first := b.Metrics()[starts]
	require.GreaterOrEqual(t, first, uint64(2))
	require.NoError(t, b.Configure(managedBy("right")))
	require.LessOrEqual(t, b.Metrics()[starts], first+1, "one more may try the configuration")
	require.Contains(t, string(b.serve(t, 0, statsWith("Bearer right", "192.0.2.1")).Body),
		fmt.Sprintf(`],"vm_starts":%d}`, b.Metrics()[starts]))
}
