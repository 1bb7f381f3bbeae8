package policyfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestWarnings(t *testing.T) {
	tests := []struct {
		name, doc string
		want      []string
	}{
		{"no rules", `{"version":1}`, []string{"rules: there is none: every request is allowed"}},
		{"header key", rule(`,"key":[{"header":"X-A"},{"header":"x-b"}]`), []string{
			"rules[0].missing_key: a client that leaves out x-a, x-b escapes this rule: set missing_key to deny or share, or add client_ip to the key",
		}},
		{"header key, denied", rule(`,"key":[{"header":"x-a"}],"missing_key":"deny"`), nil},
		{"header key, off", rule(`,"key":[{"header":"x-a"}],"mode":"off"`), nil},
		{"header and address", rule(`,"key":[{"header":"x-a"},"client_ip"]`), nil},
		{"no key", rule(``), nil},
		{"Envoy's form of a header", rule(`,"match":{"headers":{"name":"x-tier","exact_match":"gold"}}`), []string{
			"rules[0].match.headers.exact_match: is taken as a header's name, as is each name in headers: write one such as headers: {x-tier: gold}",
		}},
		{"month", limits(`"5/2 Months"`), []string{`rules[0].limits[0]: a month has no one length: this counts as 60 days; write "5/60d" to be plain`}},
		{"elastic", limits(`{"requests":5,"per":"1m","algorithm":"fixed_window_per_key","elastic":true}`), []string{
			`rules[0].limits[0].elastic: is deprecated, and here for policies of Python limits: a client that never pauses for 1m gets no new window; leave it out, or use sliding_window_log`,
		}},
		{"sliding counter of 1", limits(`{"requests":1,"per":"1m","algorithm":"sliding_window_counter"}`), []string{
			`rules[0].limits[0]: a sliding_window_counter of 1 lets two requests through across a boundary, one late in a window and one early in the next: use sliding_window_log, which is exact`,
		}},
		{"sliding counter of 1 in an override", `{"version":1,"rules":[{"name":"a","key":["host"],"algorithm":"sliding_window_counter","limits":["9/1s","0/1m"],"overrides":[{"key":["a"],"limits":["1/1s","0/1m"]}]}]}`, []string{
			`rules[0].overrides[0].limits[0]: a sliding_window_counter of 1 lets two requests through across a boundary, one late in a window and one early in the next: use sliding_window_log, which is exact`,
		}},
		{"elastic in an override, once", `{"version":1,"rules":[{"name":"a","key":["host"],"algorithm":"fixed_window_per_key","limits":[{"requests":5,"per":"1m","elastic":true}],"overrides":[{"key":["a"],"limits":[{"requests":6,"per":"1m","elastic":true}]}]}]}`, []string{
			`rules[0].limits[0].elastic: is deprecated, and here for policies of Python limits: a client that never pauses for 1m gets no new window; leave it out, or use sliding_window_log`,
		}},
		{"shadow and a header key", rule(`,"key":[{"header":"x-a"}],"mode":"shadow"`), []string{
			"rules[0].missing_key: a client that leaves out x-a escapes this rule: set missing_key to deny or share, or add client_ip to the key",
		}},
		{"month as per", limits(`{"requests":5,"per":"2 months"}`), []string{`rules[0].limits[0].per: a month has no one length: this counts as 60 days; write "60d" to be plain`}},
		{"year", limits(`"5 per year"`), []string{`rules[0].limits[0]: a year has no one length: this counts as 360 days; write "5/360d" to be plain`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, errs, warnings := judge(parseTree(t, tt.doc))
			require.Empty(t, messages(errs))
			require.NotNil(t, p)
			require.Equal(t, tt.want, messages(warnings))
		})
	}
}

func TestKeyWarnings(t *testing.T) {
	const escapes = " escapes this rule: set missing_key to deny or share, or add client_ip to the key"
	key := func(parts string) string { return rule(`,"key":[` + parts + `]`) }
	for _, tt := range []struct {
		doc  string
		want []string
	}{
		{key(`{"query":"q"},{"cookie":"c"},{"header":"X-H"}`), []string{"rules[0].missing_key: a client that leaves out query:q, cookie:c, x-h" + escapes}},
		{key(`{"jwt":{"provider":"p","claim":["a","b"]}}`), []string{"rules[0].missing_key: a client that leaves out jwt:p:a.b" + escapes}},
		{key(`{"property":["request","headers","a"]}`), []string{"rules[0].missing_key: a client that leaves out property:request.headers.a" + escapes}},
		{key(`{"property":["connection","sha256_peer_certificate_digest"]}`), []string{"rules[0].missing_key: a client that leaves out property:connection.sha256_peer_certificate_digest" + escapes}},
		{key(`{"property":["connection","id"]}`), nil},
		{key(`"route"`), nil},
		{key(`{"query":"q"},"route"`), nil},
		{key(`{"first_of":[{"query":"q"},{"cookie":"c"}]}`), []string{"rules[0].missing_key: a client that leaves out query:q, cookie:c" + escapes}},
		{key(`{"first_of":[{"query":"q"},"client_ip"]}`), nil},
		{key(`{"first_of":[{"query":"q"},"host","client_ip"]}`), []string{"rules[0].key[0].first_of[2]: is never chosen: every request has host, which comes first"}},
		{key(`{"first_of":[{"query":"q"},{"path":{"segment":1}},"path",{"path":{"segment":2}}]}`), []string{"rules[0].key[0].first_of[3]: is never chosen: every request has path, which comes first"}},
		{
			rule(`,"key":[{"first_of":[{"header":"a"},{"client_ip":{"v4_prefix":24}}]}],"overrides":[{"key":["gold"],"unlimited":true},
				{"key":["client_ip=192.0.2.7"],"unlimited":true},{"key":["client_ip=x"],"unlimited":true},{"key":["x*"],"unlimited":true},
				{"key":["header:a=192.0.2.7"],"unlimited":true},{"key":["client_ip=192*"],"unlimited":true},{"key":["c*"],"unlimited":true},{"key":["*7"],"unlimited":true}]`),
			[]string{
				`rules[0].overrides[0].key[0]: never matches: the key says which part of first_of it has, and begins with "header:a=" or "client_ip="`,
				`rules[0].overrides[1].key[0]: never matches: the address is in keys as "client_ip=192.0.2.0/24"`,
				`rules[0].overrides[2].key[0]: never matches: "x" is no address`,
				`rules[0].overrides[3].key[0]: never matches: the key says which part of first_of it has, and begins with "header:a=" or "client_ip="`,
				"rules[0].overrides[4]: any client that sends a gets the higher limit: have the proxy check, set or remove it at the edge, " +
					"or count by what is verified, such as a jwt claim or a client certificate",
			},
		},
	} {
		_, errs, warnings := judge(parseTree(t, tt.doc))
		require.Empty(t, messages(errs), tt.doc)
		require.Equal(t, tt.want, messages(warnings), tt.doc)
	}
}

func TestUnreachableOverrides(t *testing.T) {
	tests := []struct {
		first, second string
		covered       bool
	}{
		{`"a"`, `"a"`, true},
		{`"a"`, `"=a"`, true},
		{`"a"`, `"b"`, false},
		{`"a"`, `"a*"`, false},
		{`"a"`, `"~a"`, false},
		{`"*"`, `"a"`, true},
		{`"*"`, `"~a"`, true},
		{`"*"`, `"*"`, true},
		{`"a*"`, `"*"`, false},
		{`"a*"`, `"a"`, true},
		{`"a*"`, `"ab*"`, true},
		{`"ab*"`, `"a*"`, false},
		{`"ab*"`, `"a"`, false},
		{`"a*"`, `"*a"`, false},
		{`"a*"`, `"~a.*"`, false},
		{`"*a"`, `"ba"`, true},
		{`"*a"`, `"*ba"`, true},
		{`"*ba"`, `"*a"`, false},
		{`"*a"`, `"a*"`, false},
		{`"~a|b"`, `"~a|b"`, true},
		{`"~a|b"`, `"a"`, false},
		{`"=*"`, `"a"`, false},
		{`"a"`, `"A"`, true},           // hosts are lower case
		{`"a","b"`, `"a","B"`, false},  // headers are as they are
		{`"a*","*"`, `"ab","x"`, true}, // every part must be covered
		{`"a*","b"`, `"ab","*"`, false},
	}
	for _, tt := range tests {
		t.Run(tt.first+" before "+tt.second, func(t *testing.T) {
			key := `"host"`
			if strings.Contains(tt.first, ",") {
				key += `,{"header":"x"}`
			}
			_, errs, warnings := judge(parseTree(t, `{"version":1,"rules":[{"name":"a","key":[`+key+`],"limits":["1/1s"],"overrides":[
				{"key":[`+tt.first+`],"unlimited":true},{"key":[`+tt.second+`],"limits":["5/1s"]}]}]}`))
			require.Empty(t, messages(errs))
			var want []string
			if tt.covered {
				want = []string{`rules[0].overrides[1]: can never match: rules[0].overrides[0] comes first and matches every key that it does`}
			}
			require.Equal(t, want, messages(warnings))
		})
	}
}

// An exact pattern that is no address as keys have it would never match.
func TestOverrideOfAddress(t *testing.T) {
	const never = `rules[0].overrides[0].key[0]: never matches: the address is in keys as `
	tests := []struct{ part, pattern, want string }{
		{`{}`, "192.0.2.7", ""},
		{`{}`, "2001:db8::/64", ""},
		{`{}`, "192.0.2.*", ""},
		{`{}`, "~192[.].*", ""},
		{`{}`, "*", ""},
		{`{}`, "192.0.2.7/32", never + `"192.0.2.7"`},
		{`{}`, "10.0.0.0/8", never + `"10.0.0.0"`},
		{`{}`, "2001:DB8::1", never + `"2001:db8::/64"`},
		{`{}`, "::ffff:192.0.2.7", never + `"192.0.2.7"`},
		{`{}`, "gold", `rules[0].overrides[0].key[0]: never matches: "gold" is no address`},
		{`{"v4_prefix":24,"v6_prefix":128}`, "192.0.2.0/24", ""},
		{`{"v4_prefix":24,"v6_prefix":128}`, "192.0.2.7", never + `"192.0.2.0/24"`},
		{`{"v4_prefix":24,"v6_prefix":128}`, "2001:db8::1", ""},
	}
	for _, tt := range tests {
		_, errs, warnings := judge(parseTree(t, `{"version":1,"rules":[{"name":"a","key":[{"client_ip":`+tt.part+`}],"limits":["1/1s"],"overrides":[{"key":["`+tt.pattern+`"],"unlimited":true}]}]}`))
		require.Empty(t, messages(errs))
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		require.Equal(t, want, messages(warnings), tt.pattern)
	}
}

// Metrics show so many names of a rule.
func TestWarningOfNames(t *testing.T) {
	doc := func(names int) string {
		var list []string
		for i := range names {
			list = append(list, fmt.Sprintf(`{"name":"n%d","key":["a%d"],"limits":["5/1s"]},{"name":"n%d","key":["b%d"],"limits":["5/1s"]}`, i, i, i, i))
		}
		return `{"version":1,"rules":[{"name":"a","key":["host"],"limits":["1/1s"],"overrides":[` + strings.Join(list, ",") + `]}]}`
	}
	_, errs, warnings := judge(parseTree(t, doc(policy.MaxCountedNames)))
	require.Empty(t, messages(errs))
	require.Empty(t, messages(warnings))
	_, _, warnings = judge(parseTree(t, doc(policy.MaxCountedNames+1)))
	require.Equal(t, []string{"rules[0].overrides: has 17 names, and metrics show the first 16: let overrides that belong together share a name"}, messages(warnings))
}

func TestOverrideBounds(t *testing.T) {
	list := func(n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"key":["k%d"],"unlimited":true}`, i))
		}
		return `{"version":1,"rules":[{"name":"a","key":["host"],"limits":["1/1s"],"overrides":[` + strings.Join(items, ",") + `]}]}`
	}
	p, errs, warnings := judge(parseTree(t, list(policy.MaxOverrides)))
	require.Empty(t, messages(errs))
	require.Empty(t, messages(warnings))
	require.Len(t, p.Rules[0].Overrides, policy.MaxOverrides)
	_, errs, _ = judge(parseTree(t, list(policy.MaxOverrides+1)))
	require.Equal(t, []string{"rules[0].overrides: has 1001 overrides, the most is 1000"}, messages(errs))
}

// A policy whose counters may take more than 64 MiB is warned of.
func TestTheWarningOfMemory(t *testing.T) {
	const small = `{"name":"small","key":["host"],"match":{"paths":["/small/"]},"capacity":9,"limits":["99/1s"]}`
	const large = small + `,{"name":"large","key":["host"],"match":{"paths":["/large/"]},"limits":["99/1s"],"capacity":2000000}`
	for _, c := range []struct {
		name, rules, want string
	}{
		{"little", small, ""},
		{"one key, whatever the capacity", strings.ReplaceAll(large, `"key":["host"],`, ""), ""},
		{"much", large, "rules: counters for 2000009 live keys take up to 71 MiB in each Envoy: lower capacity if fewer keys are live at a time"},
	} {
		_, errs, warnings := judge(parseTree(t, `{"version":1,"rules":[`+c.rules+`]}`))
		require.Empty(t, messages(errs), c.name)
		if c.want == "" {
			require.Empty(t, messages(warnings), c.name)
		} else {
			require.Equal(t, []string{c.want}, messages(warnings), c.name)
		}
	}
}

func TestWarningOfSpellings(t *testing.T) {
	const slash = `rules[0].match.paths[0]: many an upstream takes "/login/" for this path, and the rule does not: add "/login/*" where yours does`
	for fields, want := range map[string]string{
		`"match":{"paths":["/login"]},"limits":["1/1s"]`:                               slash,
		`"match":{"paths":["=/login"]},"limits":["0/1s"],"mode":"shadow"`:              slash,
		`"match":{"paths":["/login"]},"limits":["1/1s"],"mode":"off"`:                  "",
		`"match":{"paths":["/login"]},"limits":[]`:                                     "",
		`"match":{"paths":["/login","/login/*"]},"limits":["1/1s"]`:                    "",
		`"match":{"paths":["/login","~/login(/.*)?"]},"limits":["1/1s"]`:               "",
		`"match":{"paths":["/login*"]},"limits":["1/1s"]`:                              "",
		`"match":{"paths":["/","/a/"]},"limits":["1/1s"]`:                              "",
		`"match":{"paths":["/a*"]},"exempt":[{"paths":["/a/free"]}],"limits":["1/1s"]`: "",
	} {
		_, errs, warnings := judge(parseTree(t, `{"version":1,"rules":[{"name":"a",`+fields+`}]}`))
		require.Empty(t, messages(errs), fields)
		if want == "" {
			require.Empty(t, messages(warnings), fields)
		} else {
			require.Equal(t, []string{want}, messages(warnings), fields)
		}
	}
}
