//go:build long

package e2e

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var soakTraffic = flag.Duration("soak-traffic", 6*time.Second,
	"how long to send traffic to one Envoy while it is reconfigured")

const (
	soakRaise = 20 // units that each round adds to the limits
	soakKeys  = 40 // of each rule
	soakFlood = 3000
)

// soakRules are rules whose limit each round can raise.
var soakRules = []struct{ name, algorithm string }{
	{"aligned", "fixed_window"}, {"per-key", "fixed_window_per_key"}, {"counter", "sliding_window_counter"},
}

// soakPolicy returns the policy of a round: with raised limits, a renamed rule, and a
// rule that is flooded.
func soakPolicy(round int) string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for _, r := range soakRules {
		fmt.Fprintf(&b, "  - {name: %s, match: {paths: ["+direct+
			"/%s]}, key: [{header: x-user-id}], algorithm: %s, limits: [%d/%s]}\n",
			r.name, r.name, r.algorithm, soakRaise*(round+1), far)
	}
	fmt.Fprintf(&b, "  - {name: flooded, match: {paths: ["+direct+
		"/flooded]}, key: [{header: x-user-id}], capacity: 1024, limits: [%d/%s]}\n", attackLimit, far)
	fmt.Fprintf(&b, "  - {name: renamed-%d, match: {paths: ["+direct+
		"/flooded]}, key: [{header: x-user-id}], capacity: 1024, limits: [1000/%s]}\n", round, far)
	return b.String()
}

// attacking is request i of a round that floods a table: first new users, then cheaters.
func attacking(i, flooded int) request {
	user := fmt.Sprint("flood-", flooded+i)
	if i >= soakFlood {
		user = fmt.Sprint("cheater-", i%soakKeys)
	}
	return request{direct + "/flooded", "x-user-id", user}
}

// Each round raises limits, renames a rule and floods a table. Sometimes the control
// plane dies, or another binary takes over. Each round admits exactly the added units
// of every key, no cheater gets more than its limit in all rounds, and Envoy stops
// growing.
func TestSoak(t *testing.T) {
	p := siteOf(t, flooded(newest(t)))
	other := sync.OnceValue(func() string { return buildtest.Filter(t, "sluice_faults") })
	l := p.load(16)
	var cheated [soakKeys]int
	var memory, resident []int64
	round := 0
	flooded := 0
	hits := 0
	for deadline := time.Now().Add(*soakTraffic); round < 3 || time.Now().Before(deadline); round++ {
		wasm := built.filter
		if round%25 >= 20 { // another binary takes over for five rounds
			wasm = other()
		}
		p.apply(t, soakPolicy(round), "--wasm", wasm)
		// The flood and the exact traffic run at the same time.
		var attacked []int16
		var attackErr error
		var attack sync.WaitGroup
		attack.Go(func() {
			attacked, attackErr = l.try(soakFlood+10*soakKeys, func(i int) request { return attacking(i, flooded) })
		})
		for _, r := range soakRules {
			n := 3 * soakRaise * soakKeys
			got := l.send(t, n, func(i int) request {
				return request{direct + "/" + r.name, "x-user-id", fmt.Sprint(i % soakKeys)}
			})
			hits += n
			passed := perKey(t, got, soakKeys, func(i int) int { return i % soakKeys })
			require.Equal(t, slices.Repeat([]int{soakRaise}, soakKeys), passed, "round %d, %s", round, r.name)
		}
		attack.Wait()
		require.NoError(t, attackErr)
		for i, status := range attacked {
			if i >= soakFlood && status == allowed {
				cheated[i%soakKeys]++
			}
		}
		flooded += soakFlood
		memory = append(memory, p.allocated(t))
		resident = append(resident, p.resident(t))
		if round%20 == 19 {
			p.control.kill(t)
			p.control.start(t)
			p.control.awaitConnected(t, "edge")
		}
	}
	for key, admitted := range cheated {
		require.LessOrEqual(t, admitted, attackLimit, "cheater %d", key)
	}
	for _, r := range soakRules {
		failed, some := p.metric(t, "rate_limit_errors_total", r.name)
		require.False(t, some, "%d errors", failed)
	}
	late := len(memory) / 2
	t.Logf("%d rounds, %d exact requests, %d invented keys: allocated %d KiB after the first round, "+
		"%d after half of them, %d at the end; resident %d, %d, %d KiB",
		round, hits, flooded, memory[0]>>10, memory[late]>>10, memory[round-1]>>10, resident[0]>>10, resident[late]>>10,
		resident[round-1]>>10)
	require.Less(t, memory[round-1]-memory[late], int64(2<<20), "Envoy goes on growing")
	require.Less(t, resident[round-1]-resident[late], int64(32<<20), "Envoy goes on growing")
}

var (
	floodKeys = flag.Int("flood-keys", 25_000,
		"keys that come to a capacity of a third of them, or of 65,536; three times the capacity fill all slots")
	renames = flag.Int("renames", 60, "times that a rule is renamed under traffic")

	clusterRequests = flag.Int("cluster-requests", 100_000,
		"requests of cluster rules, in whose last nine tenths Envoy does not grow")
)

// memoryOf returns the bytes that validate prints for the policy: for its counters and
// for vanished ones.
func memoryOf(t *testing.T, policy string) (counters, vanished int64) {
	out := sluiceOK(t, "validate", "-f", file(t, "policy.yaml", policy), "--output", "json")
	v := decoded[struct {
		Memory struct {
			Bytes    int64 `json:"bytes"`
			Vanished int64 `json:"vanished_bytes"`
		} `json:"memory"`
	}](t, out)
	require.NotZero(t, v.Memory.Bytes, out)
	return v.Memory.Bytes, v.Memory.Vanished
}

// settled returns the bytes that an idle Envoy has come down to, allocated or resident.
func settled(t *testing.T, bytes func(*testing.T) int64) int64 {
	lowest := bytes(t)
	for range 5 {
		time.Sleep(300 * time.Millisecond)
		lowest = min(lowest, bytes(t))
	}
	return lowest
}

// Many more keys come than the capacity, and memory stays within what validate printed. The Envoy
// is its own: of one that others had, listeners that end give memory back meanwhile.
func TestMoreKeysThanCapacity(t *testing.T) {
	capacity := 1
	for capacity < 1<<16 && 6*capacity <= *floodKeys {
		capacity *= 2
	}
	rule := func(name, limits string) string {
		return fmt.Sprintf("\n  - {name: %s, match: {paths: [/%s]}, key: [{header: x-user-id}], capacity: %d, limits: [%s]}",
			name, name, capacity, limits)
	}
	aligned := rule("aligned", "{requests: 5, per: 366d}")
	layered := rule("layered", "{requests: 5, per: 366d}, {requests: 9, per: 365d, algorithm: fixed_window_per_key}")
	p := newest(t).start(t, proxyOptions{policy: "version: 1\nrules:" + aligned + layered + "\n", edit: withoutUpstream})
	l := p.load(16)
	for _, c := range []struct{ name, rule string }{{"aligned", aligned}, {"layered", layered}} {
		t.Run(c.name, func(t *testing.T) {
			l.send(t, 2000, func(int) request { return request{"/" + c.name, "x-user-id", "one"} })
			before := settled(t, p.allocated)
			l.send(t, *floodKeys, func(i int) request { return request{"/" + c.name, "x-user-id", fmt.Sprint("k", i)} })
			grown := settled(t, p.allocated) - before
			printed, _ := memoryOf(t, "version: 1\nrules:"+c.rule+"\n")
			t.Logf("%d keys: grown by %d bytes, validate printed %d: %.3f", *floodKeys, grown, printed,
				float64(grown)/float64(printed))
			require.InDelta(t, 1, float64(grown)/float64(printed), 0.15)
		})
	}
}

// flooded has a site that scenarios share which look at Envoy's memory from revision to
// revision. The first of them finds a new Envoy.
func flooded(d driver) driver {
	d.name += "-flooded"
	return d
}

// Revision after revision renames the only rule under traffic. Memory stays within what
// validate printed for tables in use and vanished ones.
func TestRenames(t *testing.T) {
	s := siteOf(t, flooded(newest(t)))
	policy := func(i int) string {
		return s.inDomain(strings.Replace(perUser("5/"+far), "per-user", fmt.Sprint("rule-", i), 1))
	}
	nth := func(i int) request { return request{direct, "x-user-id", fmt.Sprint("k", i)} }
	s.control.apply(t, policy(0))
	first, l := s.runs(t), s.load(8)
	l.send(t, 5_000, func(int) request { return nth(0) })
	before := settled(t, s.allocated)
	end := l.goOn(t, nth)
	for i := 1; i <= *renames; i++ {
		s.control.push(t, policy(i))
	}
	eventually(t, time.Minute, "the last revision to run", func() bool { return s.runs(t) == first+uint64(*renames) })
	end()
	grown := settled(t, s.allocated) - before
	counters, vanished := memoryOf(t, policy(0))
	t.Logf("%d renames: grown by %d bytes, validate printed %d and %d for vanished ones", *renames, grown, counters,
		vanished)
	require.LessOrEqual(t, grown, counters+vanished)
}

// A hot key on leases, keys that are asked for once, and keys that are denied: after the
// first tenth of the requests Envoy does not grow.
func TestEnvoyDoesNotGrowWithClusterRules(t *testing.T) {
	t.Parallel()
	service := startQuota(t, "memory")
	p := newest(t).start(t, proxyOptions{quota: service.address, edit: withoutUpstream, policy: clusterPolicy +
		"  - {name: hot, scope: cluster, key: [{header: x-user-id}], limits: [100000000/1h]}\n" +
		"  - {name: many, scope: cluster, match: {paths: [/many]}, capacity: 4096,\n" +
		"     key: [{header: x-key}], limits: [5/1m]}\n"})
	l, sent := p.load(16), 0
	send := func(n int) (refused int) {
		refused = count(l.send(t, n, func(i int) request {
			switch i % 100 {
			case 0:
				return request{"/many", "x-key", fmt.Sprint("denied-", i/100%50)}
			case 50:
				return request{"/many", "x-key", fmt.Sprint("once-", sent+i)}
			}
			return request{"/", "x-user-id", "hot"}
		}), denied)
		sent += n
		return refused
	}
	refused := send(*clusterRequests / 10)
	before := settled(t, p.resident)
	for sent < *clusterRequests {
		refused += send(*clusterRequests / 20)
	}
	grown := settled(t, p.resident) - before
	t.Logf("%d requests, %d denied: grown by %d KiB", sent, refused, grown>>10)
	require.Positive(t, refused)
	require.Less(t, grown, int64(5<<20))
}
