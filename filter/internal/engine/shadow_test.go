package engine

import (
	"fmt"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// A shadow rule decides, counts and reports, and never denies.
func TestShadow(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"s","mode":"shadow","limits":["2/1h"]},{"name":"r","limits":["4/1h"]}`)
	for i, want := range []struct {
		allowed bool
		used    [][]uint32
	}{{true, [][]uint32{{1}, {1}}}, {true, [][]uint32{{2}, {2}}}, {true, [][]uint32{{2}, {3}}}, {true, [][]uint32{{2}, {4}}}} {
		v := e.Decide()
		require.Equal(t, want.allowed, v.Allowed, i)
		require.Equal(t, want.used, used(v), i)
		require.NotContains(t, fmt.Sprint(fields("ietf", v)), `"s"`, "clients hear nothing of it")
	}
	v := e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "r", v.DeniedBy().Name)
	require.Contains(t, report(v), `{"rule":"s","key":[],"mode":"shadow","allowed":true,"reason":"not_asked","windows":[]}`,
		"a request that an enforced rule denies is not shown to it")
	m := e.rules[0].Metrics
	require.Equal(t, []uint64{2, 2, 0}, []uint64{m.Allowed, m.ShadowDenied, m.Denied})
	m = e.rules[1].Metrics
	require.Equal(t, []uint64{4, 0, 1}, []uint64{m.Allowed, m.ShadowDenied, m.Denied})
}

// Shadow rules commit last: nothing of theirs is ever refunded, and their
// failures stay their own.
func TestShadowRollsNothingBack(t *testing.T) {
	for _, c := range []struct{ name, shadow string }{
		{"limit", `"limits":["1/1h"]`},
		{"never", `"limits":["0/1h"]`},
		{"full", `"limits":["9/1h"],"key":[{"header":"u"}],"capacity":1,"on_full":"deny"`},
		{"missing key", `"limits":["9/1h"],"key":[{"header":"none"}],"missing_key":"deny"`},
		{"contention", `"limits":["9/1h"]`},
	} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"s","mode":"shadow",`+c.shadow+`},{"name":"r","limits":["9/1h"]}`)
		p.With("u", "first")
		require.True(t, e.Decide().Allowed)
		p.With("u", "second")
		if c.name == "contention" { // after the enforced rule's write
			p.After = func(string) { p.After, p.Steal = nil, retries+1 }
		}
		v := e.Decide()
		require.True(t, v.Allowed, c.name)
		require.False(t, v.Subjects[0].Allowed, c.name)
		require.Equal(t, []uint32{2}, used(v)[1], c.name)
		require.NotZero(t, e.rules[0].Metrics.ShadowDenied, c.name)
	}
}

// A shadow rule that shares its counter with an enforced one sees its hit.
func TestShadowOnASharedCounter(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"s","counter":"c","mode":"shadow","limits":["3/1h"]},{"name":"r","counter":"c","limits":["4/1h"]}`)
	require.Equal(t, [][]uint32{{2}, {1}}, used(e.Decide()))
	v := e.Decide() // 3, then 4 is more than 3
	require.True(t, v.Allowed)
	require.Equal(t, [][]uint32{{3}, {3}}, used(v))
	require.True(t, e.Decide().Allowed)
	require.False(t, e.Decide().Allowed)
}

// The share of keys that enforce_percent enforces is what it says, the same at
// every moment and under another limit, and 0 and 100 are all or none.
func TestEnforcePercent(t *testing.T) {
	const keys = 4000
	enforced := func(percent, requests int, counter string) map[string]bool {
		p := hosttest.New()
		e := compileJSON(t, p, fmt.Sprintf(
			`{"name":"r","counter":%q,"key":[{"header":"u"}],"limits":["%d/1h"],"enforce_percent":%d}`, counter, requests, percent))
		list := map[string]bool{}
		for i := range keys {
			key := fmt.Sprint("user-", i)
			p.With("u", key)
			for range requests {
				require.True(t, e.Decide().Allowed)
			}
			v := e.Decide()
			require.False(t, v.Subjects[0].Allowed)
			require.Equal(t, v.Allowed, v.Subjects[0].Shadow)
			if !v.Allowed {
				list[key] = true
			}
		}
		return list
	}
	require.Empty(t, enforced(0, 0, "c"))
	require.Len(t, enforced(100, 0, "c"), keys)
	for _, percent := range []int{1, 10, 50, 90} {
		mean := float64(keys * percent / 100)
		sigma := mean * float64(100-percent) / 100
		got := len(enforced(percent, 0, "c"))
		require.InDelta(t, mean, got, 1+4.5*math.Sqrt(sigma), "%d %%", percent)
	}
	ten, fifty := enforced(10, 0, "c"), enforced(50, 2, "c")
	require.Equal(t, ten, enforced(10, 1, "c"), "stable")
	for key := range ten {
		require.True(t, fifty[key], "whoever is enforced at 10 % is at 50 %")
	}
	require.False(t, maps.Equal(fifty, enforced(50, 0, "other")), "not the same keys in every rule")
}

// A key outside enforce_percent acts as in shadow mode in all respects.
func TestKeyOutsideEnforcePercentIsShadow(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["1/1h"],"enforce_percent":0,"count_denied":true}`)
	p.With("u", "a")
	for want := range uint32(4) {
		v := e.Decide()
		require.True(t, v.Allowed)
		require.Equal(t, [][]uint32{{want + 1}}, used(v))
		require.Contains(t, report(v), `"mode":"shadow"`)
	}
	require.EqualValues(t, 3, e.rules[0].Metrics.ShadowDenied)
}

// The windows of a jittered rule are as long as any, and each key's its own.
func TestJitter(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":1,"per":"1h","jitter":50}]}`)
	const hour = int64(3600e9)
	shifts := map[int64]int{}
	for i := range 200 {
		p.Clock = 1_700_000_000e9
		p.With("u", fmt.Sprint(i))
		require.True(t, e.Decide().Allowed)
		v := e.Decide()
		require.False(t, v.Allowed)
		require.Positive(t, v.RetryNs)
		require.LessOrEqual(t, v.RetryNs, hour)
		shift := (p.Clock + v.RetryNs) % hour
		require.Less(t, shift, hour/2, "at most half an hour")
		shifts[shift/(hour/20)]++
		for range 3 { // every window of the key ends at the same shift
			p.Clock += v.RetryNs
			require.True(t, e.Decide().Allowed)
			v = e.Decide()
			require.Equal(t, hour, v.RetryNs)
			p.Clock--
			require.False(t, e.Decide().Allowed)
		}
	}
	require.Len(t, shifts, 10, "in every tenth of the half hour: %v", shifts)
	for _, n := range shifts {
		require.InDelta(t, 20, n, 18)
	}
}

// An elastic window ends a period after the last hit that was counted.
func TestElastic(t *testing.T) {
	for _, c := range []struct {
		elastic, countDenied bool
		waits                []int64 // of the request at 20, 21, … s, 0 = it passed
	}{
		{false, false, []int64{0, 0, 8, 7, 6}},
		{true, false, []int64{0, 0, 9, 8, 7}},
		{true, true, []int64{0, 0, 10, 10, 10}},
	} {
		p := hosttest.New()
		e := compileJSON(t, p, fmt.Sprintf(
			`{"name":"r","limits":[{"requests":2,"per":"10s","elastic":%v,"algorithm":"fixed_window_per_key"}],"count_denied":%v}`, c.elastic, c.countDenied))
		p.Clock = 20e9
		for i, want := range c.waits {
			v := e.Decide()
			require.Equal(t, want == 0, v.Allowed)
			require.Equal(t, want*1e9, v.RetryNs, "%v: request %d", c, i)
			p.Clock += 1e9
		}
	}
}
