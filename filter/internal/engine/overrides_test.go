package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// admits counts how many of n requests with these headers pass.
func admits(p *proxy, e *Engine, n int, headers ...string) (passed int) {
	p.With(headers...)
	for range n {
		if e.Decide().Allowed {
			passed++
		}
	}
	return passed
}

// A window that an override leaves out lets everything pass and still counts.
func TestOverrideLeavesAWindowOut(t *testing.T) {
	p := hosttest.New()
	p.Clock = 0
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["3/1m",{"requests":5,"per":"1h","name":"hourly"}],
		"overrides":[{"key":["a"],"limits":["7/1h"]}]}`)
	require.Equal(t, 7, admits(p, e, 9, "u", "a"))
	v := e.Decide()
	require.Equal(t, int64(3600e9), v.RetryNs)
	require.Equal(t, [][]uint32{{7, 7}}, used(v))
	require.Contains(t, report(v),
		`"remaining":0,"windows":[{"unlimited":true,"per_ns":60000000000,"used":7,"reset_ns":60000000000},`+
			`{"name":"hourly","limit":7,"per_ns":3600000000000,"used":7,"remaining":0,"reset_ns":3600000000000}]`)
	require.Equal(t, [][2]string{
		{"retry-after", "3600"}, {"x-envoy-ratelimited", "true"},
		{"ratelimit-policy", `"r/hourly";q=7;w=3600`}, {"ratelimit", `"r/hourly";r=0;t=3600`},
		{"x-ratelimit-limit", "7, 7;w=3600"}, {"x-ratelimit-remaining", "0"}, {"x-ratelimit-reset", "3600"},
	}, fields("both", v))
}

// Unlimited keys take no slot: they write nothing at all.
func TestUnlimitedKeysTakeNoSlot(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["1/1h"],"capacity":1,`+
		`"overrides":[{"key":["probe*"],"unlimited":true}]}`)
	for i := range 50 {
		require.Equal(t, 2, admits(p, e, 2, "u", fmt.Sprint("probe", i)))
	}
	require.Empty(t, p.Store)
	require.Contains(t, report(e.Decide()), `"allowed":true,"windows":[]`)
	_, err := e.Operate(Operation{Name: "get", Rule: "r", Key: []string{"probe"}})
	require.ErrorContains(t, err, `rule "r" counts nothing for this key`)
	//nolint:testifylint // its bytes are what matters
	require.Equal(t, `{"allowed":true,"rules":[{"rule":"r","key":["probe"],"mode":"enforced","allowed":true,`+
		`"windows":[]}]}`,
		operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"probe"}, N: 9}))
}

// A token bucket's key that loses its slot gets no tokens back when it is then
// given limits of its own.
func TestAnOverrideGivenToAnEvictedKey(t *testing.T) {
	p := hosttest.New()
	rule := `{"name":"r","key":[{"header":"u"}],"capacity":1,"algorithm":"token_bucket","limits":["4/1s"]`
	old := compileJSON(t, p, rule+`}`)
	require.Equal(t, 4, admits(p, old, 9, "u", "alice"))
	require.Equal(t, 4, admits(p, old, 9, "u", "bob"), "alice goes")
	next := compileJSON(t, p, rule+`,"overrides":[{"key":["alice"],"limits":[{"requests":2,"per":"1s","burst":40}]}]}`)
	require.Zero(t, admits(p, next, 9, "u", "alice"))
	p.Clock += 499_000_000
	require.Zero(t, admits(p, next, 9, "u", "alice"))
	p.Clock += 10_000_000_000
	require.Equal(t, 20, admits(p, next, 41, "u", "alice"), "what it gains at the new rate")
}

// The floor of a page may have any key's debt. So it pays that by the least limit of a key, also when the answer of a
// key with a higher limit is settled.
func TestAnEvictedDebtIsPaidByTheLeastLimit(t *testing.T) {
	p := hosttest.New()
	p.Clock = 1000e9
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"capacity":1,"limits":["4/1s"],"settle":{},`+
		`"overrides":[{"key":["alice"],"limits":["1/1s"]}]}`)
	var holds []hold.Hold
	for _, user := range []string{"alice", "bob", "carol"} { // each evicts the one before
		p.With("u", user)
		holds = e.Decide().BeginHolds(holds)
	}
	require.Len(t, holds, 3)
	holds[0].Settle(9, metrics.ByAnswer, p.Clock)
	p.Clock += 2e9
	holds[1].Settle(1, metrics.ByAnswer, p.Clock)
	p.With("u", "alice")
	require.Equal(t, [][]uint32{{8}}, used(e.Peek())) // two of her units are paid, and bob's one is new
}

// series are all counts above 0, by rule, override and metric.
func series(e *Engine) map[string]uint64 {
	counts := map[string]uint64{}
	e.EachMetric(func(s Series, count uint64) {
		if count > 0 {
			counts[s.Domain+" "+s.Rule+":"+s.Override+" "+s.Metric] += count
		}
	})
	return counts
}

// What an override decides counts under its name, too; overrides of one name count
// together.
func TestNamedOverrides(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["0/1h"],"overrides":[
		{"name":"gold","key":["a"],"limits":["1/1h"]},
		{"key":["b"],"limits":["1/1h"]},
		{"name":"gold","key":["c"],"unlimited":true}]},
		{"name":"s","mode":"shadow","key":[{"header":"u"}],"limits":["9/1h"],
		"overrides":[{"name":"gold","key":["c"],"limits":["0/1h"]}]}`)
	for _, user := range []string{"a", "a", "b", "b", "c", "d"} {
		p.With("u", user)
		e.Decide()
	}
	require.Equal(t, map[string]uint64{
		"default r: allowed": 3, "default r: denied": 3, "default r:gold allowed": 2, "default r:gold denied": 1,
		"default s: allowed": 2, "default s: shadow_denied": 1, "default s:gold shadow_denied": 1,
	}, series(e))
	require.Empty(t, e.verdict.Subjects[0].OverrideName())
	p.With("u", "c")
	v := e.Decide()
	require.Equal(t, "gold", v.Subjects[0].OverrideName())
	require.Contains(t, report(v), `"rule":"r","override":"gold","key":["c"]`)
}

// The names of a rule that have metrics are bounded.
func TestOverrideNamesAreBounded(t *testing.T) {
	var overrides []string
	for i := range policy.MaxCountedNames + 4 {
		overrides = append(overrides, fmt.Sprintf(`{"name":"n%d","key":["u%d"],"limits":["9/1h"]}`, i, i))
	}
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["0/1h"],`+
		`"overrides":[`+strings.Join(overrides, ",")+`]}`)
	for i := range overrides {
		p.With("u", fmt.Sprintf("u%d", i))
		e.Decide()
	}
	counts := series(e)
	require.EqualValues(t, len(overrides), counts["default r: allowed"])
	require.EqualValues(t, 1, counts["default r:n15 allowed"])
	require.Zero(t, counts["default r:n16 allowed"])
	require.Len(t, e.rules.List[0].Metrics.Named, policy.MaxCountedNames)
	require.Equal(t, "n19", e.verdict.Subjects[0].OverrideName())
}

// An override that raises a limit holds for a host or path only if it holds however
// servers may read it; one that lowers a limit holds if it does in one way.
func TestOverridesOfOtherSpellings(t *testing.T) {
	for _, c := range []struct {
		key, pattern string
		headers      []string
		raised, low  bool
	}{
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:80"}, true, true},
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:x"}, false, true},
		{`"host"`, `*.shop.example`, []string{":authority", "x:.shop.example"}, false, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1/a;b"}, true, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1;b/a"}, false, true},
		{`"path"`, `/v1;b/*`, []string{":path", "/v1;b/a"}, false, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/v1/a;b"}, true, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `path:1=v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `header:h=v1`, []string{":path", "/;b/v2", "h", "v1"},
			true, true},
		{`{"header":"h"},"path"`, `v1","*`, []string{":path", "/;b/v2", "h", "v1"}, true, true},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		for limit, want := range map[string]bool{"7/1h": c.raised, "1/1h": c.low} {
			e := compileJSON(t, p, `{"name":"r","key":[`+c.key+`],"limits":["3/1h"],"overrides":[{"key":["`+c.pattern+`"],`+
				`"limits":["`+limit+`"]}]}`)
			require.Equal(t, want, e.Decide().Subjects[0].Override >= 0, "%s %s %v", c.pattern, limit, c.headers)
		}
	}
	// What one request's path left open says nothing of the next.
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":["path"],"limits":["3/1h"],"overrides":[{"key":["/v1"],"unlimited":true}]}`)
	p.With(":path", "/;/v1")
	require.Negative(t, e.Decide().Subjects[0].Override)
	p.With(":path", "/v1")
	require.Zero(t, e.Decide().Subjects[0].Override)
}
