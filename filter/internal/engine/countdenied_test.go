package engine

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// A hit that another rule denies is not counted, and one that several rules
// deny is counted by those that ask for it.
func TestCountDeniedOfSeveralRules(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		want        [][]uint32 // after 3 requests
		deniedBy    string
		waitNs      int64
	}{
		{"denied by another", `{"name":"a","limits":["9/1h"],"count_denied":true},{"name":"b","limits":["1/1m"]}`,
			[][]uint32{{1}, {1}}, "b", 60e9},
		{"denied by it", `{"name":"a","limits":["9/1h"]},{"name":"b","limits":["1/1m"],"count_denied":true}`,
			[][]uint32{{1}, {3}}, "b", 60e9},
		{"denied by both, one counts", `{"name":"a","limits":["1/1h"],"count_denied":true},{"name":"b","limits":["1/1m"]}`,
			[][]uint32{{3}, {1}}, "a", 3600e9},
		{"denied by both, both count", `{"name":"a","limits":["1/1m"],"count_denied":true},{"name":"b","limits":["1/1h"],"count_denied":true}`,
			[][]uint32{{3}, {3}}, "a", 3600e9},
		{"one counter, two rules", `{"name":"a","counter":"c","limits":["2/1m"],"count_denied":true},{"name":"b","counter":"c","limits":["3/1m"]}`,
			[][]uint32{{4}, {3}}, "a", 60e9},
		{"shadow counts its own denials", `{"name":"a","limits":["9/1h"]},{"name":"b","mode":"shadow","limits":["1/1m"],"count_denied":true}`,
			[][]uint32{{3}, {3}}, "", 0},
		{"shadow does not see what is denied", `{"name":"a","limits":["1/1h"]},{"name":"b","mode":"shadow","limits":["0/1m"],"count_denied":true}`,
			[][]uint32{{1}, nil}, "a", 3600e9},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := hosttest.New()
			e := compileJSON(t, p, c.rules)
			e.Decide()
			e.Decide()
			v := e.Decide()
			for i, want := range c.want {
				if want != nil {
					require.Equal(t, want, used(v)[i])
				}
			}
			require.Equal(t, c.deniedBy == "", v.Allowed)
			if c.deniedBy != "" {
				require.Equal(t, c.deniedBy, v.DeniedBy().Name)
				require.Equal(t, c.waitNs, v.RetryNs)
			}
		})
	}
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
