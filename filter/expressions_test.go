package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
)

// agents are the most expensive expressions that a policy can have, with texts that
// they read to the end.
var agents = []struct{ expression, text string }{
	{`(?i).*(bot|crawler|spider|slurp).*`, "Mozilla/5.0 slur craw "},
	{`(?:.{0,9}a)*`, "ab"},
	{`(?:.*\\pL.*\\pN.*\\pS){20}`, "λ١€"},
	{`(?i)(?:[^x]*\\w\\b.\\b)*`, "ab cd "},
}

// An expression takes well below a millisecond of a worker, however long a header is:
// a value longer than the bound is not matched.
func TestExpressionOnALongHeader(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	const rounds = 25
	fastest := func(r *sim.Request) time.Duration {
		best := time.Hour
		for range rounds {
			best = min(best, spent(t, 1, func() { require.Equal(t, 200, b.serve(t, 0, r).Status) }))
		}
		return best
	}
	worst := time.Duration(0)
	for _, a := range agents {
		for _, size := range []int{automaton.MaxValueBytes, 58_000} {
			text := strings.Repeat(a.text, size/len(a.text))
			r := &sim.Request{Headers: [][2]string{{"user-agent", text}}}
			require.NoError(t,
				b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"never"}},"limits":["9000/1h"]}`)))
			without := fastest(r)
			require.NoError(t,
				b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"~`+a.expression+`"}},"limits":["9000/1h"]}`)))
			took := fastest(r) - without
			t.Logf("%s on %d bytes: %v", a.expression, len(text), took)
			worst = max(worst, took)
		}
	}
	t.Logf("an expression on a header of up to 58,000 bytes takes at most %v of a worker", worst)
	require.Less(t, worst, 3*time.Millisecond, "of a processor: the target is 1 ms")
}
