package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

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
		{"name":"gold","key":["a"],"limits":["1/1h"]},{"key":["b"],"limits":["1/1h"]},{"name":"gold","key":["c"],"unlimited":true}]},
		{"name":"s","mode":"shadow","key":[{"header":"u"}],"limits":["9/1h"],"overrides":[{"name":"gold","key":["c"],"limits":["0/1h"]}]}`)
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
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["0/1h"],"overrides":[`+strings.Join(overrides, ",")+`]}`)
	for i := range overrides {
		p.With("u", fmt.Sprintf("u%d", i))
		e.Decide()
	}
	counts := series(e)
	require.EqualValues(t, len(overrides), counts["default r: allowed"])
	require.EqualValues(t, 1, counts["default r:n15 allowed"])
	require.Zero(t, counts["default r:n16 allowed"])
	require.Len(t, e.rules.List[0].Named, policy.MaxCountedNames)
	require.Equal(t, "n19", e.verdict.Subjects[0].OverrideName())
}
