package keyed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A cost of 0 follows the same rule as other costs, used + cost ≤ limit, and counts
// nothing.
func TestCost0(t *testing.T) {
	l, clock := build(t, New().Window(time.Minute, 2).CountDenied())
	require.True(t, l.HitN("k", 0).Allowed)
	require.Zero(t, l.Stats().Keys, "nothing is counted")
	require.True(t, l.HitN("k", 2).Allowed)
	require.True(t, l.HitN("k", 0).Allowed, "used up")
	require.True(t, l.PeekN("k", 0).Allowed)
	require.False(t, l.Hit("k").Allowed)
	want := time.Minute - clock.Duration%time.Minute
	for _, r := range []Result{l.HitN("k", 0), l.PeekN("k", 0)} {
		require.False(t, r.Allowed, "used beyond the limit")
		require.Equal(t, want, r.RetryAfter)
	}
	require.EqualValues(t, 3, l.Get("k"), "a denied hit of cost 0 is not counted")
	clock.Duration += want
	require.True(t, l.HitN("k", 0).Allowed)

	shut, _ := build(t, New().TokenBucket(time.Minute, 0, Burst(9)))
	require.Equal(t, Never, shut.HitN("k", 0).RetryAfter)
}
