package page

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const second = int64(1_000_000_000)

// A hit from before a reset is not refunded after it, whatever has become of the layout.
func TestConvertKeepsTheGeneration(t *testing.T) {
	from := NewLayout([]limit.Window{{Algorithm: limit.FixedWindow, Limit: 9, PeriodNs: 10 * second}}, 2)
	to := NewLayout([]limit.Window{{Algorithm: limit.FixedWindowPerKey, Limit: 9, PeriodNs: 20 * second}}, 2)
	old := New(from, 3)
	generation := old.NextGeneration()
	old.Place(1, 0xfeedface)
	old.SetTime(1, second)
	old.SetGeneration(1, generation)
	old.MarkReset(1)
	got, ok := Read(old.Convert(to, 8).Bytes)
	require.True(t, ok)
	require.Equal(t, generation, got.generation())
	require.Equal(t, generation, got.Generation(1))
	require.Equal(t, old.record(1)[:recordHeadBytes], got.record(1)[:recordHeadBytes], "that it was reset, too")
}

var (
	oneWindow = []limit.Window{{Algorithm: limit.FixedWindow, Limit: 5, PeriodNs: second}}
	// manyWindows make a record too large for a page of 32 slots.
	manyWindows = []limit.Window{
		perKey(second), perKey(2 * second), perKey(3 * second), perKey(4 * second), perKey(5 * second),
	}
)

func perKey(periodNs int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: 5, PeriodNs: periodNs}
}

func slidingLog(units uint32) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowLog, Limit: units, PeriodNs: second, Units: uint16(units)}
}

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
		{[]limit.Window{slidingLog(60)}, 8, Geometry{1, 8}},
		{[]limit.Window{slidingLog(60)}, 65536, Geometry{18619, 8}},
		{[]limit.Window{slidingLog(limit.MaxLog)}, 4, Geometry{1, 4}},
		{[]limit.Window{slidingLog(limit.MaxLog)}, 65536, Geometry{68267, 4}},
	} {
		got := GeometryFor(c.windows, c.capacity)
		require.Equal(t, c.want, got, "capacity %d", c.capacity)
		require.GreaterOrEqual(t, got.TotalSlots(), uint64(c.capacity))
	}
	require.EqualValues(t, 2926*(96+620+124), HostBytes(oneWindow, 65536), "about 38 bytes a key")
	require.EqualValues(t, 96+62+12, HostBytes(oneWindow, 1))
}

func TestAPageOfLogsStaysSmall(t *testing.T) {
	for units := uint32(1); units <= limit.MaxLog; units++ {
		windows := []limit.Window{slidingLog(units)}
		g := GeometryFor(windows, 1_000_000)
		l := NewLayout(windows, int(g.Slots))
		require.LessOrEqual(t, l.ValueBytes(), 16<<10, "%d units, %d slots", units, g.Slots)
		require.GreaterOrEqual(t, g.Slots, uint8(4))
	}
}

// A layout with more or less room for a log than before gives no quota back.
func TestALogIsFitted(t *testing.T) {
	counted := limit.Usage{Log: []int64{1, 2, 3}}
	require.Equal(t, limit.Usage{Log: []int64{2, 3}, Cut: true}, fitLog(counted, 2))
	require.Equal(t, counted, fitLog(counted, 5))
	cut := limit.Usage{Log: []int64{2, 3}, Cut: true}
	require.Equal(t, limit.Usage{Log: []int64{2, 2, 2, 3}, Cut: true}, fitLog(cut, 4))
}

// Records and floors hold what each algorithm counts.
func TestEveryAlgorithmIsStored(t *testing.T) {
	for _, a := range limit.Counting {
		usage, floor := usageBytes(&limit.Window{Algorithm: a})
		require.True(t, usage > 0 && floor > 0, "algorithm %d", a)
	}
}
