package state

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// TestLogsGrowAndShrink: no unit is lost when a limit is raised, and a layout with
// more or less room than before gives no quota back.
func TestLogsGrowAndShrink(t *testing.T) {
	store := newMemory()
	key, now := []byte("k"), 100*second
	small := configured(store, "o", 1, definition("x", 4, slidingLog(3, anHour)))
	require.True(t, hit(t, small, key, now, 2))
	large := configured(store, "o", 2, definition("x", 4, slidingLog(6, anHour)))
	require.True(t, hit(t, large, key, now+1, 4), "a raised limit admits at once")
	require.False(t, hit(t, large, key, now+2, 1))
	require.False(t, hit(t, small, key, now+2, 1), "the old worker sees them all")
	lowered := configured(store, "o", 3, definition("x", 4, slidingLog(2, anHour)))
	require.False(t, hit(t, lowered, key, now+3, 1), "a lowered limit denies at once")
	require.EqualValues(t, 6, store.directory(t).tables[0].windows[0].Units, "a lowered limit forgets nothing")
	again := configured(store, "o", 4, definition("x", 4, slidingLog(6, anHour)))
	require.False(t, hit(t, again, key, now+anHour-1, 1))
	require.True(t, hit(t, again, key, now+anHour, 2))
	require.False(t, hit(t, again, key, now+anHour, 1))

	counted := limit.Usage{Log: []int64{1, 2, 3}}
	require.Equal(t, limit.Usage{Log: []int64{2, 3}, Cut: true}, refit(counted, 2))
	require.Equal(t, counted, refit(counted, 5))
	require.Equal(t, limit.Usage{Log: []int64{2, 2, 2, 3}, Cut: true}, refit(limit.Usage{Log: []int64{2, 3}, Cut: true}, 4))
}

func TestAPageOfLogsStaysSmall(t *testing.T) {
	for units := uint32(1); units <= limit.MaxLog; units++ {
		windows := []limit.Window{slidingLog(units, anHour)}
		g := GeometryFor(windows, 1_000_000)
		l := NewLayout(windows, int(g.Slots))
		require.LessOrEqual(t, l.ValueBytes(), 16<<10, "%d units, %d slots", units, g.Slots)
		require.GreaterOrEqual(t, g.Slots, uint8(4))
	}
}

// TestStoredAlgorithms: records hold every algorithm, and the random histories have it, but for
// months, which are longer than these: steptest has them.
func TestStoredAlgorithms(t *testing.T) {
	for _, a := range limit.Counting {
		part, floor := usageBytes(limit.Window{Algorithm: a})
		require.True(t, part > 0 && floor > 0, "algorithm %d", a)
		require.Equal(t, a != limit.Calendar, slices.ContainsFunc(slices.Concat(floorShapes...), func(w limit.Window) bool { return w.Algorithm == a }), "algorithm %d", a)
	}
}
