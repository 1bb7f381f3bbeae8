package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// topOf denies requests under a policy that reports keys so, and returns what top says.
func topOf(t *testing.T, report policy.ReportKeys, rules string, headers ...string) (string, error) {
	t.Helper()
	host, p := hosttest.New(), hosttest.Policy(t, rules)
	p.ReportKeys = report
	e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	host.Clock = 5e9
	host.With(headers...)
	for range 3 {
		e.Decide()
	}
	result, err := e.Operate(Operation{Name: "top"})
	if err != nil {
		return "", err
	}
	return string(result), nil
}

func TestTop(t *testing.T) {
	const limit, two = `,"limits":["1/1h"]}`, `{"name":"r","key":[{"header":"u"},{"header":"v"}],"missing_key":"share"`
	long := strings.Repeat("x", 60)
	for _, tc := range []struct {
		name, rules string
		headers     []string
		want        string
	}{
		{"a key", `{"name":"r","key":[{"header":"u"}]` + limit, []string{"u", "alice"}, `{"key":["alice"],"denied":2,"error":0}`},
		{"in shadow", `{"name":"r","mode":"shadow","key":[{"header":"u"}]` + limit, []string{"u", "alice"}, `{"key":["alice"],"denied":2,"error":0}`},
		{"no key", `{"name":"r"` + limit, nil, `{"key":[],"denied":2,"error":0}`},
		{"a missing part", two + limit, []string{"u", "alice"}, `{"key":["alice",null],"denied":2,"error":0}`},
		{"empty parts", two + limit, []string{"u", "", "v", ""}, `{"key":["",""],"denied":2,"error":0}`},
		{"a part cut", two + limit, []string{"u", "a", "v", long}, `{"key":["a","` + long[:44] + `"],"cut":true,"denied":2,"error":0}`},
		{"a part left out", two + limit, []string{"u", long[:46], "v", "b"}, `{"key":["` + long[:46] + `"],"cut":true,"denied":2,"error":0}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := topOf(t, policy.ReportPlain, tc.rules, tc.headers...)
			require.NoError(t, err)
			mode := "enforced"
			if tc.name == "in shadow" {
				mode = "shadow"
			}
			require.JSONEq(t, `{"rules":[{"rule":"r","mode":"`+mode+`","since_ns":5000000000,"keys":[`+tc.want+`],"rest":0}]}`, got)
		})
	}
}

func TestTopHidesKeys(t *testing.T) {
	for _, tc := range []struct {
		report      policy.ReportKeys
		key, header string
	}{
		{policy.ReportHash, `{"header":"u"}`, "u"},
		{policy.ReportPlain, `{"header":"authorization"}`, "authorization"},
		{policy.ReportPlain, `{"cookie":"c"}`, "cookie"},
		{policy.ReportPlain, `{"header":"x-api-key"}`, "x-api-key"},
		{policy.ReportPlain, `{"query":"token"}`, ":path"},
		{policy.ReportPlain, `{"property":["request","headers","authorization"]}`, "authorization"},
		{policy.ReportPlain, `{"first_of":[{"header":"u"},{"cookie":"c"}]}`, "u"},
	} {
		got, err := topOf(t, tc.report, `{"name":"r","key":[`+tc.key+`],"limits":["1/1h"]}`, tc.header, "/?token=alice; c=alice")
		require.NoError(t, err)
		require.Regexp(t, `"keys":\[\{"hash":"[0-9a-f]{16}","denied":2,"error":0\}\]`, got)
		require.NotContains(t, got, "alice")
	}
	_, err := topOf(t, policy.ReportOff, `{"name":"r","limits":["1/1h"]}`)
	require.EqualError(t, err, "the policy's report_keys is off: no keys are kept")
}
