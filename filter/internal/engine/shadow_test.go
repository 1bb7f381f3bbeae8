package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

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
		require.NotZero(t, e.rules.List[0].Metrics.ShadowDenied, c.name)
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
	require.EqualValues(t, 3, e.rules.List[0].Metrics.ShadowDenied)
}
