package engine

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// Where two rules share a counter, a denied hit counts in those that ask for it.
func TestCountDeniedOfASharedCounter(t *testing.T) {
	e := compileJSON(t, hosttest.New(), `{"name":"a","counter":"c","limits":["2/1m"],"count_denied":true},{"name":"b","counter":"c","limits":["3/1m"]}`)
	e.Decide()
	e.Decide()
	v := e.Decide()
	require.Equal(t, [][]uint32{{4}, {3}}, used(v))
	require.Equal(t, "a", v.DeniedBy().Name)
	require.Equal(t, int64(60e9), v.RetryNs)
}

// A late denial is counted as well: the rule counts it, and the others refund it.
func TestLateDenialIsCounted(t *testing.T) {
	p := hosttest.New()
	rules := `{"name":"b","limits":["2/1h"],"count_denied":true}`
	e := compileJSON(t, p, `{"name":"a","limits":["9/1h"]},`+rules)
	require.True(t, e.Decide().Allowed)
	other := compileJSON(t, p, rules)
	p.After = func(string) {
		p.After = nil
		require.True(t, other.Decide().Allowed)
	}
	v := e.Decide()
	require.Equal(t, "b", v.DeniedBy().Name)
	require.Equal(t, [][]uint32{{1}, {3}}, used(v))
}

// Only limits are counted against: not a missing key, a full page, a failing
// proxy. Where the count cannot be stored the denial stays what it was.
func TestWhatCountDeniedDoesNotCount(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"missing_key":"deny","limits":["2/1m"],"capacity":1,"on_full":"deny","count_denied":true,"cost":{"header":"c"}}`)
	require.False(t, e.Decide().Allowed, "missing key")
	require.Equal(t, []string{"sluice/seed"}, slices.Collect(maps.Keys(p.Store)))
	p.With("u", "first")
	require.True(t, e.Decide().Allowed)
	before := maps.Clone(p.Store)
	p.With("u", "second")
	require.Equal(t, "on_full", e.Decide().Subjects[0].Reason())
	p.With("u", "second", "c", "3") // can never pass, full or not
	v := e.Decide()
	require.Equal(t, "limit", v.Subjects[0].Reason())
	require.EqualValues(t, -1, v.RetryNs)
	require.Contains(t, report(v), `"used":0`)
	require.Equal(t, before, p.Store)
	require.EqualValues(t, 2, e.rules.List[0].Metrics.Full)
	require.Zero(t, e.rules.List[0].Metrics.Errors, "a full page is no error")

	p.With("u", "first", "c", "3")
	p.Fail = "set"
	v = e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "limit", v.Subjects[0].Reason())
	require.Contains(t, report(v), `"windows":[]`)
	require.EqualValues(t, 1, e.rules.List[0].Metrics.Errors)
	p.Fail, p.Steal = "", retries
	v = e.Decide()
	require.Equal(t, "limit", v.Subjects[0].Reason())
	require.EqualValues(t, 1, e.rules.List[0].Metrics.Contention)
	require.Contains(t, report(v), `"windows":[]`)
}
