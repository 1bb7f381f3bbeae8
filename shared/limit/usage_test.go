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
		"another window is open":                 {open(2, 55), open(2, 50), 46, 1, false, open(2, 55), false},
		"was set lower than the hit":             {open(1, 50), open(3, 50), 41, 2, false, open(1, 50), false},
		"opened, was set lower than the hit":     {open(1, 50), open(3, 50), 41, 2, true, open(1, 50), false},
		"has closed since: nothing to do":        {Usage{}, open(1, 50), 41, 1, false, Usage{}, false},
		"a cost above what is left does nothing": {slides(1, 56), slides(3, 50), 41, 3, false, slides(1, 56), false},
	} {
		got, taken := refunded(w, c.u, c.after, 40*ms, c.now*ms, c.cost, c.opened)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.taken, taken, name)
	}
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
