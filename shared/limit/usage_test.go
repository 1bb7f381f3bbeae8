package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

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
		"its window has ended, none open":         {Usage{}, open(1, 50), 50, 1, true, Usage{}, true},
		"its window has ended, a new one open":    {open(1, 60), open(1, 50), 50, 1, true, open(1, 60), true},
		"another window is open":                  {open(2, 55), open(2, 50), 46, 1, false, open(2, 55), false},
		"its end has moved past the hit's: stays": {slides(4, 59), slides(2, 50), 51, 1, false, slides(4, 59), false},
		"was set lower than the hit":              {open(1, 50), open(3, 50), 41, 2, false, open(1, 50), false},
		"opened, was set lower than the hit":      {open(1, 50), open(3, 50), 41, 2, true, open(1, 50), false},
		"has closed since: nothing to do":         {Usage{}, open(1, 50), 41, 1, false, Usage{}, false},
		"a cost above what is left does nothing":  {slides(1, 56), slides(3, 50), 41, 3, false, slides(1, 56), false},
	} {
		got, taken := refunded(w, c.u, c.after, 40*ms, c.now*ms, c.cost, c.opened)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.taken, taken, name)
	}
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
