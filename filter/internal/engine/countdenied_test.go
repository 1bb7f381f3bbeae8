package engine

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// With count_denied a hit that this rule denies adds its cost to all windows of
// the rule, also where it could never pass, and the wait is the one after it.
func TestCountDenied(t *testing.T) {
	type step struct {
		ms      int64
		cost    string
		allowed bool
		used    []uint32
		waitMs  int64 // -1 = never
	}
	for _, c := range []struct {
		name, limits string
		steps        []step
	}{
		{"fixed window", `"limits":["2/10s"]`, []step{
			{1000, "2", true, []uint32{2}, 0},
			{2000, "1", false, []uint32{3}, 8000},
			{2000, "5", false, []uint32{8}, -1},
			{9999, "1", false, []uint32{9}, 1},
			{10000, "3", false, []uint32{3}, -1},
			{10000, "1", false, []uint32{4}, 10000},
		}},
		{"per key", `"limits":["2/10s"],"algorithm":"fixed_window_per_key"`, []step{
			{1000, "3", false, []uint32{3}, -1}, // opens the window
			{3000, "1", false, []uint32{4}, 8000},
			{11000, "1", true, []uint32{1}, 0},
			{12000, "2", false, []uint32{3}, 9000},
			{21000, "2", true, []uint32{2}, 0},
		}},
		{"elastic", `"limits":[{"requests":2,"per":"10s","elastic":true}],"algorithm":"fixed_window_per_key"`, []step{
			{0, "2", true, []uint32{2}, 0},
			{9000, "1", false, []uint32{3}, 10000},
			{18999, "1", false, []uint32{4}, 10000},
			{28999, "1", true, []uint32{1}, 0},
		}},
		{"log", `"limits":["2/10s"],"algorithm":"sliding_window_log"`, []step{
			{0, "1", true, []uint32{1}, 0},
			{1000, "2", false, []uint32{2}, 10000},
			{2000, "1", false, []uint32{2}, 9000}, // 1000 and 2000 are the newest two
			{2000, "9", false, []uint32{2}, -1},   // both at 2000
			{11999, "1", false, []uint32{2}, 1},   // 2000 and 11999
			{12000, "1", true, []uint32{2}, 0},
		}},
		{"counter", `"limits":["4/10s"],"algorithm":"sliding_window_counter"`, []step{
			{0, "4", true, []uint32{4}, 0},
			{5000, "1", false, []uint32{5}, 7001}, // ⌊5·(10−e)/10⌋ + 1 ≤ 4 from e just beyond 2 s
			{10000, "1", false, []uint32{6}, 4001},
			{14001, "1", true, []uint32{4}, 0},
		}},
		{"layered", `"limits":["2/1s",{"requests":5,"per":"10s","algorithm":"fixed_window_per_key"},{"requests":9,"per":"1m","algorithm":"sliding_window_log"}]`, []step{
			{500, "2", true, []uint32{2, 2, 2}, 0},
			{600, "1", false, []uint32{3, 3, 3}, 400},
			{700, "4", false, []uint32{7, 7, 7}, -1},
			{1000, "2", false, []uint32{2, 9, 9}, 59500},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := hosttest.New()
			e := compileJSON(t, p, `{"name":"r",`+c.limits+`,"count_denied":true,"cost":{"header":"c"}}`)
			for i, s := range c.steps {
				p.Clock = s.ms * 1e6
				p.With("c", s.cost)
				v := e.Decide()
				require.Equal(t, s.allowed, v.Allowed, "step %d", i)
				require.Equal(t, [][]uint32{s.used}, used(v), "step %d", i)
				if s.waitMs >= 0 {
					require.Equal(t, s.waitMs, ceilDiv(v.RetryNs, 1e6), "step %d", i)
				} else {
					require.EqualValues(t, -1, v.RetryNs, "step %d", i)
				}
			}
		})
	}
}

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
	require.EqualValues(t, 2, e.rules[0].Metrics.Full)
	require.Zero(t, e.rules[0].Metrics.Errors, "a full page is no error")

	p.With("u", "first", "c", "3")
	p.Fail = "set"
	v = e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "limit", v.Subjects[0].Reason())
	require.Contains(t, report(v), `"windows":[]`)
	require.EqualValues(t, 1, e.rules[0].Metrics.Errors)
	p.Fail, p.Steal = "", retries
	v = e.Decide()
	require.Equal(t, "limit", v.Subjects[0].Reason())
	require.EqualValues(t, 1, e.rules[0].Metrics.Contention)
	require.Contains(t, report(v), `"windows":[]`)
}
