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

func limits(items string) string {
	return `{"version":1,"rules":[{"name":"a","limits":[` + items + `]}]}`
}

func TestReadErrors(t *testing.T) {
	tests := []struct {
		name, doc string
		want      []string
	}{
		{"null", `null`, []string{"a policy must be an object with the fields version, domain, headers, quota, rules, exempt and manage, not nothing"}},
		{"list", `[]`, []string{"a policy must be an object with the fields version, domain, headers, quota, rules, exempt and manage, not a list"}},
		{"no version", `{}`, []string{"version: is missing: it must be 1"}},
		{"version as text", `{"version":"1"}`, []string{`version: must be 1, not "1": remove the quotes`}},
		{"next version alone", `{"version":2,"rulez":1}`, []string{"version: 2 is not known to this build, which reads version 1"}},
		{"odd version", `{"version":1.5}`, []string{"version: 1.5 is not known to this build, which reads version 1"}},
		{"unknown and near", `{"version":1,"Rules":[]}`, []string{`Rules: unknown field: did you mean "rules"?`}},
		{"unknown and odd", `{"version":1,"a b":[]}`, []string{`["a b"]: unknown field: the fields here are version, revision, domain, headers, quota, rules, exempt, manage, report_keys, report_secret`}},
		{"empty field name", `{"version":1,"":[]}`, []string{`[""]: unknown field: the fields here are version, revision, domain, headers, quota, rules, exempt, manage, report_keys, report_secret`}},
		{"duplicate", `{"version":1,"version":1}`, []string{`version: appears twice: keep one`}},
		{"duplicate escaped", `{"version":1,"\u0076ersion":1}`, []string{`version: appears twice: keep one`}},
		{"revision", `{"version":1,"revision":"3"}`, []string{`revision: is reserved: the control plane sets it when it pushes a policy; remove it`}},
		{"missing name", `{"version":1,"rules":[{"limits":[]}]}`, []string{`rules[0].name: is missing: it must be text`}},
		{"field where there is none", rule(`,"key":[{"host":{"x":1}}]`), []string{`rules[0].key[0].host.x: unknown field: there is none here`}},
		{"very long field name", `{"version":1,"` + strings.Repeat("é", 500_000) + `":1}`, []string{`["` + strings.Repeat("é", 30) + `…"]: unknown field: the fields here are version, revision, domain, headers, quota, rules, exempt, manage, report_keys, report_secret`}},
		{"swapped letters", rule(`,"mdoe":"off"`), []string{`rules[0].mdoe: unknown field: did you mean "mode"?`}},
		{"null field", rule(`,"key":null`), []string{`rules[0].key: is empty: give a list, or remove the field`}},
		{"null rule", `{"version":1,"rules":[null]}`, []string{`rules[0]: is empty: give an object, or remove the item`}},
		{"control character", `{"version":1,"domain":"a\u0000b"}`, []string{`domain: must not hold the control character '\x00'`}},
		{"capacity", rule(`,"capacity":16777217`), []string{`rules[0].capacity: must be a whole number from 1 to 16777216, not 16777217`}},
		{"beyond a double", rule(`,"capacity":9007199254740993`), []string{`rules[0].capacity: must be a whole number from 1 to 16777216, not 9007199254740993`}},
		{"huge exponent", rule(`,"capacity":1e999999999999`), []string{`rules[0].capacity: must be a whole number from 1 to 16777216, not 1e999999999999`}},
		{"fraction", rule(`,"capacity":10.01`), []string{`rules[0].capacity: must be a whole number from 1 to 16777216, not 10.01`}},
		{"negative limit", limits(`"-5/minute"`), []string{`rules[0].limits[0]: requests must be a whole number from 0 to 4294967295, not -5`}},
		{"zero window", limits(`{"requests":1,"per":"0s"}`), []string{`rules[0].limits[0].per: a window must be 1ms to 366d long, not 0s`}},
		{"too long by a nanosecond", limits(`"1/366d1ns"`), []string{`rules[0].limits[0]: a window must be 1ms to 366d long, not 366d1ns`}},
		{"negative period", limits(`"1/-5s"`), []string{`rules[0].limits[0]: invalid period in limit "1/-5s": write one such as "10/minute", "3 per 15 minutes" or "100/1h30m"`}},
		{"empty token", `{"version":1,"manage":{"path":"/m/","token_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`, []string{`manage.token_sha256: is the SHA-256 of an empty token: set TOKEN first`}},
		{"expression that ends the one around it", rule(`,"match":{"paths":["~a)|(?:b"]}`), []string{"rules[0].match.paths[0]: invalid regular expression \"a)|(?:b\": unexpected ) at character 1: \"a)|(?:b\" (the syntax is RE2)"}},
		{"large expression", rule(`,"match":{"headers":{"h":"~(?:/[a-z]{9}){100}"}}`), []string{"rules[0].match.headers.h: the regular expression \"(?:/[a-z]{9}){100}\" takes 1201 instructions, the most is 1000: write fewer or smaller counted repeats"}},
		{"large table", rule(`,"exempt":[{"paths":["~.*a.{30}"]}]`), []string{"rules[0].exempt[0].paths[0]: the regular expression \".*a.{30}\" needs more than 10922 states: write fewer counted repeats, and none after a .*"}},
		{"token not told", `{"version":1,"manage":{"path":"/m/","token_sha256":"hunter2"}}`, []string{`manage.token_sha256: must be the SHA-256 of the token in quotes, 64 hexadecimal digits: printf %s "$TOKEN" | sha256sum`}},
		{"all at once", `{"version":1,"domain":7,"rules":[{"name":"a","limits":[7,8]}]}`, []string{
			`domain: must be text, not 7: put it in quotes`,
			`rules[0].limits[0]: must be a limit, not 7: write one such as "10/minute" or {requests: 10, per: 1m}`,
			`rules[0].limits[1]: must be a limit, not 8: write one such as "10/minute" or {requests: 10, per: 1m}`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, errs, _ := judge(parseTree(t, tt.doc))
			require.Equal(t, tt.want, messages(errs))
		})
	}
}

// What only a tree built by hand can hold.
func TestReadUnsoundTree(t *testing.T) {
	text := func(s string) *policy.Node { return &policy.Node{Kind: policy.String, Text: s} }
	bad := &policy.Node{Kind: policy.Object, Fields: []policy.Field{
		{Name: "domain", Value: text("a\xff")},
		{Name: "b\xfe", Value: &policy.Node{Kind: policy.List, Items: []*policy.Node{text("\xc0")}}},
	}}
	_, errs, _ := judge(bad)
	require.Equal(t, []string{
		`domain: is not UTF-8: "a\xff"`,
		`["b\xfe"]: field name is not UTF-8`,
		`["b\xfe"][0]: is not UTF-8: "\xc0"`,
	}, messages(errs))

	deep := text("x")
	for range 100 {
		deep = &policy.Node{Kind: policy.List, Items: []*policy.Node{deep}}
	}
	_, errs, _ = judge(deep)
	require.Equal(t, []string{strings.Repeat("[0]", 33) + ": is nested more than 32 deep"}, messages(errs))

	_, errs, _ = judge(nil)
	require.Len(t, errs, 1)
}

// Each list and text has a largest size, which it may have.
func TestBounds(t *testing.T) {
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	for _, tt := range []struct {
		most int
		doc  func(n int) string
		want string
	}{
		{policy.MaxBodyBytes, func(n int) string { return rule(`,"response":{"body":"` + strings.Repeat("a", n) + `"}`) }, "rules[0].response.body: must be at most 4096 bytes, not 4097"},
		{policy.MaxHeaderBytes, func(n int) string { return rule(`,"response":{"headers":{"x-a":"` + strings.Repeat("a", n) + `"}}`) }, "rules[0].response.headers.x-a: must be at most 1024 bytes, not 1025"},
		{policy.MaxOverrides, func(n int) string {
			return rule(`,"key":["host"],"overrides":[` + many(n, `{"key":["a"],"unlimited":true}`) + `]`)
		}, "rules[0].overrides: has 1001 overrides, the most is 1000"},
	} {
		_, errs, _ := judge(parseTree(t, tt.doc(tt.most)))
		require.Empty(t, messages(errs), tt.want)
		_, errs, _ = judge(parseTree(t, tt.doc(tt.most+1)))
		require.Equal(t, []string{tt.want}, messages(errs))
	}
	_, errs, _ := judge(parseTree(t, rule(`,"response":{"headers":{`+many(policy.MaxResponseHeaders+1, `"x-a":"1"`)+`}}`)))
	require.Equal(t, []string{"rules[0].response.headers: has 33 headers, the most is 32"}, messages(errs))
	_, errs, _ = judge(parseTree(t, `{"version":1,"rules":[`+many(10_001, "7")+`]}`))
	require.Equal(t, "rules: has 10001 rules, the most is 10000", errs[0].String())
	require.Len(t, errs, 1001)
	require.Equal(t, "and 9001 more problems", errs[1000].String())
}

func TestProblemString(t *testing.T) {
	tests := []struct {
		in   Problem
		want string
	}{
		{Problem{File: "p.yaml", Line: 3, Column: 7, Path: "rules[0].limits[0]", Message: "m"}, "p.yaml:3:7: rules[0].limits[0]: m"},
		{Problem{File: "p.yaml", Line: 3, Message: "m"}, "p.yaml:3: m"},
		{Problem{File: "p.yaml", Message: "m"}, "p.yaml: m"},
		{Problem{Line: 3, Column: 7, Message: "m"}, "3:7: m"},
		{Problem{Path: "a", Message: "m"}, "a: m"},
		{Problem{Message: "m"}, "m"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, tt.in.String())
	}
	require.EqualError(t, Errors{tests[0].in, tests[5].in}, "p.yaml:3:7: rules[0].limits[0]: m\nm")
}
