package policyfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func parseTree(t *testing.T, text string) *policy.Node {
	t.Helper()
	n, err := policy.ParseJSON([]byte(text))
	require.NoError(t, err)
	return n
}

func messages(problems []Problem) []string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].String())
	}
	return list
}

// rule is a policy of one rule with these fields beside its name and limits.
func rule(fields string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[]` + fields + `}]}`
}

// Each list and text has a largest size, which it may have.
func TestBounds(t *testing.T) {
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	for _, tt := range []struct {
		most int
		doc  func(n int) string
		want string
	}{
		{policy.MaxBodyBytes, func(n int) string {
			return rule(`,"response":{"body":"` + strings.Repeat("a", n) + `"}`)
		}, "rules[0].response.body: must be at most 4096 bytes long"},
		{policy.MaxHeaderBytes, func(n int) string {
			return rule(`,"response":{"headers":{"x-a":"` + strings.Repeat("a", n) + `"}}`)
		}, "rules[0].response.headers.x-a: must be at most 1024 bytes long"},
		{policy.MaxOverrides, func(n int) string {
			return rule(`,"key":["host"],"overrides":[` + many(n, `{"key":["a"],"unlimited":true}`) + `]`)
		}, "rules[0].overrides: has 1001 items, the most is 1000"},
	} {
		_, errs, _ := judge(parseTree(t, tt.doc(tt.most)))
		require.Empty(t, messages(errs), tt.want)
		_, errs, _ = judge(parseTree(t, tt.doc(tt.most+1)))
		require.Equal(t, []string{tt.want}, messages(errs))
	}
	_, errs, _ := judge(parseTree(t, rule(`,"response":{"headers":{`+many(policy.MaxResponseHeaders+1, `"x-a":"1"`)+`}}`)))
	require.Equal(t, []string{"rules[0].response.headers: has 33 items, the most is 32"}, messages(errs))
	_, errs, _ = judge(parseTree(t, `{"version":1,"`+strings.Repeat("é", 500_000)+`":1}`))
	var fields []string
	for _, f := range policy.Schema()[0].Fields {
		fields = append(fields, f.Name)
	}
	require.Equal(t, []string{`["` + strings.Repeat("é", 30) + `…"]: unknown field: the fields here are ` +
		strings.Join(fields, ", ")}, messages(errs))
	_, errs, _ = judge(parseTree(t, `{"version":1,"rules":[`+many(10_001, "7")+`]}`))
	require.Equal(t, "rules: has 10001 items, the most is 10000", errs[0].String())
	require.Len(t, errs, 1001)
	require.Equal(t, "and 9001 more problems", errs[1000].String())
}
