package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// TestHoldsDoNotAllocate: neither does a stream, from its hold over a renewal to its answer,
// nor one whose hold has lapsed before.
func TestHoldsDoNotAllocate(t *testing.T) {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: 8 * second, Unlimited: true}
	const units = 1 << 31
	sliding, grid := elastic(anHour), jittered(anHour, 50)
	sliding.Limit, grid.Limit = units, units
	slots := hold
	slots.Limit, slots.Unlimited = units, false
	for name, windows := range map[string][]limit.Window{
		"in flight": {slots}, "an aligned window": {aligned(units, anHour, 0), hold},
		"all": { // of the log, one unit leaves for each that comes
			aligned(units, anHour, 0), grid, perKey(units, 2*anHour), sliding, slidingLog(limit.MaxLog, 100*ms), slidingCounter(units, anHour),
			tokenBucket(units, 1, anHour), hold,
		},
	} {
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
