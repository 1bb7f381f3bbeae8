package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAdd(t *testing.T) {
	a, k := aligned(5, 10*ms, 0), perKey(5, 10*ms)
	now := 41 * ms
	for name, c := range map[string]struct {
		w    Window
		u    Usage
		cost uint32
		want Usage
	}{
		"aligned":                 {a, Usage{Used: 2}, 3, Usage{Used: 5}},
		"does not check":          {a, Usage{Used: 5}, 3, Usage{Used: 8}},
		"saturates":               {a, Usage{Used: math.MaxUint32 - 1}, 2, Usage{Used: math.MaxUint32}},
		"stays saturated":         {a, Usage{Used: math.MaxUint32}, math.MaxUint32, Usage{Used: math.MaxUint32}},
		"just fits":               {a, Usage{Used: math.MaxUint32 - 2}, 2, Usage{Used: math.MaxUint32}},
		"per key opens":           {k, Usage{}, 1, Usage{Used: 1, EndNs: 51 * ms}},
		"per key stays":           {k, Usage{Used: 1, EndNs: 47 * ms}, 2, Usage{Used: 3, EndNs: 47 * ms}},
		"per key slides":          {k, Usage{Used: 1, EndNs: 47 * ms, Slides: true}, 2, Usage{Used: 3, EndNs: 51 * ms, Slides: true}},
		"per key, saturates":      {k, Usage{Used: math.MaxUint32, EndNs: 47 * ms}, 1, Usage{Used: math.MaxUint32, EndNs: 47 * ms}},
		"aligned, nothing counts": {a, Usage{Used: 2}, 0, Usage{Used: 2}},
	} {
		require.Equal(t, c.want, added(c.w, c.u, now, c.cost), name)
	}
}

func TestRemainingResetExpiry(t *testing.T) {
	a, k := aligned(5, 10*ms, 0), perKey(5, 10*ms)
	now := 41 * ms
	for name, c := range map[string]struct {
		w             Window
		u             Usage
		remaining     uint32
		reset, expiry int64
	}{
		"aligned, empty":       {a, Usage{}, 5, 50 * ms, 0},
		"aligned":              {a, Usage{Used: 3}, 2, 50 * ms, 50 * ms},
		"aligned, full":        {a, Usage{Used: 5}, 0, 50 * ms, 50 * ms},
		"aligned, above":       {a, Usage{Used: 50}, 0, 50 * ms, 50 * ms},
		"aligned, saturated":   {a, Usage{Used: math.MaxUint32}, 0, 50 * ms, 50 * ms},
		"per key, none open":   {k, Usage{}, 5, now, 0},
		"per key":              {k, Usage{Used: 3, EndNs: 47 * ms}, 2, 47 * ms, 47 * ms},
		"per key, open, empty": {k, Usage{EndNs: 47 * ms, Slides: true}, 5, 47 * ms, 47 * ms},
		"limit 0":              {aligned(0, 10*ms, 0), Usage{}, 0, 50 * ms, 0},
	} {
		require.Equal(t, c.remaining, c.w.Remaining(&c.u, now), name)
		require.Equal(t, c.reset, c.w.Reset(&c.u, now), name)
		require.Equal(t, c.expiry, c.w.Expiry(&c.u, now), name)
	}
}

func TestRefundAligned(t *testing.T) {
	w := aligned(5, 10*ms, 3*ms)
	for name, c := range map[string]struct {
		u, after Usage
		at, now  int64
		cost     uint32
		want     Usage
		taken    bool
	}{
		"alone":                     {Usage{Used: 1}, Usage{Used: 1}, 40 * ms, 41 * ms, 1, Usage{}, true},
		"other hits since":          {Usage{Used: 4}, Usage{Used: 2}, 40 * ms, 41 * ms, 2, Usage{Used: 2}, true},
		"last ns of the window":     {Usage{Used: 2}, Usage{Used: 2}, 40 * ms, 43*ms - 1, 2, Usage{}, true},
		"its window has ended":      {Usage{Used: 2}, Usage{Used: 2}, 40 * ms, 43 * ms, 2, Usage{Used: 2}, true},
		"was set lower":             {Usage{Used: 1}, Usage{Used: 3}, 40 * ms, 41 * ms, 2, Usage{Used: 1}, false},
		"cost 0":                    {Usage{Used: 1}, Usage{Used: 1}, 40 * ms, 41 * ms, 0, Usage{Used: 1}, true},
		"the largest cost":          {Usage{Used: math.MaxUint32}, Usage{Used: math.MaxUint32}, 40 * ms, 41 * ms, math.MaxUint32, Usage{}, true},
		"before the grid's offset":  {Usage{Used: 2}, Usage{Used: 1}, 0, 3*ms - 1, 1, Usage{Used: 1}, true},
		"ended at the grid's start": {Usage{Used: 2}, Usage{Used: 1}, 0, 3 * ms, 1, Usage{Used: 2}, true},
	} {
		got, taken := refunded(w, c.u, c.after, c.at, c.now, c.cost, false)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.taken, taken, name)
	}
}

func TestRefundPerKey(t *testing.T) {
	w := perKey(5, 10*ms)
	open := func(used uint32, endMs int64) Usage { return Usage{Used: used, EndNs: endMs * ms} }
	slides := func(used uint32, endMs int64) Usage { return Usage{Used: used, EndNs: endMs * ms, Slides: true} }
	for name, c := range map[string]struct {
		u, after Usage
		now      int64
		cost     uint32
		opened   bool
		want     Usage
		taken    bool
	}{
		"opened, alone: closes":                   {open(2, 50), open(2, 50), 41, 2, true, Usage{}, true},
		"opened, others joined: slides":           {open(3, 50), open(1, 50), 41, 1, true, slides(2, 51), true},
		"joined: the end stays":                   {open(3, 50), open(3, 50), 41, 1, false, open(2, 50), true},
		"its window has ended, none open":         {Usage{}, open(1, 50), 50, 1, true, Usage{}, true},
		"its window has ended, a new one open":    {open(1, 60), open(1, 50), 50, 1, true, open(1, 60), true},
		"last ns of its window":                   {open(1, 50), open(1, 50), 49, 1, true, Usage{}, true},
		"another window is open":                  {open(2, 55), open(2, 50), 46, 1, false, open(2, 55), false},
		"the opener was refunded first":           {slides(2, 51), open(3, 50), 42, 1, false, slides(1, 51), true},
		"all hits were refunded":                  {slides(1, 51), open(2, 50), 42, 1, false, Usage{}, true},
		"its end has moved since":                 {slides(4, 56), slides(2, 50), 47, 1, false, slides(3, 56), true},
		"its end has moved past the hit's: stays": {slides(4, 59), slides(2, 50), 51, 1, false, slides(4, 59), false},
		"was set lower than the hit":              {open(1, 50), open(3, 50), 41, 2, false, open(1, 50), false},
		"opened, was set lower than the hit":      {open(1, 50), open(3, 50), 41, 2, true, open(1, 50), false},
		"opened after an eviction: slides on":     {slides(3, 52), open(1, 50), 42, 1, true, slides(2, 52), true},
		"has closed since: nothing to do":         {Usage{}, open(1, 50), 41, 1, false, Usage{}, false},
		"a cost above what is left does nothing":  {slides(1, 56), slides(3, 50), 41, 3, false, slides(1, 56), false},
	} {
		got, taken := refunded(w, c.u, c.after, 40*ms, c.now*ms, c.cost, c.opened)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.taken, taken, name)
	}
}

// The first of two hits opened the window and is refunded. The window then ends W
// after the second hit or later.
func TestRefundOfTheOpenerKeepsTheOtherHit(t *testing.T) {
	w := perKey(2, 20*ms)
	first := added(w, Usage{}, 0, 1)
	both := added(w, rolled(w, first, 0, 10*ms), 10*ms, 1)
	left, taken := refunded(w, rolled(w, both, 10*ms, 11*ms), first, 0, 11*ms, 1, true)
	require.True(t, taken)
	for now := 11 * ms; now < 30*ms; now += ms {
		require.EqualValues(t, 1, rolled(w, left, 11*ms, now).Used, "the hit at 10 ms still counts at %d ms", now/ms)
	}
}

func TestMergeFloors(t *testing.T) {
	a, k := aligned(5, 10*ms, 0), perKey(5, 10*ms)
	require.Equal(t, Usage{Used: 3}, a.MergeFloors(Usage{Used: 3}, Usage{Used: 2}))
	require.Equal(t, Usage{Used: 3}, a.MergeFloors(Usage{Used: 2}, Usage{Used: 3}))
	require.Equal(t, Usage{Used: 3}, a.MergeFloors(Usage{}, Usage{Used: 3}))
	require.Equal(t, Usage{Used: 3, EndNs: 50}, k.MergeFloors(Usage{Used: 3, EndNs: 40}, Usage{Used: 2, EndNs: 50}), "the larger of each field")
	require.Equal(t, Usage{Used: 3, EndNs: 50}, k.MergeFloors(Usage{}, Usage{Used: 3, EndNs: 50, Slides: true}), "a floor never slides")
}

func TestInherit(t *testing.T) {
	a, k := aligned(5, 10*ms, 0), perKey(5, 10*ms)
	require.Equal(t, Usage{Used: 3}, a.Inherit(Usage{Used: 3}, 41*ms))
	require.Equal(t, Usage{}, k.Inherit(Usage{}, 41*ms), "no floor, no window")
	require.Equal(t, Usage{Used: 3, EndNs: 51 * ms, Slides: true}, k.Inherit(Usage{Used: 3, EndNs: 43 * ms}, 41*ms))
}

func TestShift(t *testing.T) {
	k := perKey(5, 10*ms)
	require.Equal(t, Usage{Used: 3, EndNs: 7, Slides: true}, shifted(k, Usage{Used: 3, EndNs: 10, Slides: true}, -3))
	require.Equal(t, Usage{Used: 3}, shifted(aligned(5, 10*ms, 0), Usage{Used: 3}, -3))
	require.Equal(t, Usage{}, shifted(k, Usage{}, 3), "a shift opens no window")
}

// From 93 ms, 3 ms into a period, back to 41 ms.
func TestSetBack(t *testing.T) {
	grid := aligned(5, 10*ms, 2*ms)
	grid.Jitter = 10
	for name, c := range map[string]struct {
		w                 Window
		from, back, floor Usage
	}{
		"aligned":  {aligned(5, 10*ms, 0), Usage{Used: 3}, Usage{Used: 3}, Usage{Used: 3}},
		"jittered": {grid, Usage{Used: 3, EndNs: 102 * ms}, Usage{Used: 3, EndNs: 42 * ms}, Usage{Used: 3, EndNs: 51 * ms}},
		"per key":  {perKey(5, 10*ms), Usage{Used: 3, EndNs: 100 * ms, Slides: true}, Usage{Used: 3, EndNs: 48 * ms, Slides: true}, Usage{Used: 3, EndNs: 48 * ms, Slides: true}},
		"log":      {Window{Algorithm: SlidingWindowLog, PeriodNs: 10 * ms}, Usage{Used: 3, EndNs: 90 * ms}, Usage{Used: 3, EndNs: 38 * ms}, Usage{Used: 3, EndNs: 38 * ms}},
		"counter":  {Window{Algorithm: SlidingWindowCounter, PeriodNs: 10 * ms}, Usage{Used: 2, Prev: 4}, Usage{Used: 5}, Usage{Used: 5}}, // 2.8 of the 4 count
		"bucket":   {Window{Algorithm: TokenBucket, PeriodNs: 10 * ms}, Usage{Used: 3, Prev: 4, EndNs: 100 * ms}, Usage{Used: 3, Prev: 4, EndNs: 48 * ms}, Usage{Used: 3, Prev: 4, EndNs: 48 * ms}},
	} {
		u, f := c.from, c.from
		c.w.SetBack(&u, 93*ms, 41*ms)
		c.w.SetFloorBack(&f, 93*ms, 41*ms)
		require.Equal(t, c.back, u, name)
		require.Equal(t, c.floor, f, name)
	}
	u := Usage{Log: []int64{85 * ms, 93 * ms}}
	(&Window{Algorithm: SlidingWindowLog}).SetBack(&u, 93*ms, 41*ms)
	require.Equal(t, []int64{33 * ms, 41 * ms}, u.Log)
}

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		l, m Load
		less bool
	}{
		{Load{1, 10}, Load{2, 10}, true},
		{Load{2, 10}, Load{2, 10}, false},
		{Load{1, 5}, Load{2, 10}, false},
		{Load{1, 6}, Load{2, 10}, true},
		{Load{9, 10}, Load{1, 1}, true},
		{Load{math.MaxUint32, math.MaxUint32}, Load{math.MaxUint32 - 1, math.MaxUint32}, false},
		{Load{math.MaxUint32 - 1, math.MaxUint32}, Load{math.MaxUint32, math.MaxUint32}, true},
	} {
		require.Equal(t, c.less, c.l.Less(c.m), "%v %v", c.l, c.m)
	}
	w := aligned(0, ms, 0)
	require.Equal(t, Load{Used: 3, Limit: 1}, w.Load(&Usage{Used: 3}, 0), "a limit of 0 divides nothing by it")
}
