package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func hotPath(t testing.TB, windows ...limit.Window) (decide func() Status) {
	store := &view{memory: newMemory()}
	table := configured(store, "o", 1, definition("x", 4096, windows...))
	e := new(Entry)
	for n := range 2_000 {
		require.True(t, hitInto(t, table, e, numbered(n), 100*second, 1))
	}
	require.True(t, hitInto(t, table, e, []byte("user-17"), 100*second, 1))
	key := keyed(table, []byte("user-17"))
	now := 100 * second
	return func() Status {
		now += ms
		if status := table.Read(e, key, now); status != OK {
			return status
		}
		if table.Check(e, 1) != e.Now {
			return Full
		}
		return table.Commit(e, 1, true)
	}
}

// windowsOf returns a window of each algorithm, and mixes of them, with a limit of
// units an hour.
func windowsOf(units uint32) map[string][]limit.Window {
	logged := slidingLog(min(units, limit.MaxLog), anHour)
	if units > limit.MaxLog {
		logged = slidingLog(limit.MaxLog, 100*ms) // one unit leaves for each that comes
	}
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

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	for name, windows := range windowsOf(1 << 31) {
		admitted := hotPath(t, windows...)
		var status Status
		require.Zero(t, testing.AllocsPerRun(1000, func() { status = admitted() }), name)
		require.Equal(t, OK, status, name)
	}
	for name, windows := range windowsOf(1) {
		denied := hotPath(t, windows...)
		var status Status
		require.Zero(t, testing.AllocsPerRun(1000, func() { status = denied() }), name)
		require.Equal(t, Full, status, name)
	}
}

// TestHoldsDoNotAllocate: neither does a stream, from its hold over a renewal to its answer,
// nor one whose hold has lapsed before.
func TestHoldsDoNotAllocate(t *testing.T) {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: 8 * second, Unlimited: true}
	shapes := windowsOf(1 << 31)
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

// A new key in a full page reads every record of the page.
func TestEvictionDoesNotAllocate(t *testing.T) {
	for name, windows := range windowsOf(1 << 31) {
		store := &view{memory: newMemory()}
		table := configured(store, "o", 1, definition("x", 4, windows...))
		e, keys := new(Entry), make([]Key, 64)
		for n := range keys {
			keys[n] = keyed(table, numbered(n))
		}
		n := 0
		newcomer := func() {
			n++
			require.Equal(t, OK, table.Read(e, keys[n%len(keys)], 100*second))
			require.Equal(t, OK, table.Commit(e, 1, true))
		}
		for range 2 * len(keys) {
			newcomer()
		}
		require.True(t, e.Evicted, name)
		require.Zero(t, testing.AllocsPerRun(200, newcomer), name)
	}
}
