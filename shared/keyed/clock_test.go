package keyed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
