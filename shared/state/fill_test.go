package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var (
	oneWindow = []limit.Window{aligned(5, second, 0)}
	// manyWindows make a record too large for a page of 32 slots.
	manyWindows = []limit.Window{
		perKey(5, second), perKey(5, 2*second), perKey(5, 3*second), perKey(5, 4*second), perKey(5, 5*second),
	}
)

func TestGeometry(t *testing.T) {
	for _, c := range []struct {
		windows  []limit.Window
		capacity uint32
		want     Geometry
	}{
		{oneWindow, 0, Geometry{1, 1}},
		{oneWindow, 1, Geometry{1, 1}},
		{oneWindow, 31, Geometry{1, 31}},
		{oneWindow, 32, Geometry{1, 32}},
		{oneWindow, 33, Geometry{2, 32}},
		{oneWindow, 44, Geometry{2, 32}},
		{oneWindow, 45, Geometry{3, 32}},
		{oneWindow, 65536, Geometry{2926, 32}},
		{oneWindow, 1 << 31, Geometry{95869806, 32}},
		{oneWindow, 1<<32 - 1, Geometry{191739612, 32}},
		{manyWindows, 16, Geometry{1, 16}},
		{manyWindows, 17, Geometry{2, 16}},
		{manyWindows, 65536, Geometry{6827, 16}},
		{[]limit.Window{slidingLog(60, second)}, 8, Geometry{1, 8}},
		{[]limit.Window{slidingLog(60, second)}, 65536, Geometry{18619, 8}},
		{[]limit.Window{slidingLog(limit.MaxLog, second)}, 4, Geometry{1, 4}},
		{[]limit.Window{slidingLog(limit.MaxLog, second)}, 65536, Geometry{68267, 4}},
	} {
		got := GeometryFor(c.windows, c.capacity)
		require.Equal(t, c.want, got, "capacity %d", c.capacity)
		require.GreaterOrEqual(t, got.TotalSlots(), uint64(c.capacity))
	}
	require.EqualValues(t, 2926*(96+620+124), HostBytes(oneWindow, 65536), "about 38 bytes a key")
	require.EqualValues(t, 96+62+12, HostBytes(oneWindow, 1))
}

// fullShare returns the share of new keys that meet a full page in a table at
// capacity: while the table fills, and later with keys coming and going. A key
// lives for one window, and one new key comes each millisecond, so that capacity
// keys are live.
func fullShare(t *testing.T, slots uint8, capacity uint32) (filling, steady float64) {
	life := int64(capacity) * ms
	windows := map[uint8][]limit.Window{
		32: {perKey(5, life)},
		16: {perKey(5, life), perKey(5, life+1), perKey(5, life+2), perKey(5, life+3), perKey(5, life+4)},
		8:  {slidingLog(60, life)},
		4:  {slidingLog(150, life)},
	}[slots]
	table := newTable(capacity, windows...)
	require.Equal(t, slots, GeometryFor(windows, capacity).Slots)
	var e Entry
	newcomers := func(from, to int) float64 {
		full := 0
		for n := from; n < to; n++ {
			require.Equal(t, OK, table.Read(&e, keyed(table, numbered(n)), int64(1+n)*ms))
			switch status := table.Commit(&e, 1, false); status {
			case Full:
				full++
			default:
				require.Equal(t, OK, status)
			}
		}
		return float64(full) / float64(to-from)
	}
	n := int(capacity)
	filling = newcomers(0, n)
	newcomers(n, 2*n)
	return filling, newcomers(2*n, max(8*n, 10_000))
}

func TestFewNewKeysMeetAFullPage(t *testing.T) {
	for _, c := range []struct {
		slots    uint8
		capacity uint32
	}{
		{32, 33}, {32, 44}, {32, 224}, {32, 2240}, {32, 20_000}, {16, 17}, {16, 200}, {16, 2000}, {16, 20_000},
		{8, 9}, {8, 100}, {8, 1000}, {8, 5000}, {4, 5}, {4, 50}, {4, 500}, {4, 5000},
	} {
		if testing.Short() && c.capacity > 1000 {
			continue
		}
		filling, steady := fullShare(t, c.slots, c.capacity)
		require.Less(t, filling, 0.02, "%+v", c)
		require.Less(t, steady, 0.02, "%+v", c)
		t.Logf("%d slots, capacity %d: %.2f %% while it fills, %.2f %% with keys coming and going",
			c.slots, c.capacity, 100*filling, 100*steady)
	}
}
