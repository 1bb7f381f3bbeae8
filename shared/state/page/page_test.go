package page

import (
	"slices"
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
	old.Place(1, 0xfeedface, second)
	old.BeginGeneration(1)
	generation := old.generation()
	old.MarkReset(1)
	got, ok := Read(old.Convert(to, 8).Bytes)
	require.True(t, ok)
	require.Equal(t, generation, got.generation())
	require.Equal(t, generation, got.Generation(1))
	require.Equal(t, old.record(1)[:recordHeadBytes], got.record(1)[:recordHeadBytes], "that it was reset, too")
}

// The page notes the serial of a record that is reset, and 0 says that none was.
func TestASerialIsNeverZero(t *testing.T) {
	p := New(NewLayout([]limit.Window{{Algorithm: limit.Concurrency, Limit: 9, PeriodNs: 8 * second}}, 1), 1)
	putSerial(p.holdsOfFloor(), sharesBit-1) // the largest
	p.Place(0, 0xfeedface, second)
	p.ForgetHolds(0)
	require.True(t, p.MayBeForgotten(p.Serial(0)))
	require.True(t, p.MayBeForgotten(sharesBit-1))
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

// Records and floors hold what each algorithm counts, each in bytes of its own.
func TestEveryAlgorithmIsStored(t *testing.T) {
	const now = 100 * second
	cases := []struct {
		window limit.Window
		usage  limit.Usage
		floor  limit.Floor
	}{
		{limit.Window{Algorithm: limit.FixedWindow}, limit.Usage{Used: 1}, limit.Floor{Used: 2}},
		{
			limit.Window{Algorithm: limit.FixedWindow, Jitter: 50},
			limit.Usage{Used: 3, EndNs: now + 1}, limit.Floor{Used: 4, EndNs: now + 2},
		},
		{
			limit.Window{Algorithm: limit.FixedWindowPerKey},
			limit.Usage{Used: 5, EndNs: now + 3, Slides: true}, limit.Floor{Used: 6, EndNs: now + 4},
		},
		{
			limit.Window{Algorithm: limit.SlidingWindowLog, Units: 3},
			limit.Usage{Log: []int64{now - 7, now - 6}, Cut: true}, limit.Floor{Used: 7, EndNs: now + 5},
		},
		{
			limit.Window{Algorithm: limit.SlidingWindowCounter},
			limit.Usage{Used: 8, Prev: 9}, limit.Floor{Used: 10, Prev: 11},
		},
		{
			limit.Window{Algorithm: limit.TokenBucket},
			limit.Usage{Tokens: limit.Tokens{Lo: 12, Hi: -13}, EndNs: now + 6},
			limit.Floor{Used: 14, Prev: 15, EndNs: now + 7},
		},
		{limit.Window{Algorithm: limit.Calendar}, limit.Usage{Used: 16}, limit.Floor{Used: 17}},
		{limit.Window{Algorithm: limit.Block}, limit.Usage{Used: 1, EndNs: now}, limit.Floor{Used: 1, EndNs: now + 8}},
	}
	var windows []limit.Window
	for _, c := range cases {
		c.window.PeriodNs = limit.MonthNs
		windows = append(windows, c.window)
	}
	for _, a := range limit.Counting {
		isStored := slices.ContainsFunc(windows, func(w limit.Window) bool { return w.Algorithm == a })
		require.True(t, isStored, "algorithm %d", a)
		usage, floor := usageBytes(&limit.Window{Algorithm: a})
		require.True(t, usage > 0 && floor > 0, "algorithm %d", a)
	}
	written := New(NewLayout(windows, 1), 1)
	written.SetTime(0, now)
	for i, c := range cases {
		column := Column(i)
		written.SetUsage(0, column, &c.usage)
		written.SetFloor(column, c.floor)
	}
	p, ok := Read(written.Bytes)
	require.True(t, ok)
	require.Equal(t, windows, p.Layout.Windows)
	for i, c := range cases {
		column := Column(i)
		var usage limit.Usage
		p.ReadUsage(0, column, nil, &usage)
		require.Equal(t, c.usage, usage, "%+v", c.window)
		require.Equal(t, c.floor, p.Floor(column), "%+v", c.window)
	}
}
