package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// If a worker does not know a jittered window, its hit counts in it for a whole
// period, which is as long as on any key's grid.
func TestAnUnknownGridCountsForAWholePeriod(t *testing.T) {
	store := newMemory()
	grid := jittered(anHour, 100)
	grid.Limit = 2
	old := configured(store, "o", 1, definition("x", 4, aligned(9, second, 0)))
	next := configured(store, "o", 2, definition("x", 4, aligned(9, second, 0), grid))
	key, now := []byte("k"), 10*anHour
	require.True(t, hit(t, next, []byte("other"), now, 1))
	require.True(t, hit(t, old, key, now, 1))
	require.True(t, hit(t, old, key, now+anHour/2, 1))
	require.Equal(t, []uint32{0, 2}, used(t, next, key, now+anHour/2+second))
	require.False(t, hit(t, next, key, now+3*anHour/2-1, 1))
	require.True(t, hit(t, next, key, now+3*anHour/2, 1))
}

// A key that was reset starts anew although the page has a floor. Its empty record
// is not taken for an expired one, and hits from before the reset are not refunded
// from it.
func TestAResetKeepsTheFloorAway(t *testing.T) {
	for _, w := range []limit.Window{
		aligned(3, anHour, 0), perKey(3, anHour), slidingLog(3, anHour), slidingCounter(3, anHour), tokenBucket(3, 1, anHour),
	} {
		table := newTable(2, w)
		now := 100 * second
		for _, key := range []string{"a", "b", "c"} {
			require.True(t, hit(t, table, []byte(key), now, 2))
		}
		var old, e Entry
		require.Equal(t, OK, table.Read(&old, keyed(table, []byte("b")), now))
		require.Equal(t, OK, table.Commit(&old, 1, true))
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("c")), now))
		require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true), "b or a is evicted")
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("b")), now))
		if e.FromFloor {
			require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true))
			require.Equal(t, OK, table.Read(&old, keyed(table, []byte("b")), now))
			require.Equal(t, OK, table.Commit(&old, 1, true))
			require.Equal(t, OK, table.Read(&e, keyed(table, []byte("b")), now))
		}
		had, status := table.Reset(&e, true)
		require.True(t, had)
		require.Equal(t, OK, status)
		require.Equal(t, []uint32{0}, used(t, table, []byte("b"), now))
		require.True(t, table.floorLives(&e, now))
		require.False(t, table.Refund(&old, now, 1), "counted before the reset")
		freed, status := table.Clean(&e, table.def.Windows, now)
		require.Equal(t, OK, status)
		require.Zero(t, freed, "the empty record is not an expired one")
		require.True(t, hit(t, table, []byte("b"), now, 3))
		require.False(t, hit(t, table, []byte("b"), now, 1))
	}
}
