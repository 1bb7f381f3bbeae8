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
		w            Window
		u            Usage
		floor, start Usage
	}{
		"a log":             {log, Usage{Log: []int64{90 * second, 95 * second, 97 * second}}, Usage{Used: 2, EndNs: 97 * second}, Usage{Log: []int64{97 * second, 97 * second}}},
		"a cut log":         {log, Usage{Log: []int64{95 * second}, Cut: true}, Usage{Used: math.MaxUint32, EndNs: 95 * second}, Usage{Log: []int64{95 * second, 95 * second, 95 * second, 95 * second}, Cut: true}},
		"an old log":        {log, Usage{Log: []int64{90 * second}}, Usage{}, Usage{}},
		"a counter":         {counter, Usage{Used: 4, Prev: 2}, Usage{Prev: 4}, Usage{Prev: 4}},
		"a bucket":          {bucket, bucket.Set(99*second, 7), Usage{Used: 2, Prev: 10, EndNs: 102*second + 500*ms}, bucket.Set(now, 5)},
		"a full bucket":     {bucket, bucket.Set(99*second, 2), Usage{}, Usage{}},
		"a jittered window": {grid, Usage{Used: 4, EndNs: 103 * second}, Usage{Used: 4, EndNs: 103 * second}, Usage{Used: 4, EndNs: 103 * second}},
	} {
		floor := c.w.Floor(c.u, 99*second, now)
		require.Equal(t, c.floor, floor, name)
		require.Equal(t, c.start, c.w.Start(floor, now, nil), name)
	}
}

// A key has a larger bucket than the rule's: its floor is full when that bucket is.
func TestTheFloorOfAKeyWithLimitsOfItsOwn(t *testing.T) {
	rule := Window{Algorithm: TokenBucket, Limit: 2, Burst: 10, PeriodNs: second}
	own := Window{Algorithm: TokenBucket, Limit: 1, Burst: 100, PeriodNs: second}
	now := 100 * second
	u := own.Set(now, 60)
	floor := rule.Floor(u, now, now)
	require.Equal(t, Usage{Used: 2, Prev: 10, EndNs: withStamp(160*second, foreignStamp)}, floor)
	back := own.Start(rule.RollFloor(floor, now, now), now, nil)
	require.Equal(t, now+1, own.Check(&back, now, 40), "the key has what it had, a nanosecond later")
	require.EqualValues(t, 120, rule.Count(ref(rule.ByRule(u, now, now)), now), "by the rule's limits it is far over them")
	require.Zero(t, rule.Count(ref(rolled(rule, u, now, now)), now))
}

// Under another rate the floor's bucket counts as empty when it was written, not
// at each later call: a key that waits as long as Check says is admitted.
func TestTheFloorOfAnotherRate(t *testing.T) {
	written := 100 * second
	old := Window{Algorithm: TokenBucket, Limit: 1, Burst: 10, PeriodNs: second}
	floor := old.Floor(old.Set(written, 5), written, written)
	for name, c := range map[string]struct {
		w      Window
		filled int64
	}{
		"faster":  {Window{Algorithm: TokenBucket, Limit: 5, Burst: 10, PeriodNs: second}, 2 * second},
		"smaller": {Window{Algorithm: TokenBucket, Limit: 1, Burst: 4, PeriodNs: second}, 4 * second},
		"larger":  {Window{Algorithm: TokenBucket, Limit: 1, Burst: 40, PeriodNs: second}, 40 * second},
	} {
		rolled := c.w.RollFloor(floor, written, written)
		require.Equal(t, Usage{Used: c.w.Limit, Prev: c.w.Burst, EndNs: written + c.filled}, rolled, name)
		u := c.w.Start(rolled, written, nil)
		pass := c.w.Check(&u, written, 1)
		require.Equal(t, written+second/int64(c.w.Limit), pass, name)
		later := c.w.Start(c.w.RollFloor(floor, written, pass), pass, nil)
		require.Equal(t, pass, c.w.Check(&later, pass, 1), name)
		require.Zero(t, c.w.RollFloor(floor, written, written+c.filled), name)
	}
	require.Zero(t, (&Window{Algorithm: TokenBucket, Limit: 7, Burst: 9, PeriodNs: second}).RollFloor(floor, 200*second, 200*second),
		"the bucket was full before the limits changed")

	unknown := Window{Algorithm: TokenBucket, PeriodNs: second}
	debt := old.Set(written, 30)
	blind := unknown.Floor(debt, written, written)
	require.Equal(t, Usage{EndNs: written + 30*second}, blind, "the record's own time")
	require.Equal(t, Usage{Used: 1, Prev: 10, EndNs: withStamp(written+30*second, foreignStamp)}, old.RollFloor(blind, written, written))
	require.Equal(t, Usage{EndNs: blind.EndNs}, unknown.Start(blind, written, nil))
}

// A lapse that is charged to a bucket of unknown size leaves it empty for whoever knows it, not
// empty for decades.
func TestBucketsOfUnknownSizeThatLapsed(t *testing.T) {
	written := 1000 * second
	unknown, known := Window{Algorithm: TokenBucket, PeriodNs: second}, Window{Algorithm: TokenBucket, PeriodNs: second, Limit: 1, Burst: 10}
	var lapsed Usage
	for range 5 {
		unknown.Charge(&lapsed, written, written, 1)
	}
	blind := unknown.Floor(lapsed, written, written)
	inherited := known.Floor(unknown.Inherit(unknown.Start(blind, written, nil), written), written, written)
	for name, floor := range map[string]Usage{"a floor": known.RollFloor(blind, written, written), "a key's that began from it": inherited} {
		require.Equal(t, written+second, known.Check(ref(known.Start(floor, written, nil)), written, 1), name)
		require.Zero(t, known.RollFloor(floor, written, written+10*second), name)
	}
}

// The time at which a bucket would have been full under removed limits is no debt
// under new ones. A bucket that takes 40 hours to fill is emptied, and its floor is
// written under a much faster rate. Under the next limits it is empty, but does not
// lack the 40 hours' worth of tokens at the faster rate.
func TestTheTimeOfRemovedLimitsIsNoDebt(t *testing.T) {
	written := 1000 * second
	slow := Window{Algorithm: TokenBucket, Limit: 40, Burst: 40, PeriodNs: 40 * 3600 * second}
	fast, next := slow, slow
	fast.Limit, fast.Burst = 144_000_000, 1000
	next.Limit, next.Burst = 144_000, 10
	emptied := slow.Set(written, 40)
	floor := fast.Floor(emptied, written, written)
	rolled := next.RollFloor(floor, written, written)
	require.Equal(t, Usage{Used: 144_000, Prev: 10, EndNs: written + 10*second}, rolled)

	stamped := slow
	stamped.Stamp = NewStamp(7)
	floor = fast.Floor(stamped.Set(written, 40), written, written)
	require.Equal(t, rolled, next.RollFloor(floor, written, written), "the same for a removed override")
	blind := (&Window{Algorithm: TokenBucket, PeriodNs: slow.PeriodNs}).Floor(emptied, written, written)
	require.Equal(t, rolled, next.RollFloor(fast.RollFloor(blind, written, written), written, written), "the same after a configuration without limits")

	indebted := fast.Floor(fast.Set(written, 31_000), written, written)
	require.Equal(t, written+30_010*second, next.RollFloor(indebted, written, written).EndNs, "debt stays debt")
}

// If a rule's limits are 0, keys with other limits do not wait for its bucket,
// which never fills.
func TestLimitsOfZeroDelayNoOtherKey(t *testing.T) {
	now := 1000 * second
	for _, burst := range []uint32{0, 4} {
		rule := Window{Algorithm: TokenBucket, Burst: burst, PeriodNs: second, Stamp: 5, FillNs: 10 * second}
		own := Window{Algorithm: TokenBucket, Limit: 1, Burst: 10, PeriodNs: second, Stamp: 5}
		floor := rule.Floor(own.Set(now, 7), now, now)
		require.Equal(t, rule.stamped(now+7*second), floor.EndNs)
		floor = rule.RollFloor(floor, now, now)
		require.Equal(t, now, own.Check(ref(own.Start(floor, now, nil)), now, 2), "the tokens it had left")
		require.LessOrEqual(t, own.Check(ref(own.Start(floor, now, nil)), now, 3), now+stampMask)
		require.Greater(t, own.Check(ref(own.Start(floor, now, nil)), now, 4), now+second-1)

		rule.Stamp, rule.FillNs = 7, 40*second
		slower := Window{Algorithm: TokenBucket, Limit: 1, Burst: 40, PeriodNs: second, Stamp: 7}
		floor = rule.RollFloor(floor, now, now)
		require.Equal(t, rule.stamped(now+40*second), floor.EndNs, "nothing is left under other overrides")
		require.Zero(t, slower.Remaining(ref(slower.Start(floor, now, nil)), now))
	}
	rule := Window{Algorithm: TokenBucket, Limit: 10, Burst: 10, PeriodNs: second}
	none := Window{Algorithm: TokenBucket, Burst: 10, PeriodNs: second}
	floor := rule.Floor(none.Set(now, 3), now, now)
	require.LessOrEqual(t, floor.EndNs, now+2*second, "a key of limit 0 whose usage was set")
	require.LessOrEqual(t, rule.RollFloor(none.Floor(rule.Set(now, 10), now, now), now, now).EndNs, now+2*second, "a rule whose limit was 0 for a while")
}

// A log without room for all units is not looser while it lacks the dropped ones.
func TestALogWithoutRoom(t *testing.T) {
	w := Window{Algorithm: SlidingWindowLog, Limit: 9, PeriodNs: 10 * second, Units: 2}
	u := added(w, added(w, Usage{}, second, 2), 2*second, 1)
	require.Equal(t, Usage{Log: []int64{second, 2 * second}, Cut: true}, u)
	for _, units := range []uint32{3, 1 << 31, math.MaxUint32} {
		require.Equal(t, Usage{Log: []int64{second, second}, Cut: true}, added(w, Usage{}, second, units))
	}
	got, taken := refunded(w, u, u, 2*second, 3*second, 1, false)
	require.False(t, taken, "the unit that was dropped for it is lost")
	require.Equal(t, u, got)
	require.Equal(t, 11*second, w.Check(&u, 3*second, 1), "it admits no more than it can count")
	require.Equal(t, Never, w.Check(&u, 3*second, 3))
	require.Zero(t, w.Remaining(&u, 3*second))
	require.Equal(t, Usage{Log: []int64{2 * second}}, rolled(w, u, 2*second, 11*second))
}

func TestKeyShift(t *testing.T) {
	w := Window{Algorithm: FixedWindow, Limit: 1, PeriodNs: 10 * second, OffsetNs: 9 * second, Jitter: 30}
	for hash, want := range map[uint64]int64{0: 0, 5: 5, uint64(3 * second): 0, uint64(3*second) - 1: 3*second - 1, math.MaxUint64: int64(uint64(math.MaxUint64) % uint64(3*second))} {
		require.Equal(t, want, w.KeyShift(hash))
		shifted := w.Shifted(want)
		require.Equal(t, (9*second+want)%(10*second), shifted.OffsetNs)
	}
	w.Jitter = 0
	require.Zero(t, w.KeyShift(77))
	require.Zero(t, Window{PeriodNs: 1, Jitter: 1}.KeyShift(77))
}
