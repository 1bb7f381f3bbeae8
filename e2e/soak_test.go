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

var soakTraffic = flag.Duration("soak-traffic", 6*time.Second, "how long to send traffic to one Envoy while it is reconfigured")

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
		fmt.Fprintf(&b, "  - {name: %s, match: {paths: ["+direct+"/%s]}, key: [{header: x-user-id}], algorithm: %s, limits: [%d/%s]}\n",
			r.name, r.name, r.algorithm, soakRaise*(round+1), far)
	}
	fmt.Fprintf(&b, "  - {name: flooded, match: {paths: ["+direct+"/flooded]}, key: [{header: x-user-id}], capacity: 1024, limits: [%d/%s]}\n", attackLimit, far)
	fmt.Fprintf(&b, "  - {name: renamed-%d, match: {paths: ["+direct+"/flooded]}, key: [{header: x-user-id}], capacity: 1024, limits: [1000/%s]}\n", round, far)
	return b.String()
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
	round, flooded, hits := 0, 0, 0
	for deadline := time.Now().Add(*soakTraffic); round < 3 || time.Now().Before(deadline); round++ {
		wasm := built.filter
		if round%25 >= 20 { // another binary takes over for five rounds
			wasm = other()
		}
		p.apply(t, soakPolicy(round), "--wasm", wasm)
		// The flood and the exact traffic run at the same time.
		var attacked []int16
		var attackErr error
		var attacking sync.WaitGroup
		attacking.Go(func() {
			attacked, attackErr = l.try(soakFlood+10*soakKeys, func(i int) request {
				if i < soakFlood {
					return request{direct + "/flooded", "x-user-id", fmt.Sprint("flood-", flooded+i)}
				}
				return request{direct + "/flooded", "x-user-id", fmt.Sprint("cheater-", i%soakKeys)}
			})
		})
		for _, r := range soakRules {
			n := 3 * soakRaise * soakKeys
			got := l.send(t, n, func(i int) request { return request{direct + "/" + r.name, "x-user-id", fmt.Sprint(i % soakKeys)} })
			hits += n
			passed := perKey(t, got, soakKeys, func(i int) int { return i % soakKeys })
			require.Equal(t, slices.Repeat([]int{soakRaise}, soakKeys), passed, "round %d, %s", round, r.name)
		}
		attacking.Wait()
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
	t.Logf("%d rounds, %d exact requests, %d invented keys: allocated %d KiB after the first round, %d after half of them, %d at the end; resident %d, %d, %d KiB",
		round, hits, flooded, memory[0]>>10, memory[late]>>10, memory[round-1]>>10, resident[0]>>10, resident[late]>>10, resident[round-1]>>10)
	require.Less(t, memory[round-1]-memory[late], int64(2<<20), "Envoy goes on growing")
	require.Less(t, resident[round-1]-resident[late], int64(32<<20), "Envoy goes on growing")
}
