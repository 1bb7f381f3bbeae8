package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
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
		require.False(t, again.Attempts[1].entry.Rebased, "%s: once is enough", algorithm)
		p.Clock++
		require.True(t, e.Decide().Allowed, algorithm)
	}
}

// A clock that steps back by less than a window counts at the time of the last
// write, and opens nothing anew.
func TestClockStepsBack(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket"} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r","limits":["3/20s"],"algorithm":"`+algorithm+`"}`)
		p.Clock = 1_000_000_000e9
		require.True(t, e.Decide().Allowed)
		p.Clock -= 15e9
		require.Equal(t, 2, admits(p, e, 9), algorithm)
		v := e.Decide()
		require.Greater(t, v.RetryNs, int64(15e9), "%s: from the caller's own time", algorithm)
		p.Clock += v.RetryNs - 1
		require.False(t, e.Decide().Allowed, algorithm)
		p.Clock++
		require.True(t, e.Decide().Allowed, algorithm)
	}
}

// Where a denial is counted, the wait is the one from the new count, also where
// a wild clock's was longer.
func TestWaitOfACountedDenialAfterAWildClock(t *testing.T) {
	for _, window := range []string{
		`"algorithm":"fixed_window"`, `"algorithm":"fixed_window","jitter":50`, `"algorithm":"fixed_window_per_key"`,
		`"algorithm":"fixed_window_per_key","elastic":true`, `"algorithm":"sliding_window_log"`, `"algorithm":"sliding_window_counter"`,
	} {
		for _, phase := range []int64{0, 1, 3, 7, 9} {
			p := hosttest.New()
			e := compileJSON(t, p, `{"name":"r","count_denied":true,"limits":[{"requests":1,"per":"10s",`+window+`}]}`)
			p.Clock = 1_000_000_000e9 + phase*1e9
			require.True(t, e.Decide().Allowed)
			p.Clock = 500_000_004e9
			v := e.Decide()
			require.False(t, v.Allowed)
			require.EqualValues(t, 1, e.rules[0].metrics.ClockRebased)
			w := watch{t: t, p: p, e: e, rules: `{"name":"r","count_denied":true,"limits":[{"requests":1,"per":"10s",` + window + `}]}`}
			w.waits(v)
		}
	}
}
