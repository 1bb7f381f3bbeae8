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
func violations(first uint64, runs int, play func(seed uint64) string) (count int64, seed uint64, found string) {
	var next, bad atomic.Int64
	var once sync.Mutex
	inParallel(runtime.GOMAXPROCS(0), func(int) {
		for n := next.Add(1) - 1; n < int64(runs); n = next.Add(1) - 1 {
			message := play(first + uint64(n))
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
	judge(t, func(seed uint64) string { return newRun(seed).play() })
}

// TestHeldNeverOver: with any answers, lost holds, evictions, resets, clock steps and
// configuration changes, what a key has used and holds is within its limit in every window
// when a hit is admitted, where each hold is charged with its answer.
func TestHeldNeverOver(t *testing.T) {
	judge(t, func(seed uint64) string { return newHeldRun(seed, false).playHeld() })
}

// TestHeldIsExact: where no key is evicted, a hit is admitted iff what its key has used and
// holds leaves room, and lost holds lapse after nine eighths.
func TestHeldIsExact(t *testing.T) {
	judge(t, func(seed uint64) string { return newHeldRun(seed, true).playHeld() })
}

// judge plays random histories, and requires that none violates a limit.
func judge(t *testing.T, play func(seed uint64) string) {
	runs := *floorRuns
	if testing.Short() {
		runs /= 10
	}
	count, seed, found := violations(*floorSeed, runs, play)
	require.Zero(t, count, "replay the first with -run %s -floor-runs 1 -floor-seed %d: %s", t.Name(), seed, found)
	t.Logf("%d histories from seed %d, each judged by exact limiters", runs, *floorSeed)
}
