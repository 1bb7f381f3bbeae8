package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// shapes returns a window of each algorithm, and mixes of them.
func shapes() map[string][]limit.Window {
	const units = 1 << 31
	logged := slidingLog(limit.MaxLog, 100*ms) // one unit leaves for each that comes
	sliding, grid := elastic(anHour), jittered(anHour, 50)
	sliding.Limit, grid.Limit = units, units
	bucket := tokenBucket(units, 1, anHour)
	return map[string][]limit.Window{
		"fixed window":           {aligned(units, anHour, 0)},
		"fixed window per key":   {perKey(units, 2*anHour)},
		"fixed window, jittered": {grid},
		"fixed window, elastic":  {sliding},
		"sliding window log":     {logged},
		"sliding window counter": {slidingCounter(units, anHour)},
		"token bucket":           {bucket},
		"a fixed and a per-key":  {aligned(units, anHour, 0), perKey(units, 2*anHour)},
		"all of them":            {aligned(units, anHour, 0), grid, perKey(units, 2*anHour), logged, slidingCounter(units, anHour), bucket},
	}
}

// TestHoldsDoNotAllocate: neither does a stream, from its hold over a renewal to its answer,
// nor one whose hold has lapsed before.
func TestHoldsDoNotAllocate(t *testing.T) {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: 8 * second, Unlimited: true}
	shapes := shapes()
	for name := range shapes {
		shapes[name] = append(shapes[name], hold)
	}
	hold.Limit, hold.Unlimited = 1<<31, false
	shapes["in flight"] = []limit.Window{hold}
	for name, windows := range shapes {
		store := &view{memory: newMemory()}
		table := configured(store, "o", 1, definition("x", 2, windows...))
		keys := []Key{keyed(table, []byte("a")), keyed(table, []byte("b")), keyed(table, []byte("c"))}
		e, now := new(Entry), 100*second
		stream := func() { // an eighth
			now += second
			store.mono += second
			for i, key := range keys {
				require.Equal(t, OK, table.Read(e, key, now))
				waits := table.Check(e, 1) != e.Now // an int64 in an interface is allocated
				require.False(t, waits)
				r, status := table.Hold(e, 1, true)
				require.Equal(t, OK, status)
				if i == 0 {
					continue // lost
				}
				_, status = table.Renew(e, key, &r, now)
				require.Equal(t, OK, status)
				_, status = table.Settle(e, key, r, now, 2)
				require.Equal(t, OK, status)
			}
		}
		for range 100 {
			stream()
		}
		require.Zero(t, testing.AllocsPerRun(200, stream), name)
	}
}
