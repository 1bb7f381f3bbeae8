package keyed

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/steptest"
)

// The limiter's time is the system's, whichever of its clocks was read, and does not
// go back unless the system's does.
func TestSystemNow(t *testing.T) {
	last := int64(0)
	for end := time.Now().Add(3 * readEvery); time.Now().Before(end); {
		before := time.Now().UnixNano()
		now := systemNow()
		after := time.Now().UnixNano()
		const slack = 50_000_000 // the thread may be descheduled between reading the two clocks
		require.LessOrEqual(t, before-slack, now)
		require.LessOrEqual(t, now, after+slack)
		require.LessOrEqual(t, last, now+slack)
		last = now
	}
}

// A bubble of testing/synctest has another time; systemNow follows into the bubble
// and out of it.
func TestSystemNowInABubble(t *testing.T) {
	systemNow()
	synctest.Test(t, func(t *testing.T) {
		l, err := New().Window(time.Minute, 1).Build()
		require.NoError(t, err)
		require.True(t, l.Hit("a").Allowed)
		require.False(t, l.Hit("a").Allowed)
		require.Equal(t, time.Now().UnixNano(), systemNow())
		time.Sleep(time.Minute)
		require.Equal(t, time.Now().UnixNano(), systemNow())
		require.True(t, l.Hit("a").Allowed)
	})
	require.InDelta(t, time.Now().UnixNano(), systemNow(), 10e9)
}

// TestTheClockSteps: as in shared/state.
func TestTheClockSteps(t *testing.T) {
	steptest.Judge(t, 300, func(windows []limit.Window, capacity uint32, clock *steptest.Clock) steptest.Limiter {
		b := New().Capacity(capacity).Clock(func() time.Time { return time.Unix(0, clock.Ns) })
		for _, w := range windows {
			b.windows = append(b.windows, window{Window: w})
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

// At the end of a clock's range, a wait that would end after the last instant is
// still a long one.
func TestALongWaitAtTheEndOfTime(t *testing.T) {
	now := time.Date(2249, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	l, err := New().TokenBucket(366*24*time.Hour, 1, Burst(100)).Capacity(1).Clock(clock).Build()
	require.NoError(t, err)
	require.True(t, l.HitN("a", 99).Allowed)
	r := l.HitN("a", 99)
	require.False(t, r.Allowed)
	require.Greater(t, r.RetryAfter, 10*366*24*time.Hour)
	require.True(t, r.ResetAt.After(now), r.ResetAt)
	require.True(t, l.Hit("a").Allowed)
}
