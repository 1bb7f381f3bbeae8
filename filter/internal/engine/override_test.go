package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
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
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["1/1h"],"capacity":1,"overrides":[{"key":["probe*"],"unlimited":true}]}`)
	for i := range 50 {
		require.Equal(t, 2, admits(p, e, 2, "u", fmt.Sprint("probe", i)))
	}
	require.Empty(t, p.Store)
	require.Contains(t, report(e.Decide()), `"allowed":true,"windows":[]`)
	_, err := e.Operate(Operation{Name: "get", Rule: "r", Key: []string{"probe"}})
	require.ErrorContains(t, err, `rule "r" counts nothing for this key`)
	require.Equal(t, `{"allowed":true,"rules":[{"rule":"r","key":["probe"],"mode":"enforced","allowed":true,"windows":[]}]}`, //nolint:testifylint // its bytes are what matters
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
