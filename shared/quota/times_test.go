package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func TestTimesFollowTheWindows(t *testing.T) {
	window := func(a limit.Algorithm, n uint32, period int64) limit.Window {
		return limit.Window{Algorithm: a, Limit: n, PeriodNs: period, Burst: 100, Units: 9}
	}
	for _, c := range []struct {
		name          string
		windows       []limit.Window
		horizon, idle int64
	}{
		{"a minute", []limit.Window{window(limit.FixedWindow, 9, 60*second)}, 6 * second, 3 * second},
		{"a day", []limit.Window{window(limit.FixedWindow, 9, 86400*second)}, 10 * second, 10 * second},
		{"20 ms", []limit.Window{window(limit.FixedWindow, 9, 20*ms)}, 2 * ms, ms},
		{"the shortest", []limit.Window{
			window(limit.FixedWindow, 9, second), window(limit.SlidingWindowCounter, 9, 3600*second),
		}, 100 * ms, 50 * ms},
		{"no longer than a log's lease", []limit.Window{window(limit.SlidingWindowLog, 9, 60*second)},
			600 * ms, 3 * second},
		{"no longer than a bucket's", []limit.Window{window(limit.TokenBucket, 10, second)}, 100 * ms, 50 * ms},
	} {
		require.Equal(t, c.horizon, HorizonNs(c.windows), c.name)
		require.Equal(t, c.idle, IdleNs(c.windows), c.name)
	}
}
