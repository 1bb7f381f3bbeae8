package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// A request that is exempt from the policy is asked of no rule, and costs no call but
// those for the exemption; one that is not is judged as ever.
func TestExemptFromThePolicy(t *testing.T) {
	const rules = `{"name":"r","key":[{"header":"u"}],"missing_key":"share","limits":["0/1h"]},{"name":"s","limits":["0/1h"]}`
	p := hosttest.New()
	e := compileJSON(t, p, rules+`],"exempt":[{"methods":["HEAD"]},{"client_ips":["10.0.0.0/8"]}`)
	v := e.Decide()
	require.False(t, v.Allowed)
	require.False(t, v.Exempt)
	require.Len(t, v.Subjects, 2)
	p.With(":method", "HEAD")
	p.Calls = nil
	v = e.Decide()
	require.True(t, v.Allowed && v.Exempt)
	require.Empty(t, v.Subjects)
	require.Equal(t, []string{"header :method"}, p.Calls)
	require.JSONEq(t, `{"allowed":true,"exempt":true,"rules":[]}`, report(v))
	require.True(t, e.Peek().Exempt)
	p.With(":method", "GET")
	require.False(t, e.Peek().Exempt)
	require.EqualValues(t, 1, e.rules[0].Metrics.Denied)
}

// The first item of cost that matches gives the cost; a request that may be read in
// several ways costs the most of what those would.
func TestCostByMatch(t *testing.T) {
	const list = `[{"match":{"paths":["/search*"]},"cost":10},{"match":{"headers":{"x-plan":"cheap"}},"cost":2},` +
		`{"match":{"methods":["POST"]},"cost":{"header":"x-cost","max":50}}`
	for _, c := range []struct {
		cost    string
		headers []string
		want    uint32
	}{
		{list + `]`, nil, 1},
		{list + `,{"cost":7}]`, nil, 7},
		{list + `,{"match":{},"cost":{"header":"x-cost"}}]`, []string{"x-cost", "8"}, 8},
		{list + `]`, []string{":path", "/search?q=1"}, 10},
		{list + `]`, []string{":path", "/search", ":method", "POST", "x-cost", "3"}, 10},
		{list + `]`, []string{":method", "POST", "x-cost", "300"}, 50},
		{list + `]`, []string{":method", "post", "x-cost", "30"}, 30},
		{list + `]`, []string{":method", "POST", "x-cost", "+30"}, 50},
		{list + `]`, []string{":method", "GET", "x-cost", "+30"}, 1},
		{list + `,{"cost":7}]`, []string{"x-plan", " cheap"}, 2},
		{list + `,{"cost":7}]`, []string{"x-plan", "cheap"}, 2},
		{list + `,{"cost":7}]`, []string{"x-plan", "cheap", "x-plan", "dear"}, 7},
		{list + `,{"cost":7}]`, []string{"x-plan", "dear", "x-plan", "cheap", ":method", "POST", "x-cost", "40"}, 40},
		{list + `]`, []string{"x-plan", "dear", "x-plan", "cheap"}, 2},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, `{"name":"r","limits":["100/1h"],"cost":`+c.cost+`}`)
		v := e.Decide()
		require.Equal(t, c.want, v.Subjects[0].Cost, "%s %v", c.cost, c.headers)
	}
}
