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
