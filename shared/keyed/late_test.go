package keyed_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/keyed"
)

// At the end of a clock's range, a wait that would end after the last instant is
// still a long one.
func TestALongWaitAtTheEndOfTime(t *testing.T) {
	now := time.Date(2249, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := keyed.New().TokenBucket(366*24*time.Hour, 1, keyed.Burst(100)).Capacity(1).Clock(func() time.Time { return now }).Build()
	require.NoError(t, err)
	require.True(t, l.HitN("a", 99).Allowed)
	r := l.HitN("a", 99)
	require.False(t, r.Allowed)
	require.Greater(t, r.RetryAfter, 10*366*24*time.Hour)
	require.True(t, r.ResetAt.After(now), r.ResetAt)
	require.True(t, l.Hit("a").Allowed)
}
