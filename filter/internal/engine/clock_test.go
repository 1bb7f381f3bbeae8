package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// What a wild clock wrote is moved to the present by the first request that is
// denied, also in the record of a rule that would have let it pass: that
// record's time goes on from there, and the wait that was named holds.
func TestWildClockBesideADenial(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"denies","limits":["0/1s"],"mode":"shadow"},
			{"name":"wild","limits":["4/10s"],"algorithm":"`+algorithm+`"},
			{"name":"often","key":[{"header":"u"}],"limits":["1/1s"]}`)
		p.Clock = 1_000_000_000e9
		p.With("u", "a")
		require.True(t, e.Decide().Allowed)
		p.Clock = 500_000_000e9
		p.With("u", "b")
		require.True(t, e.Decide().Allowed)
		p.Clock = 100_000_000e9
		p.With("u", "b") // whose own record is of a wild clock too
		v := e.Decide()
		require.False(t, v.Allowed, algorithm)
		require.Equal(t, "often", v.DeniedBy().Name, algorithm)
		require.Equal(t, int64(1e9), v.RetryNs)
		p.Clock += 1e9 - 1
		again := e.Decide()
		require.EqualValues(t, 1, again.RetryNs, algorithm)
		require.False(t, again.Subjects[1].Record.Rebased, "%s: once is enough", algorithm)
		p.Clock++
		require.True(t, e.Decide().Allowed, algorithm)
	}
}

// TestHeldWaitsASecond: whom only requests in flight deny is told 1 s, also by a worker that
// read the clock a moment before the one that holds.
func TestHeldWaitsASecond(t *testing.T) {
	for _, rule := range []string{`"algorithm":"concurrency","limits":["1"]`, `"limits":["1/1h"],"settle":{}`} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r",`+rule+`}`)
		require.True(t, e.Decide().Allowed)
		p.Clock--
		v := e.Decide()
		require.False(t, v.Allowed)
		require.Equal(t, limit.HeldRetryNs, v.RetryNs, rule)
		require.Equal(t, "held", v.Subjects[0].Reason())
	}
}
