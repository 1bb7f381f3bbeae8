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
	floorRuns = flag.Int("floor-runs", 300_000, "random histories against exact limiters")
	floorSeed = flag.Uint64("floor-seed", 1, "seed of the first of them; a violation prints the seed of its own")
)

// violations plays runs with consecutive seeds and returns how many violated
// a limit, with the first one's seed and what it found.
func violations(first uint64, runs int, fault fault) (count int64, seed uint64, found string) {
	var next, bad atomic.Int64
	var once sync.Mutex
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(runs) {
					return
				}
				message := newRun(first+uint64(n), fault).play()
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
	}
	wait.Wait()
	return bad.Load(), seed, found
}

// TestEvictionNeverRefunds: whatever is evicted, taken back or reconfigured,
// no key gets more than its limit in any window.
func TestEvictionNeverRefunds(t *testing.T) {
	count, seed, found := violations(*floorSeed, *floorRuns, nil)
	require.Zero(t, count, "replay the first with -run %s -floor-runs 1 -floor-seed %d: %s", t.Name(), seed, found)
	t.Logf("%d runs, seeds from %d", *floorRuns, *floorSeed)
}

// parsed returns the bucket that is about to be written, if it is one.
func parsed(key, value []byte) (bucket, Layout, bool) {
	b := bucket(value)
	if string(key[:len(bucketPrefix)]) != bucketPrefix || !b.readable() {
		return nil, Layout{}, false
	}
	return b, b.layout(), true
}

// plantedFaults are ways to get it wrong that the runs must notice.
var plantedFaults = map[string]fault{
	"eviction leaves no floor": func(_ *shelfView, key, value []byte, cas uint32) uint32 {
		if b, l, ok := parsed(key, value); ok {
			clear(b[l.floor:l.fingerprints])
		}
		return cas
	},
	"the floor has no time": func(_ *shelfView, key, value []byte, cas uint32) uint32 {
		if b, _, ok := parsed(key, value); ok {
			b.setFloorTime(0)
		}
		return cas
	},
	"a record's time goes back": func(v *shelfView, key, value []byte, cas uint32) uint32 {
		if b, l, ok := parsed(key, value); ok {
			for slot := range l.Slots {
				if !b.free(&l, slot) && b.time(&l, slot) > v.now {
					b.setTime(&l, slot, v.now)
				}
			}
		}
		return cas
	},
	"a newcomer's window does not slide": func(_ *shelfView, key, value []byte, cas uint32) uint32 {
		if b, l, ok := parsed(key, value); ok {
			for slot := range l.Slots {
				for i := range l.Windows {
					u := b.usage(&l, slot, i)
					u.Slides = false
					b.setUsage(&l, slot, i, u)
				}
			}
		}
		return cas
	},
	"creators overwrite each other": func(_ *shelfView, _, _ []byte, cas uint32) uint32 {
		if cas == CreateOnly {
			return 0
		}
		return cas
	},
	"writers overwrite each other": func(_ *shelfView, key, _ []byte, cas uint32) uint32 {
		if string(key[:len(bucketPrefix)]) == bucketPrefix {
			return 0
		}
		return cas
	},
}

func TestTheRunsNoticePlantedFaults(t *testing.T) {
	for name, fault := range plantedFaults {
		t.Run(name, func(t *testing.T) {
			const runs = 20_000
			count, seed, found := violations(1, runs, fault)
			require.Positive(t, count, "nothing noticed in %d runs", runs)
			t.Logf("%d violations in %d runs, the first with seed %d: %s", count, runs, seed, found)
		})
	}
}
