package state

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	floorRuns = flag.Int("floor-runs", 20_000, "number of random histories that exact limiters judge")
	floorSeed = flag.Uint64("floor-seed", 1, "seed of the first history; a violation prints its own seed")
)

// violations plays runs with consecutive seeds. It returns how many violated a
// limit, and the seed and the violation of the first.
func violations(first uint64, runs int) (count int64, seed uint64, found string) {
	var next, bad atomic.Int64
	var once sync.Mutex
	inParallel(runtime.GOMAXPROCS(0), func(int) {
		for n := next.Add(1) - 1; n < int64(runs); n = next.Add(1) - 1 {
			message := newRun(first + uint64(n)).play()
			if message == "" {
				continue
			}
			bad.Add(1)
			once.Lock()
			if found == "" || first+uint64(n) < seed {
				seed, found = first+uint64(n), message
			}
			once.Unlock()
		}
	})
	return bad.Load(), seed, found
}

// TestEvictionNeverRefunds: with any evictions, refunds and configuration changes,
// no key gets more than its limit in any window.
func TestEvictionNeverRefunds(t *testing.T) {
	runs := *floorRuns
	if testing.Short() {
		runs /= 10
	}
	count, seed, found := violations(*floorSeed, runs)
	require.Zero(t, count, "replay the first with -run %s -floor-runs 1 -floor-seed %d: %s", t.Name(), seed, found)
	t.Logf("%d random steps of evictions, refunds and policy changes in %d histories from seed %d, each judged by exact limiters",
		runs*runSteps, runs, *floorSeed)
}
