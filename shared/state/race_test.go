package state

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const raceWorkers = 8

// inParallel runs do once for each of so many workers, all at a time.
func inParallel(workers int, do func(worker int)) {
	var wait sync.WaitGroup
	for n := range workers {
		wait.Go(func() { do(n) })
	}
	wait.Wait()
}

// race runs do in each of raceWorkers workers, which have their own tables over one store.
func race(store Store, do func(worker int, tables *Tables)) {
	inParallel(raceWorkers, func(n int) { do(n, NewTables(store, seeded(uint64(n)), 1, 1)) })
}

func TestAHotKeyAdmitsExactlyItsLimit(t *testing.T) {
	for _, def := range []Definition{
		definition("x", 100, aligned(1000, anHour, 0)),
		definition("x", 100, perKey(1000, anHour), aligned(1500, 2*anHour, 0)),
		definition("x", 100, slidingLog(limit.MaxLog, anHour), slidingCounter(1000, anHour), tokenBucket(1000, 1, anHour)),
	} {
		lowest := 1000
		for _, w := range def.Windows {
			lowest = min(lowest, int(w.Max()))
		}
		var admitted atomic.Int64
		store := newMemory()
		race(store, func(worker int, tables *Tables) {
			table := tables.Table(def)
			for range 400 {
				if hit(t, table, []byte("hot"), 100*second+int64(worker), 1) {
					admitted.Add(1)
				}
			}
		})
		require.EqualValues(t, lowest, admitted.Load())
		require.EqualValues(t, lowest, used(t, configured(store, "o", 1, def), []byte("hot"), 101*second)[0])
	}
}
