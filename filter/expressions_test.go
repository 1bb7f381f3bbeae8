package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
	shared "github.com/sluice-ratelimit/sluice/shared/policy"
)

// agents are expressions as hard on a matcher as a policy can have them, and
// values that they go through to the end.
var agents = []struct{ expression, text string }{
	{`(?i).*(bot|crawler|spider|slurp).*`, "Mozilla/5.0 slur craw "},
	{`(?:.{0,9}a)*`, "ab"},
	{`(?:.*\\pL.*\\pN.*\\pS){20}`, "λ١€"},
	{`(?i)(?:[^x]*\\w\\b.\\b)*`, "ab cd "},
}

// An expression takes well below a millisecond of a worker, however long a header
// is: what is longer than the bound is not read.
func TestExpressionOnALongHeader(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	const rounds = 25
	fastest := func(r *sim.Request) time.Duration {
		best := time.Hour
		for range rounds {
			begin := time.Now()
			require.Equal(t, 200, b.serve(t, 0, r).Status)
			best = min(best, time.Since(begin))
		}
		return best
	}
	worst := time.Duration(0)
	for _, a := range agents {
		for _, size := range []int{automaton.MaxValueBytes, 58_000} {
			text := strings.Repeat(a.text, size/len(a.text))
			r := &sim.Request{Headers: [][2]string{{"user-agent", text}}}
			require.NoError(t, b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"never"}},"limits":["9000/1h"]}`)))
			without := fastest(r)
			require.NoError(t, b.Configure(policy(`{"name":"r","match":{"headers":{"user-agent":"~`+a.expression+`"}},"limits":["9000/1h"]}`)))
			took := fastest(r) - without
			t.Logf("%s on %d bytes: %v", a.expression, len(text), took)
			worst = max(worst, took)
		}
	}
	buildtest.Figure(t, "an expression on a header of up to 58,000 bytes takes at most %v of a worker", worst)
	require.Less(t, worst, 3*time.Millisecond, "the bar is one, on a machine that does nothing else")
}

// The tables of a policy's expressions stay within what validate prints of them.
func TestMemoryOfExpressions(t *testing.T) {
	for name, path := range map[string]string{
		"few large tables": `"~.*a.{10}%d"`, "many small ones": `"~/u%d/[0-9]+"`, "many instructions": `"~(?:a?){330}%d"`, "many classes": `"~\\pL{490}%d"`,
	} {
		p, text, n := fullest(t, path)
		b := start(t, func(o *sim.Options) { o.OnCall = nil })
		require.NoError(t, b.Configure(policy(`{"name":"r","limits":["9/1h"]}`)))
		before := b.Memory(0)
		begin := time.Now()
		require.NoError(t, b.Configure(text))
		took := time.Since(begin)
		grown := b.Memory(0) - before
		t.Logf("%s: %d expressions, validate says %d KiB, a worker grew by %d KiB, configured in %v", name, n, p.Memory().ExpressionBytes>>10, grown>>10, took)
		require.LessOrEqual(t, grown, p.Memory().ExpressionBytes)
	}
}

// fullest returns a policy with nearly as many such expressions as are accepted.
func fullest(t *testing.T, path string) (p *shared.Policy, text []byte, n int) {
	accepted, refused := 0, 4000
	for next := 32; refused-accepted > refused/16; next = min(2*next, (accepted+refused)/2) {
		var list []string
		for i := range next {
			list = append(list, fmt.Sprintf(path, i))
		}
		q, errs, all := read(t, list)
		if len(errs) > 0 {
			refused = next
			continue
		}
		p, text, accepted = q, all, next
	}
	require.NotNil(t, p)
	return p, text, accepted
}

func read(t *testing.T, paths []string) (*shared.Policy, []shared.Problem, []byte) {
	text := policy(`{"name":"r","limits":["9/1h"],"match":{"paths":[` + strings.Join(paths, ",") + `]}}`)
	doc, err := shared.ParseJSON(text)
	require.NoError(t, err)
	p, errs, _ := shared.Read(doc)
	return p, errs, text
}
