package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// withLimits returns a key with limits of its own.
func withLimits(table *Table, key string, windows ...limit.Window) Key {
	return Key{Bytes: []byte(key), Windows: windows, Rule: table.def.Windows}
}

// A key has a larger bucket than the rule's. It is not the least used only because
// a bucket of the rule's size would be full, and it gains nothing if it is evicted.
func TestALargerTokenBucketIsNotRefunded(t *testing.T) {
	table := newTable(2, tokenBucket(10, 10, second))
	own := withLimits(table, "large", tokenBucket(100, 1, second))
	now := 100 * second
	var e Entry
	read := func(key Key) *Entry {
		require.Equal(t, OK, table.Read(&e, key, now))
		return &e
	}
	require.Equal(t, now, table.Check(read(own), 60))
	require.Equal(t, OK, table.Commit(&e, 60, true))
	require.True(t, hit(t, table, []byte("b"), now, 1))
	require.True(t, hit(t, table, []byte("c"), now, 1), "b is evicted")
	require.Equal(t, now, table.Check(read(own), 40))
	require.False(t, e.FromFloor)
	require.Equal(t, now+second, table.Check(&e, 41))
	require.Equal(t, OK, table.Commit(&e, 40, true))

	small := newTable(1, tokenBucket(10, 10, second))
	table, own = small, withLimits(small, "large", tokenBucket(100, 1, second))
	require.Equal(t, now, table.Check(read(own), 60))
	require.Equal(t, OK, table.Commit(&e, 60, true))
	read(keyed(table, []byte("b")))
	require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true))
	require.True(t, e.Evicted)
	require.Equal(t, now+1, table.Check(read(own), 40), "a nanosecond late")
	require.Equal(t, now+second+1, table.Check(&e, 41), "its usage was not lost")
	require.True(t, e.FromFloor)
}

// A key with another rate than the rule's waits exactly as long as Check says,
// also if it starts from a floor.
func TestAKeyOfAnotherRateIsNotLockedOut(t *testing.T) {
	table := newTable(1, tokenBucket(10, 1, second))
	own := withLimits(table, "slow", tokenBucket(10, 2, second))
	now := 100 * second
	require.True(t, hit(t, table, []byte("a"), now, 10))
	var e Entry
	require.Equal(t, OK, table.Read(&e, keyed(table, []byte("b")), now))
	require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true), "a is evicted")
	require.Equal(t, OK, table.Read(&e, own, now))
	require.True(t, e.FromFloor)
	pass := table.Check(&e, 1)
	require.Greater(t, pass, now)
	require.Equal(t, OK, table.Read(&e, own, pass-1))
	require.Equal(t, pass, table.Check(&e, 1))
	require.Equal(t, OK, table.Read(&e, own, pass))
	require.Equal(t, pass, table.Check(&e, 1))
	require.Equal(t, OK, table.Read(&e, own, now+11*second))
	require.Equal(t, now+11*second, table.Check(&e, 10), "the floor has ended")
}

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
