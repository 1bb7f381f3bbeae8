package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func window(a limit.Algorithm, n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: a, Limit: n, PeriodNs: period, Burst: 100, Units: 9}
}

func TestTimesFollowTheWindows(t *testing.T) {
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

func TestWaitsAreAsLongAsTheLongestWindow(t *testing.T) {
	fixed := window(limit.FixedWindow, 9, 60*second)
	held := limit.Window{Algorithm: limit.Concurrency, Limit: 9, PeriodNs: 80 * second}
	for _, c := range []struct {
		name    string
		windows []limit.Window
		most    int64
	}{
		{"a minute", []limit.Window{fixed}, 60 * second},
		{"a counter of a minute", []limit.Window{window(limit.SlidingWindowCounter, 9, 60*second)}, 120 * second},
		{"a log, and a hundredth for its lease", []limit.Window{window(limit.SlidingWindowLog, 9, 60*second)},
			60*second + 600*ms},
		{"a log with the longest lease", []limit.Window{window(limit.SlidingWindowLog, 9, 86400*second)}, 86410 * second},
		{"a bucket that fills in 10 s", []limit.Window{window(limit.TokenBucket, 10, second)}, 20*second + 100*ms},
		{"the longest", []limit.Window{window(limit.SlidingWindowCounter, 9, second), fixed}, 60 * second},
		{"a block", []limit.Window{fixed, limit.NewBlock(second, false)}, limit.MaxBlockNs},
		{"what is held alone", []limit.Window{held}, 80 * second},
		{"costs that are charged", []limit.Window{fixed, held}, limit.MaxPeriodNs},
	} {
		require.Equal(t, c.most, MostWaitNs(c.windows), c.name)
	}
	unlimited := limit.Window{Algorithm: limit.TokenBucket, PeriodNs: second, Unlimited: true}
	require.Equal(t, 2*limit.MaxPeriodNs+MaxLeaseNs, forgottenNs(&unlimited))
}
