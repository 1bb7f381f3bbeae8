package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/automaton"
)

// If the proxy does not return the values of a repeated header, the header counts
// against the client.
func TestValuesThatTheProxyDoesNotReturn(t *testing.T) {
	for rule, want := range map[string]bool{
		`"exempt":[{"headers":{"x-t":"good*"}}]`: false,
		`"match":{"headers":{"x-t":"evil*"}}`:    false,
	} {
		p := hosttest.New()
		p.Mute = true
		p.With("x-t", "good", "x-t", "evil")
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],`+rule+`}`)
		require.Equal(t, want, e.Decide().Allowed, rule)
	}
}

// A cost that an upstream may read otherwise than the filter is max.
func TestCostsThatCanBeReadOtherwise(t *testing.T) {
	for text, want := range map[string]uint32{
		"": 20, "25": 25, "500": 500, "0500": 500, "000000000000000000000500": 500, "9999": 500, "500, 500": 500, "20, 500": 500, "+500": 500, "500.0": 500, "5e2": 500, "-5": 500,
	} {
		p := hosttest.New()
		e := compileJSON(t, p, `{"name":"r","limits":["9999/1h"],"cost":{"header":"c","default":20,"max":500}},
			{"name":"s","limits":["9999/1h"],"cost":{"query":"page_size","default":20,"max":500}}`)
		if text != "" {
			p.With("c", text, ":path", "/?page_size="+strings.NewReplacer("+", "%2B", ", ", "&page_size=").Replace(text))
		}
		v := e.Decide()
		require.Equal(t, []uint32{want, want}, []uint32{v.Subjects[0].Cost, v.Subjects[1].Cost}, text)
	}
	for query, want := range map[string]uint32{
		"page%5Fsize=25": 25, "page_size=": 500, "page_size": 500, "page_size=%2025": 500, "page_size=1&x=1;page_size=5": 500, "Page_Size=5": 500, "page_size[]=5": 500, "page_size%00=5": 500,
	} {
		p := hosttest.New()
		p.With(":path", "/?"+query)
		e := compileJSON(t, p, `{"name":"s","limits":["9999/1h"],"cost":{"query":"page_size","default":20,"max":500}}`)
		require.Equal(t, want, e.Decide().Subjects[0].Cost, query)
	}
}

// A value that is too long for an expression counts against the client: it is
// taken to match, not to exempt, and to have no higher limit.
func TestTooLongForAnExpression(t *testing.T) {
	fits, long := strings.Repeat("x", automaton.MaxValueBytes), strings.Repeat("x", automaton.MaxValueBytes+1)
	const key = `"name":"r","key":[{"header":"h"}],"limits":["2/1h",{"requests":9,"per":"1d"}]`
	for _, c := range []struct {
		name, rule string
		headers    []string
		allowed    int // of five requests
		noted      bool
	}{
		{"match", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", fits}, 5, false},
		{"match", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", long}, 0, true},
		{"one of two", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", "x", "h", long}, 0, true},
		{"together", `"name":"r","limits":["0/1h"],"match":{"headers":{"h":"~y"}}`, []string{"h", "x", "h", fits}, 5, false},
		{"path", `"name":"r","limits":["0/1h"],"match":{"paths":["~/y"]}`, []string{":path", "/" + fits}, 0, true},
		{"exempt", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"~x*"}}]`, []string{"h", fits}, 5, false},
		{"exempt", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"~x*"}}]`, []string{"h", long}, 0, true},
		{"exempt from all rules", `"name":"r","limits":["0/1h"]}],"exempt":[{"headers":{"h":"~x*"}`, []string{"h", fits}, 5, false},
		{"exempt from all rules", `"name":"r","limits":["0/1h"]}],"exempt":[{"headers":{"h":"~x*"}`, []string{"h", long}, 0, true},
		{"without an expression", `"name":"r","limits":["0/1h"],"exempt":[{"headers":{"h":"x*"}}]`, []string{"h", long}, 5, false},
		{"unlimited", key + `,"overrides":[{"key":["~x*"],"unlimited":true}]`, []string{"h", fits}, 5, false},
		{"unlimited", key + `,"overrides":[{"key":["~x*"],"unlimited":true}]`, []string{"h", long}, 2, true},
		{"raised", key + `,"overrides":[{"key":["~x*"],"limits":["4/1h",{"requests":9,"per":"1d"}]}]`, []string{"h", fits}, 4, false},
		{"raised", key + `,"overrides":[{"key":["~x*"],"limits":["4/1h",{"requests":9,"per":"1d"}]}]`, []string{"h", long}, 2, true},
		{"one raised", key + `,"overrides":[{"key":["~x*"],"limits":["1/1h",{"requests":10,"per":"1d"}]}]`, []string{"h", long}, 2, true},
		{"one left out", key + `,"overrides":[{"key":["~x*"],"limits":["1/1h"]}]`, []string{"h", long}, 2, true},
		{"lowered", key + `,"overrides":[{"key":["~y"],"limits":["1/1h",{"requests":9,"per":"1d"}]}]`, []string{"h", long}, 1, true},
		{"the lowered after the raised", key + `,"overrides":[{"key":["~x*"],"unlimited":true},{"key":["~y"],"limits":["1/1h",{"requests":9,"per":"1d"}]}]`, []string{"h", long}, 1, true},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, `{`+c.rule+`}`)
		allowed := 0
		for range 5 {
			if e.Decide().Allowed {
				allowed++
			}
		}
		require.Equal(t, c.allowed, allowed, c.name)
		noted := uint64(0)
		if c.noted {
			noted = 5
		}
		require.Equal(t, noted, e.rules.List[0].Metrics.TooLong, c.name)
		v := e.Decide()
		require.Equal(t, c.noted, len(v.Subjects) > 0 && v.Subjects[0].TooLong, c.name)
	}
}

// The request that an expression has not been run on does not taint the next.
func TestTooLongIsOfOneRuleAndRequest(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","limits":["9/1h"],"match":{"headers":{"h":"~x"}}},{"name":"s","limits":["9/1h"]}`)
	p.With("h", strings.Repeat("x", automaton.MaxValueBytes+1))
	e.Decide()
	p.With("h", "x")
	e.Decide()
	require.EqualValues(t, 1, e.rules.List[0].Metrics.TooLong)
	require.Zero(t, e.rules.List[1].Metrics.TooLong)
	require.False(t, slices.ContainsFunc(e.verdict.Subjects, func(t *decide.Subject) bool { return t.TooLong }))
}
