package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// If a clock was an hour ahead for one hit, the key is not locked out for an hour.
func TestAWildClockIsMovedToThePresent(t *testing.T) {
	sliding := elastic(second)
	sliding.Limit = 3
	for _, w := range []limit.Window{aligned(3, second, 0), perKey(3, second), slidingLog(3, second), sliding} {
		table := newTable(1, w)
		key, now := []byte("k"), 100*second
		require.True(t, hit(t, table, key, now+anHour, 3))

		var e Entry
		require.Equal(t, OK, table.Read(&e, keyed(table, key), now))
		require.True(t, e.Rebased)
		require.Equal(t, now, e.Now)
		pass := table.Check(&e, 1)
		require.Equal(t, now+second, pass, "the hit counts in the present window")
		table.Persist(&e)
		require.Equal(t, OK, table.Read(&e, keyed(table, key), pass))
		require.False(t, e.Rebased, "Persist has written it")
		require.True(t, hit(t, table, key, pass, 1))

		// A floor that was written under a wild clock is moved too.
		require.True(t, hit(t, table, []byte("a"), now+anHour, 3))
		require.True(t, hit(t, table, []byte("b"), now+anHour+2*second, 2))
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("c")), now+2*second))
		require.True(t, e.Rebased)
		require.Equal(t, now+2*second, e.Now)
		require.Equal(t, OK, table.Commit(&e, 1, true))
	}
}

// A clock that steps back by less than the horizon shortens no window.
func TestAClockThatStepsBackCountsOn(t *testing.T) {
	table := newTable(4, aligned(3, second, 0))
	key, now := []byte("k"), 100*second
	require.True(t, hit(t, table, key, now, 3))
	require.False(t, hit(t, table, key, now-5*second, 1))
	require.False(t, hit(t, table, key, now+second-1, 1))
	require.True(t, hit(t, table, key, now+second, 1))
}

// Two rules share a counter. The read of the second may find a new layout; the
// entry of the first, made with the old layout, must not be written then.
func TestAnEntryOfAnOldLayoutIsReadAgain(t *testing.T) {
	store := newMemory()
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	old := configured(store, "o", 1, definition("x", 4, hour))
	next := configured(store, "o", 2, definition("x", 4, hour, day))
	key, now := []byte("k"), 100*second
	var e, f Entry
	require.Equal(t, OK, old.Read(&e, keyed(old, key), now))
	require.True(t, hit(t, next, key, now, 1))
	require.Equal(t, OK, old.Read(&f, keyed(old, key), now))
	require.Equal(t, Mismatch, old.Commit(&e, 1, true))
	require.Equal(t, OK, old.Commit(&f, 1, true))
	require.Equal(t, []uint32{2, 2}, used(t, next, key, now))
}

// convert keeps the records and the floor of every window that stays.
func TestConvertKeepsRecordsAndFloor(t *testing.T) {
	a, b, c := aligned(9, 10*second, 0), perKey(9, 20*second), aligned(9, 30*second, 7*second)
	from := NewLayout(definition("x", 2, a, b).Windows, 2)
	to := NewLayout(definition("x", 2, b, c).Windows, 2)
	old := newPage(&from, 3)
	old.setFloorTime(77 * second)
	le.PutUint16(old[offGeneration:], 5)
	old.place(&from, 1, 0xfeedface)
	old.setTime(&from, 1, 78*second)
	for i, u := range []uint32{3, 4} {
		v := old.usage(&from, 1, i, nil)
		a.Add(&v, 78*second, u)
		if i == 1 {
			v.EndNs, v.Slides = 98*second, true
		}
		old.setUsage(&from, 1, i, &v)
		v.Used += 2
		old.setFloor(&from, i, v)
	}
	got := old.convert(&from, &to, 8)
	require.True(t, got.readable())
	require.EqualValues(t, 8, got.epoch())
	require.EqualValues(t, 5, got.generation())
	require.Equal(t, 77*second, got.floorTime())
	require.True(t, got.free(&to, 0))
	require.Equal(t, 1, got.find(&to, 0xfeedface))
	require.Equal(t, 78*second, got.time(&to, 1))
	require.EqualValues(t, 5, got.recordGeneration(&to, 1))
	require.Equal(t, old.usage(&from, 1, 1, nil), got.usage(&to, 1, 0, nil), "kept, in another column")
	require.Equal(t, old.floor(&from, 1), got.floor(&to, 0))
	require.Zero(t, got.usage(&to, 1, 1, nil), "new")
	require.Zero(t, got.floor(&to, 1))

	reversed := NewLayout(definition("x", 2, c, b).Windows, 2)
	again := got.convert(&to, &reversed, 9).convert(&reversed, &to, 8)
	require.Equal(t, got, again, "another order loses nothing")
}

// What a wild clock wrote for a sliding counter, a token bucket or a jittered
// window counts as of now.
func TestAWildClockLocksNobodyOut(t *testing.T) {
	grid := jittered(second, 100)
	grid.Limit = 3
	now := 100 * second
	for name, c := range map[string]struct {
		window limit.Window
		wait   int64
	}{
		"counter":  {slidingCounter(3, second), second + second/3 + 1},
		"bucket":   {tokenBucket(3, 3, second), second/3 + 1},
		"jittered": {grid, second},
	} {
		table := newTable(1, c.window)
		require.True(t, hit(t, table, []byte("k"), now+anHour, 3))
		var e Entry
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("k")), now))
		require.True(t, e.Rebased, name)
		pass := table.Check(&e, 1)
		require.Greater(t, pass, now, name)
		require.LessOrEqual(t, pass, now+c.wait, name)
		table.Persist(&e)
		require.True(t, hit(t, table, []byte("k"), pass, 1), name)

		// So does the floor of an evicted key that had used its whole limit.
		require.True(t, hit(t, table, []byte("a"), now+anHour, 3))
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("b")), now+anHour))
		require.Equal(t, OK, table.Inc(&e, AllWindows, 1, true))
		require.Equal(t, OK, table.Read(&e, keyed(table, []byte("c")), now))
		require.True(t, e.Rebased, name)
		pass = table.Check(&e, 1)
		require.Greater(t, pass, now, name)
		require.LessOrEqual(t, pass, now+c.wait, name)
	}
}

// A wild clock that removes a record moves the floor's time far ahead. Records
// that are written later are not cleaned for that.
func TestCleanIsNotMisledByAWildClock(t *testing.T) {
	now := 1000 * second
	for name, w := range map[string]limit.Window{
		"per key": perKey(3, second), "log": slidingLog(3, second), "counter": slidingCounter(3, second),
		"bucket": tokenBucket(3, 3, second), "aligned": aligned(3, second, 0),
	} {
		table := newTable(2, w)
		require.True(t, hit(t, table, []byte("a"), now, 3))
		require.True(t, hit(t, table, []byte("b"), now, 1))
		require.True(t, hit(t, table, []byte("w"), now+anHour, 1), "it takes the slot of a or b, which have ended by then")
		require.True(t, hit(t, table, []byte("b"), now, 2), "%s: b must have kept its slot", name)
		var e Entry
		stats, status := table.Stats(&e, table.def.Windows, now)
		require.Equal(t, OK, status)
		require.EqualValues(t, 2, stats.Keys, name)
		freed, status := table.Clean(&e, table.def.Windows, now)
		require.Equal(t, OK, status)
		require.Zero(t, freed, name)
		require.False(t, hit(t, table, []byte("b"), now, 3), name)
	}
}

// While the clock is behind a page's floor, a key that is evicted keeps the time that it
// still has to wait: its own clock has not reached the floor's time.
func TestAnEvictionBehindTheFloorRefundsNothing(t *testing.T) {
	grid := jittered(7*second, 100)
	grid.Limit = 2
	for name, w := range map[string]limit.Window{
		"per key": perKey(2, 7*second), "log": slidingLog(2, 7*second), "bucket": tokenBucket(2, 2, 7*second), "jittered": grid,
	} {
		table := newTable(1, w)
		now := 100_000 * second
		require.True(t, hit(t, table, []byte("a"), now+8*second, 1))
		require.True(t, hit(t, table, []byte("b"), now, 2), name) // a becomes the floor, 8 s ahead
		require.True(t, hit(t, table, []byte("c"), now+second, 1), name)
		require.False(t, hit(t, table, []byte("b"), now+2*second, 1), name)
	}
}
