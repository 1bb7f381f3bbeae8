package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFloorAndStart(t *testing.T) {
	now := 100 * second
	log := Window{Algorithm: SlidingWindowLog, Limit: 3, PeriodNs: 10 * second, Units: 4}
	counter := Window{Algorithm: SlidingWindowCounter, Limit: 9, PeriodNs: 10 * second}
	bucket := Window{Algorithm: TokenBucket, Limit: 2, Burst: 10, PeriodNs: second}
	grid := Window{Algorithm: FixedWindow, Limit: 9, PeriodNs: 10 * second, Jitter: 10}
	for name, c := range map[string]struct {
		w     Window
		u     Usage
		floor Floor
		start Usage
	}{
		"a log": {log, Usage{Log: []int64{90 * second, 95 * second, 97 * second}},
			Floor{Used: 2, EndNs: 97 * second}, Usage{Log: []int64{97 * second, 97 * second}}},
		"a cut log": {log, Usage{Log: []int64{95 * second}, Cut: true},
			Floor{Used: math.MaxUint32, EndNs: 95 * second},
			Usage{Log: []int64{95 * second, 95 * second, 95 * second, 95 * second}, Cut: true}},
		"an old log": {log, Usage{Log: []int64{90 * second}}, Floor{}, Usage{}},
		"a counter":  {counter, Usage{Used: 4, Prev: 2}, Floor{Prev: 4}, Usage{Prev: 4}},
		"a bucket": {bucket, bucket.Set(99*second, 7), Floor{Used: 2, Prev: 10, EndNs: 102*second + 500*ms},
			bucket.Set(now, 5)},
		"a full bucket": {bucket, bucket.Set(99*second, 2), Floor{}, Usage{}},
		"a jittered window": {grid, Usage{Used: 4, EndNs: 103 * second}, Floor{Used: 4, EndNs: 103 * second},
			Usage{Used: 4, EndNs: 103 * second}},
	} {
		floor := c.w.Floor(c.u, 99*second, now)
		require.Equal(t, c.floor, floor, name)
		require.Equal(t, c.start, c.w.Start(floor, now, nil), name)
	}
}

// The example of type Floor.
func TestAKeyStartsFromTheFloorOfOthers(t *testing.T) {
	now := 1000 * second
	for name, c := range map[string]struct {
		w     Window
		after int64
		left  uint32
	}{
		"FixedWindow": {Window{Algorithm: FixedWindow, Limit: 10, PeriodNs: 100 * second}, 5 * second, 3},
		"TokenBucket": {Window{Algorithm: TokenBucket, Limit: 1, Burst: 10, PeriodNs: second}, 5 * second, 8},
	} {
		alice, bob := c.w.Floor(c.w.Set(now, 7), now, now), c.w.Floor(c.w.Set(now, 4), now, now)
		at := now + c.after
		u := c.w.Start(c.w.RollFloor(c.w.MergeFloors(alice, bob), now, at), at, nil)
		require.Equal(t, c.left, c.w.Remaining(&u, at), name)
	}
}

// A lapse that is charged to a bucket of unknown size leaves it empty for whoever knows it, not
// empty for decades.
func TestBucketsOfUnknownSizeThatLapsed(t *testing.T) {
	written := 1000 * second
	unknown := Window{Algorithm: TokenBucket, PeriodNs: second}
	known := Window{Algorithm: TokenBucket, PeriodNs: second, Limit: 1, Burst: 10}
	var lapsed Usage
	for range 5 {
		unknown.ChargeByRule(&lapsed, written, written, 1)
	}
	blind := unknown.Floor(lapsed, written, written)
	inherited := known.Floor(unknown.Inherit(unknown.Start(blind, written, nil), written), written, written)
	for name, floor := range map[string]Floor{
		"a floor":                    known.RollFloor(blind, written, written),
		"a key's that began from it": inherited,
	} {
		require.Equal(t, written+second, known.Check(ref(known.Start(floor, written, nil)), written, 1), name)
		require.Zero(t, known.RollFloor(floor, written, written+10*second), name)
	}
}

// Debt is debt under other limits, too. Where those are not known, a floor covers both of two.
func TestFloorsOfOtherLimits(t *testing.T) {
	written := 1000 * second
	w := Window{Algorithm: TokenBucket, PeriodNs: second, Limit: 1, Burst: 100}
	next := Window{Algorithm: TokenBucket, PeriodNs: second, Limit: 4, Burst: 10}
	floor := w.Floor(w.Set(written, 130), written, written)
	require.Equal(t, Floor{Used: 4, Prev: 10, EndNs: written + 10*second}, next.RollFloor(floor, written, written))
	unknown := Window{Algorithm: TokenBucket, PeriodNs: second}
	require.Equal(t, Floor{EndNs: written + 130*second},
		unknown.MergeFloors(next.Floor(next.Set(written, 1), written, written), floor))
	blind := unknown.Floor(w.Set(written, 130), written, written)
	require.Equal(t, Floor{Used: 1, Prev: 100, EndNs: withStamp(written+130*second, foreignStamp)},
		w.RollFloor(blind, written, written), "the record's own time")
	require.EqualValues(t, 240, next.Count(ref(next.ByRule(w.Set(written, 60), written, written)), written),
		"a minute of what next gains")
	none := next
	none.Limit = 0
	require.LessOrEqual(t, next.Floor(none.Set(written, 3), written, written).EndNs, written+2*second,
		"a limit of 0 never fills it, and nobody waits for that")

	old, fresh := next, next
	old.Stamp, old.FillNs = 5, 10*second
	fresh.Stamp, fresh.FillNs = 7, 20*second
	floor = old.Floor(old.Set(written, 4), written, written)
	for range 5 { // both configurations in turn
		floor = fresh.RollFloor(old.RollFloor(floor, written, written), written, written)
	}
	require.Less(t, floor.EndNs, written+fresh.FillNs+10*stampMask, "it does not grow")
	require.Zero(t, old.RollFloor(floor, floor.EndNs, floor.EndNs), "nor comes it back")
	require.Zero(t, stampOf(unknown.MergeFloors(floor, Floor{EndNs: written + second}).EndNs),
		"a window that does not know the limits sets no stamp")
}

// A hit above a log's room cuts it, also where the log is empty.
func TestAHitAboveALogsRoom(t *testing.T) {
	w := Window{Algorithm: SlidingWindowLog, Limit: 9, PeriodNs: 10 * second, Units: 2}
	require.Equal(t, Usage{Log: []int64{second, second}, Cut: true}, added(w, Usage{}, second, 3))
}

func TestKeyShift(t *testing.T) {
	w := Window{Algorithm: FixedWindow, Limit: 1, PeriodNs: 10 * second, OffsetNs: 9 * second, Jitter: 30}
	for hash, want := range map[uint64]int64{
		0: 0, 5: 5, uint64(3 * second): 0, uint64(3*second) - 1: 3*second - 1,
		math.MaxUint64: int64(uint64(math.MaxUint64) % uint64(3*second)),
	} {
		require.Equal(t, want, w.KeyShift(hash))
		shifted := w.Shifted(want)
		require.Equal(t, (9*second+want)%(10*second), shifted.OffsetNs)
	}
	w.Jitter = 0
	require.Zero(t, w.KeyShift(77))
	require.Zero(t, Window{PeriodNs: 1, Jitter: 1}.KeyShift(77))
}

// What is charged to a floor leaves the end of its blocks alone, and so does a key that starts from it.
func TestAFloorsBlockIsNotMoved(t *testing.T) {
	w := NewBlock(10*second, true)
	var u Usage
	w.Deny(&u, 100*second)
	require.Equal(t, Usage{Used: 1, EndNs: 110 * second}, u)
	floor := w.Floor(u, 100*second, 105*second)
	require.Equal(t, floor, w.ChargeFloor(&w, floor, 105*second, 3, nil))
	require.Equal(t, u, w.Inherit(w.Start(floor, 105*second, nil), 105*second))
	later := Floor{Used: 1, EndNs: 112 * second}
	require.Equal(t, later, w.MergeFloors(floor, later))
	require.Equal(t, later, w.MergeFloors(later, floor))
	require.Equal(t, Floor{}, w.RollFloor(floor, 105*second, 110*second))
	w.SetBack(&u, 100*second, 40*second)
	require.Equal(t, 50*second, u.EndNs)
}
