package respond_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func compileJSON(t testing.TB, host engine.Host, rules string) *engine.Engine {
	t.Helper()
	return engine.New(hosttest.Policy(t, rules), host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

func appendFields(style policy.Headers, v *decide.Verdict) []respond.Field {
	f := respond.Fields{Style: style}
	return f.Append(nil, v)
}

func TestFields(t *testing.T) {
	p := hosttest.New()
	p.Clock = 1_500_000_000
	rules := `{"name":"a","limits":["9/10s",{"requests":20,"per":"1d","name":"daily"}]},{"name":"b\"",` +
		`"limits":["3/500ms"]}`
	e := compileJSON(t, p, rules)
	fields := func(style policy.Headers) []respond.Field {
		return appendFields(style, e.Decide())
	}
	require.Empty(t, fields("none"))
	require.Equal(t, []respond.Field{
		{"ratelimit-policy", `"a/0";q=9;w=10, "a/daily";q=20;w=86400, "b\"";q=3`},
		{"ratelimit", `"a/0";r=7;t=9, "a/daily";r=18;t=86399, "b\"";r=1;t=1`},
	}, fields("ietf"))
	require.Equal(t, []respond.Field{
		{"x-ratelimit-limit", "3, 9;w=10, 20;w=86400, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("x-ratelimit"))
	require.Equal(t, []respond.Field{
		{"retry-after", "1"},
		{"x-envoy-ratelimited", "true"},
		{"ratelimit-policy", `"b\"";q=3`},
		{"ratelimit", `"b\"";r=0;t=1`},
		{"x-ratelimit-limit", "3, 3;w=1"},
		{"x-ratelimit-remaining", "0"},
		{"x-ratelimit-reset", "1"},
	}, fields("both"))
}

// What is held is missing in what is left, so the time says when it is back, if it is charged.
// A held slot comes back when its request ends, which nobody knows.
func TestFieldsCountWhatIsHeld(t *testing.T) {
	for algorithm, want := range map[string]string{
		"fixed_window": `"r";r=8;t=59`, "fixed_window_per_key": `"r";r=8;t=60`, "sliding_window_log": `"r";r=8;t=60`,
		"sliding_window_counter": `"r";r=8;t=119`, "token_bucket": `"r";r=8;t=12`,
	} {
		p := hosttest.New()
		p.Clock = 1e9
		e := compileJSON(t, p, `{"name":"r","algorithm":"`+algorithm+`","limits":["10/1m"],"cost":2,
			"settle":{"when":{"status":[401]}}}`)
		fields := appendFields("ietf", e.Decide())
		require.Equal(t, []respond.Field{{"ratelimit-policy", `"r";q=10;w=60`}, {"ratelimit", want}}, fields, algorithm)
		fields = appendFields("x-ratelimit", e.Decide())
		require.Equal(t, respond.Field{"x-ratelimit-remaining", "6"}, fields[1], algorithm)
		require.NotEqual(t, "0", fields[2].Value, algorithm)
	}
	e := compileJSON(t, hosttest.New(), `{"name":"r","algorithm":"concurrency","limits":[5]}`)
	fields := appendFields("ietf", e.Decide())
	require.Equal(t, []respond.Field{{"ratelimit-policy", `"r";q=5`}, {"ratelimit", `"r";r=4`}}, fields)
}
