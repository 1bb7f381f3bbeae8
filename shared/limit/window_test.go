package limit

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
	day    = 86_400 * second
)

func aligned(units uint32, period, offset int64) Window {
	return Window{Algorithm: FixedWindow, Limit: units, PeriodNs: period, OffsetNs: offset}
}

func perKey(units uint32, period int64) Window {
	return Window{Algorithm: FixedWindowPerKey, Limit: units, PeriodNs: period}
}

func TestSame(t *testing.T) {
	w := aligned(5, second, 3)
	for name, c := range map[string]struct {
		other Window
		same  bool
	}{
		"itself":        {w, true},
		"another limit": {aligned(6, second, 3), true},
		"another W":     {aligned(5, 2*second, 3), false},
		"another shift": {aligned(5, second, 4), false},
		"another kind":  {Window{Algorithm: FixedWindowPerKey, Limit: 5, PeriodNs: second, OffsetNs: 3}, false},
	} {
		require.Equal(t, c.same, w.Same(c.other), name)
	}
}

func TestCompareOrdersIdentities(t *testing.T) {
	ordered := []Window{
		aligned(9, ms, 0), aligned(1, ms, 1), perKey(5, ms),
		aligned(0, second, 0), perKey(0, second), aligned(3, day, 4*3600*second),
	}
	for i, w := range ordered {
		for j, v := range ordered {
			require.Equal(t, cmp.Compare(i, j), w.Compare(v), "%d %d", i, j)
		}
	}
	require.Zero(t, aligned(1, ms, 0).Compare(aligned(2, ms, 0)), "the limit is no part of the identity")
}
