package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const anHour = 3600 * second

// configured returns the table of one definition in a configuration of its own.
func configured(store Store, owner string, configuredNs int64, def Definition) *Table {
	return NewTables(store, seeded(1), OwnerID(owner), configuredNs).Table(def)
}

func TestOwnersShareWhatTheyDefineAlike(t *testing.T) {
	store := newMemory()
	def := definition("x", 100, aligned(3, anHour, 0))
	a, b := configured(store, "a", 1, def), configured(store, "b", 2, def)
	require.True(t, hit(t, a, []byte("k"), second, 1))
	require.True(t, hit(t, b, []byte("k"), second, 1))
	require.True(t, hit(t, a, []byte("k"), second, 1))
	require.False(t, hit(t, b, []byte("k"), second, 1))
	require.Len(t, store.directory(t).tables, 1)
	require.Len(t, store.directory(t).tables[0].owners, 2)

	other := configured(store, "c", 3, definition("x", 100, perKey(3, anHour)))
	require.True(t, hit(t, other, []byte("k"), second, 3), "another definition has its own table")
	require.Len(t, store.directory(t).tables, 2)
	require.False(t, hit(t, a, []byte("k"), second, 1))

	larger := configured(store, "a", 4, definition("x", 101, aligned(3, anHour, 0)))
	require.True(t, hit(t, larger, []byte("k"), second, 3), "another capacity restarts the counter")
}

func TestWindowsChangedByTheirOnlyOwnerKeepWhatRemains(t *testing.T) {
	store := newMemory()
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	key, now := []byte("k"), 100*second
	old := configured(store, "o", 1, definition("x", 100, hour))
	require.True(t, hit(t, old, key, now, 4))

	next := configured(store, "o", 2, definition("x", 100, hour, day))
	require.Equal(t, []uint32{4, 0}, used(t, next, key, now), "the new window starts empty")
	require.True(t, hit(t, next, key, now, 1))
	require.False(t, hit(t, next, key, now, 1))
	require.False(t, hit(t, old, key, now, 1), "the old worker sees what the new one counted")
	require.Equal(t, []uint32{5}, used(t, old, key, now))
	require.Equal(t, []uint32{5, 1}, used(t, next, key, now), "the old worker has dropped nothing")

	require.True(t, hit(t, old, []byte("late"), now, 2))
	require.Equal(t, []uint32{2, 2}, used(t, next, []byte("late"), now), "an old worker's hit counts in every window")

	raised := configured(store, "o", 3, definition("x", 100, aligned(7, anHour, 0), day))
	require.True(t, hit(t, raised, key, now, 2), "a raised limit admits the difference")
	require.False(t, hit(t, raised, key, now, 1))

	only := configured(store, "o", 4, definition("x", 100, day))
	require.Equal(t, []uint32{3}, used(t, only, key, now))
	require.True(t, hit(t, only, key, now, 1))
	again := configured(store, "o", 5, definition("x", 100, hour, day))
	require.Equal(t, []uint32{0, 4}, used(t, again, key, now), "a dropped window comes back empty")
	require.Len(t, store.directory(t).tables, 1)
}

func TestAVanishedCounterComesBack(t *testing.T) {
	store := newMemory()
	def := definition("x", 100, aligned(5, anHour, 0))
	key, now := []byte("k"), 100*second
	x := configured(store, "o", 1, def)
	require.True(t, hit(t, x, key, now, 4))
	y := configured(store, "o", 2, definition("y", 100, aligned(5, anHour, 0)))
	require.True(t, hit(t, y, key, now, 1))
	require.Len(t, store.directory(t).tables, 2)

	back := configured(store, "o", 3, def)
	require.Equal(t, []uint32{4}, used(t, back, key, now), "it came back before its windows had ended")
	for _, e := range store.directory(t).tables {
		require.Equal(t, e.counter == def.Counter, e.vanishedNs == 0)
	}
}

func TestAStaleWorkerCannotDisturbAReusedNumber(t *testing.T) {
	hour := limit.Window{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: anHour}
	for name, windows := range map[string][]limit.Window{
		"the same windows": {hour}, "other windows": {hour, perKey(5, 2*anHour)},
	} {
		store := newMemory()
		key, now := []byte("k"), 100*second
		stale := configured(store, "o", 1, definition("x", 4, hour))
		require.True(t, hit(t, stale, key, now, 5), name)
		other := configured(store, "o", 2, definition("y", 4, hour))
		require.True(t, hit(t, other, key, now, 1))
		now += 2 * anHour
		z := configured(store, "o", 3, definition("z", 4, windows...))
		require.Equal(t, OK, z.Read(new(Entry), keyed(z, key), now))
		require.Equal(t, stale.number, z.number, "%s: the number is used again", name)

		require.True(t, hit(t, stale, key, now, 3), "%s: z has not written yet", name)
		require.EqualValues(t, 0, used(t, z, key, now)[0], name)
		require.True(t, hit(t, z, key, now, 4), name)
		require.True(t, hit(t, stale, key, now, 1), name)
		require.NotEqual(t, z.number, stale.number, "%s: the stale worker has a table of its own again", name)
		require.EqualValues(t, 4, used(t, z, key, now)[0], name)

		require.Equal(t, OK, z.tables.Heartbeat(now))
		for _, e := range store.directory(t).tables {
			require.Equal(t, e.counter == z.def.Counter, len(e.owners) > 0, "%s: only z is in use", name)
		}
	}
}

func TestAClockSetBackDoesNotFreezeLayouts(t *testing.T) {
	store := newMemory()
	hour, day := aligned(5, anHour, 0), aligned(9, 24*anHour, 0)
	key, now := []byte("k"), 10*anHour
	ahead := configured(store, "o", now, definition("x", 100, hour))
	require.True(t, hit(t, ahead, key, now, 1))

	now -= anHour
	next := configured(store, "o", now, definition("x", 100, hour, day))
	require.True(t, hit(t, next, key, now, 1))
	require.Equal(t, []int{0, 1}, next.columns[:2:2], "the newer configuration has its windows")

	epoch := store.directory(t).tables[0].epoch
	require.Equal(t, OK, ahead.tables.Heartbeat(now))
	require.Equal(t, epoch, store.directory(t).tables[0].epoch, "the configuration from before the step does not undo it")
	require.Equal(t, OK, next.tables.Heartbeat(now))
	require.Equal(t, epoch, store.directory(t).tables[0].epoch)
}
