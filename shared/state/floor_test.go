package state

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	judge(t, func(seed uint64) string { return newRun(seed, false, false).play() })
}

// TestHeldNeverOver: with any answers, lost holds, evictions, resets, clock steps and
// configuration changes, what a key has used and holds is within its limit in every window
// when a hit is admitted, where each hold is charged with its answer.
func TestHeldNeverOver(t *testing.T) {
	judge(t, func(seed uint64) string { return newRun(seed, true, false).play() })
}

// TestHeldIsExact: where no key is evicted, a hit is admitted iff what its key has used and
// holds leaves room, and lost holds lapse after nine eighths.
func TestHeldIsExact(t *testing.T) {
	judge(t, func(seed uint64) string { return newRun(seed, true, true).play() })
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

func elastic(period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, PeriodNs: period, Elastic: true}
}

func jittered(period int64, percent uint8) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, PeriodNs: period, Jitter: percent}
}

func slidingLog(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowLog, Limit: units, PeriodNs: period, Units: uint16(units)}
}

func slidingCounter(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowCounter, Limit: units, PeriodNs: period}
}

func tokenBucket(burst, requests uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.TokenBucket, Limit: requests, PeriodNs: period, Burst: burst}
}

// floorShapes are the mixes of windows for the runs, without limits: each
// algorithm alone, layered with itself, and layered with others.
var floorShapes = [][]limit.Window{
	{aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 13*tick)},
	{perKey(0, 20*tick)},
	{perKey(0, 20*tick), perKey(0, 31*tick)},
	{aligned(0, 7*tick, 0), aligned(0, 20*tick, 3*tick)},
	{perKey(0, 13*tick), aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 0), perKey(0, 20*tick)},
	{aligned(0, 11*tick, 0), perKey(0, 20*tick), aligned(0, 43*tick, 5*tick)},
	{elastic(20 * tick)},
	{jittered(20*tick, 100)},
	{jittered(20*tick, 40), perKey(0, 31*tick)},
	{slidingLog(0, 20*tick)},
	{slidingLog(0, 13*tick), slidingLog(0, 31*tick)},
	{slidingCounter(0, 20*tick)},
	{slidingCounter(0, 7*tick), aligned(0, 20*tick, 0)},
	{tokenBucket(0, 0, 20*tick)},
	{tokenBucket(0, 0, 7*tick), tokenBucket(0, 0, 31*tick)},
	{tokenBucket(0, 0, 7*tick), aligned(0, 20*tick, 0)},
	{slidingLog(0, 13*tick), slidingCounter(0, 20*tick), tokenBucket(0, 0, 20*tick), jittered(31*tick, 50), elastic(7 * tick)},
}
