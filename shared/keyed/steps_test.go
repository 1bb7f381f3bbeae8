package keyed

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/steptest"
)

// TestTheClockSteps: as in shared/state.
func TestTheClockSteps(t *testing.T) {
	steptest.Judge(t, 300, func(windows []limit.Window, capacity uint32, clock *steptest.Clock) steptest.Limiter {
		b := New().Capacity(capacity).Clock(func() time.Time { return time.Unix(0, clock.Ns) })
		for _, w := range windows {
			b.windows = append(b.windows, window{Window: w, period: time.Duration(w.PeriodNs)})
		}
		l, err := b.Build()
		require.NoError(t, err)
		return steptest.Limiter{
			Hit: func(key int, cost uint32) bool { return l.HitN(strconv.Itoa(key), cost).Allowed },
			OfKey: func(w limit.Window, key int) limit.Window {
				return w.Shifted(w.KeyShift(stableHash(strconv.Itoa(key))))
			},
		}
	})
}

// A goroutine that waited for 30 s between the clock and the key reads the clock once
// more: nobody gets anything back, and the wait is from then on.
func TestAGoroutineThatStoodStill(t *testing.T) {
	now, late := time.Unix(1000, 0), time.Duration(0)
	l, err := New().SlidingLog(20*time.Second, 2).Clock(func() time.Time {
		defer func() { late = 0 }()
		return now.Add(-late)
	}).Build()
	require.NoError(t, err)
	require.True(t, l.HitN("a", 2).Allowed)
	late = 30 * time.Second
	require.Equal(t, 20*time.Second, l.Hit("a").RetryAfter)
	require.False(t, l.Hit("a").Allowed)
	require.Zero(t, l.Stats().Rebased)
}
