package policy_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	second = int64(1_000_000_000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

func parse(t *testing.T, text string) *policy.Node {
	t.Helper()
	n, err := policy.ParseJSON([]byte(text))
	require.NoError(t, err)
	return n
}

// expression is the pattern of a regular expression.
func expression(text string) policy.Pattern {
	a, err := new(automaton.Set).Compile(text)
	if err != nil {
		panic(err)
	}
	return policy.Pattern{Kind: policy.Regexp, Text: text, Automaton: a}
}

func messages(problems []policy.Problem) []string {
	var list []string
	for i := range problems {
		list = append(list, problems[i].String())
	}
	return list
}

func TestReadFull(t *testing.T) {
	data, err := os.ReadFile("testdata/full.json")
	require.NoError(t, err)
	p, errs, warnings := policy.Read(parse(t, string(data)))
	require.Empty(t, messages(errs))
	require.Empty(t, messages(warnings))

	window := func(a limit.Algorithm, n uint32, per, offset int64) limit.Window {
		return limit.Window{Algorithm: a, Limit: n, PeriodNs: per, OffsetNs: offset}
	}
	fixed, perKey := limit.FixedWindow, limit.FixedWindowPerKey
	one := policy.Cost{Fixed: 1}
	for i := range p.Rules { // which has tests of its own
		require.Equal(t, policy.DefaultResponse(), p.Rules[i].Response)
		p.Rules[i].Response = policy.Response{}
	}
	require.Equal(t, &policy.Policy{
		Domain:  "shop",
		Headers: policy.HeadersIETF,
		Rules: []policy.Rule{{
			Name:    "per-user",
			Counter: "users",
			Match: policy.Match{
				Hosts:   []string{"api.example.com", "*.shop.example", "[2001:db8::1]"},
				Methods: []string{"GET", "POST"},
				Paths: []policy.Pattern{
					{Kind: policy.Prefix, Text: "/v1/"},
					{Kind: policy.Exact, Text: "/login*"},
					expression("^/u/[0-9]+$"),
					{Kind: policy.Exact, Text: "/health"},
					{Kind: policy.Prefix, Text: ""},
				},
				Headers: []policy.HeaderMatch{
					{Name: "x-tenant", Value: policy.Pattern{Kind: policy.Prefix, Text: "acme-"}},
					{Name: "x-agent", Value: policy.Pattern{Kind: policy.Suffix, Text: "bot"}},
					{Name: "x-kind", Value: expression("a|b")},
					{Name: "x-plan", Value: policy.Pattern{Kind: policy.Exact, Text: "gold"}},
					{Name: "x-star", Value: policy.Pattern{Kind: policy.Exact, Text: "*"}},
					{Name: "x-here", Value: policy.Pattern{Kind: policy.Present}},
					{Name: "x-gone", Value: policy.Pattern{Kind: policy.Absent}},
				},
			},
			Key: []policy.KeyPart{
				{Kind: policy.KeyHeader, Name: "x-user-id"},
				{Kind: policy.KeyClientIP, V4Prefix: 24, V6Prefix: 56},
				{Kind: policy.KeyClientIP, V4Prefix: 32, V6Prefix: 64},
				{Kind: policy.KeyClientIP, V4Prefix: 32, V6Prefix: 64},
				{Kind: policy.KeyHost},
				{Kind: policy.KeyMethod},
				{Kind: policy.KeyPath},
				{Kind: policy.KeyPath},
				{Kind: policy.KeyPath, Segment: 2},
			},
			MissingKey: policy.MissingDeny,
			Limits: []policy.Limit{
				{Window: window(fixed, 10, second, 0)},
				{Window: window(fixed, 100, 15*minute, 0)},
				{Window: window(fixed, 100, 90*minute, 0)},
				{Name: "daily", Window: window(fixed, 1000, day, 4*hour)},
				{Window: window(perKey, 1000, day, 0)},
			},
			Cost: policy.Cost{Header: "x-cost", Default: 2, Min: 0, Max: 100},
			Mode: policy.ModeEnforce, EnforcePercent: 100,
			Capacity:     1000,
			OnFull:       policy.FullDeny,
			OnError:      policy.FailDeny,
			OnContention: policy.FailAllow,
		}, {
			Name:       "log-in",
			Counter:    "log-in",
			Match:      policy.Match{Paths: []policy.Pattern{{Kind: policy.Exact, Text: "/login"}}},
			MissingKey: policy.MissingSkip, Limits: []policy.Limit{{Window: window(perKey, 5, minute, 0)}},
			Cost: policy.Cost{Fixed: 3}, Mode: policy.ModeOff, EnforcePercent: 100, Capacity: 65536,
			OnFull: policy.FullAllow, OnError: policy.FailAllow, OnContention: policy.FailDeny,
		}, {
			Name: "open", Counter: "open", MissingKey: policy.MissingShare,
			Cost: one, Mode: policy.ModeEnforce, EnforcePercent: 100, Capacity: 65536,
			OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
		}, layers(), more(), {
			Name: "denials", Counter: "denials", MissingKey: policy.MissingSkip,
			Limits: []policy.Limit{{Window: window(fixed, 10, second, 0)}},
			Cost:   one, CountDenied: true, Mode: policy.ModeEnforce, EnforcePercent: 100, Capacity: 65536,
			OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
		}},
		Manage: &policy.Manage{Path: "/.sluice/", Port: 9902, TokenSHA256: [32]byte{
			0x11, 0x37, 0x1a, 0xff, 0x22, 0x56, 0x2e, 0x1c, 0x85, 0x40, 0xb6, 0x41, 0x7a, 0x24, 0x29, 0x00,
			0x7f, 0xbb, 0xdb, 0x4a, 0xe0, 0xff, 0xda, 0x05, 0x05, 0x03, 0xb3, 0xd7, 0x76, 0x32, 0xe9, 0x72,
		}},
	}, p)
	require.Equal(t, "header:9:x-user-id,client_ip:24:56,client_ip:32:64,client_ip:32:64,host,method,path:0,path:0,path:2", p.Rules[0].KeyDefinition())
	require.Empty(t, p.Rules[1].KeyDefinition())
	require.Equal(t, []limit.Window{window(perKey, 5, minute, 0)}, p.Rules[1].Windows())
	require.Empty(t, p.Rules[2].Windows())
	require.Empty(t, p.Rules[3].Overrides[0].Windows())
	require.Equal(t, p.Rules[3].Overrides[1].Limits[1].Window, p.Rules[3].Overrides[1].Windows()[1])
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
		{"null", `null`, []string{"a policy must be an object with the fields version, domain, headers, rules and manage, not nothing"}},
		{"list", `[]`, []string{"a policy must be an object with the fields version, domain, headers, rules and manage, not a list"}},
		{"no version", `{}`, []string{"version: is missing: it must be 1"}},
		{"version as text", `{"version":"1"}`, []string{`version: must be 1, not "1": remove the quotes`}},
		{"next version alone", `{"version":2,"rulez":1}`, []string{"version: 2 is not known to this build, which reads version 1"}},
		{"odd version", `{"version":1.5}`, []string{"version: 1.5 is not known to this build, which reads version 1"}},
		{"unknown and near", `{"version":1,"Rules":[]}`, []string{`Rules: unknown field: did you mean "rules"?`}},
		{"unknown and odd", `{"version":1,"a b":[]}`, []string{`["a b"]: unknown field: the fields here are version, revision, domain, headers, rules, manage`}},
		{"empty field name", `{"version":1,"":[]}`, []string{`[""]: unknown field: the fields here are version, revision, domain, headers, rules, manage`}},
		{"duplicate", `{"version":1,"version":1}`, []string{`version: appears twice: keep one`}},
		{"duplicate escaped", `{"version":1,"\u0076ersion":1}`, []string{`version: appears twice: keep one`}},
		{"revision", `{"version":1,"revision":"3"}`, []string{`revision: is reserved: the control plane sets it when it pushes a policy; remove it`}},
		{"missing name", `{"version":1,"rules":[{"limits":[]}]}`, []string{`rules[0].name: is missing: it must be text`}},
		{"field where there is none", rule(`,"key":[{"host":{"x":1}}]`), []string{`rules[0].key[0].host.x: unknown field: there is none here`}},
		{"very long field name", `{"version":1,"` + strings.Repeat("é", 500_000) + `":1}`, []string{`["` + strings.Repeat("é", 30) + `…"]: unknown field: the fields here are version, revision, domain, headers, rules, manage`}},
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
		{"large table", rule(`,"exempt":[{"paths":["~.*a.{30}"]}]`), []string{"rules[0].exempt[0].paths[0]: the regular expression \".*a.{30}\" needs more than 8192 states: write fewer counted repeats, and none after a .*"}},
		{"token not told", `{"version":1,"manage":{"path":"/m/","token_sha256":"hunter2"}}`, []string{`manage.token_sha256: must be the SHA-256 of the token in quotes, 64 hexadecimal digits: printf %s "$TOKEN" | sha256sum`}},
		{"all at once", `{"version":1,"domain":7,"rules":[{"name":"a","limits":[7,8]}]}`, []string{
			`domain: must be text, not 7: put it in quotes`,
			`rules[0].limits[0]: must be a limit, not 7: write one such as "10/minute" or {requests: 10, per: 1m}`,
			`rules[0].limits[1]: must be a limit, not 8: write one such as "10/minute" or {requests: 10, per: 1m}`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, errs, _ := policy.Read(parse(t, tt.doc))
			require.Nil(t, p)
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
	_, errs, _ := policy.Read(bad)
	require.Equal(t, []string{
		`domain: is not UTF-8: "a\xff"`,
		`["b\xfe"]: field name is not UTF-8`,
		`["b\xfe"][0]: is not UTF-8: "\xc0"`,
	}, messages(errs))

	deep := text("x")
	for range 100 {
		deep = &policy.Node{Kind: policy.List, Items: []*policy.Node{deep}}
	}
	_, errs, _ = policy.Read(deep)
	require.Equal(t, []string{strings.Repeat("[0]", 33) + ": is nested more than 32 deep"}, messages(errs))

	_, errs, _ = policy.Read(nil)
	require.Len(t, errs, 1)
}

func TestReadBounds(t *testing.T) {
	items := strings.TrimSuffix(strings.Repeat("7,", 10_001), ",")
	_, errs, _ := policy.Read(parse(t, `{"version":1,"rules":[`+items+`]}`))
	require.Equal(t, "rules: has 10001 rules, the most is 10000", errs[0].String())
	require.Len(t, errs, 1001)
	require.Equal(t, "and 9001 more problems", errs[1000].String())
}

func TestReadPushed(t *testing.T) {
	p, errs, _ := policy.ReadPushed(parse(t, `{"version":1,"revision":"42","rules":[]}`))
	require.Empty(t, messages(errs))
	require.Equal(t, "42", p.Revision)
	p, errs, _ = policy.ReadPushed(parse(t, `{"version":1,"rules":[]}`))
	require.Empty(t, messages(errs))
	require.Empty(t, p.Revision)
	_, errs, _ = policy.ReadPushed(parse(t, `{"version":1,"revision":"`+strings.Repeat("9", 65)+`"}`))
	require.Equal(t, []string{"revision: must be at most 64 bytes, not 65"}, messages(errs))
}

func TestReadWarnings(t *testing.T) {
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
		{"year", limits(`"5 per year"`), []string{`rules[0].limits[0]: a year has no one length: this counts as 360 days; write "5/360d" to be plain`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, errs, warnings := policy.Read(parse(t, tt.doc))
			require.Empty(t, messages(errs))
			require.NotNil(t, p)
			require.Equal(t, tt.want, messages(warnings))
		})
	}
}

// A Struct in Envoy's configuration makes every number a double.
func TestIntegersInAnyForm(t *testing.T) {
	for _, text := range []string{"10", "10.0", "1e1", "1.0E+1", "100e-1", "0.1e2", "10.000e0"} {
		p, errs, _ := policy.Read(parse(t, rule(`,"capacity":`+text)))
		require.Empty(t, messages(errs), text)
		require.EqualValues(t, 10, p.Rules[0].Capacity, text)
	}
}

func TestPatternRegexpMatchesInFull(t *testing.T) {
	p, errs, _ := policy.Read(parse(t, rule(`,"match":{"headers":{"h":"~a|bc"}}`)))
	require.Empty(t, messages(errs))
	re := p.Rules[0].Match.Headers[0].Value.Automaton
	for s, want := range map[string]bool{"a": true, "bc": true, "ac": false, "ab": false, "a\n": false, "": false} {
		require.Equal(t, want, re.Match(s), s)
	}
}

func TestKeyDefinitionIsUnambiguous(t *testing.T) {
	header := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyHeader, Name: name} }
	keys := [][]policy.KeyPart{
		nil,
		{{Kind: policy.KeyHost}},
		{{Kind: policy.KeyMethod}},
		{{Kind: policy.KeyPath}},
		{{Kind: policy.KeyPath, Segment: 1}},
		{{Kind: policy.KeyHost}, {Kind: policy.KeyMethod}},
		{{Kind: policy.KeyMethod}, {Kind: policy.KeyHost}},
		{header("host")}, {header("a,host")}, {header("a"), {Kind: policy.KeyHost}}, {header("a"), header("b")}, {header("a,header:1:b")},
		{{Kind: policy.KeyClientIP, V4Prefix: 2, V6Prefix: 41}}, {{Kind: policy.KeyClientIP, V4Prefix: 24, V6Prefix: 1}},
	}
	seen := map[string]int{}
	for i, key := range keys {
		text := (&policy.Rule{Key: key}).KeyDefinition()
		first, found := seen[text]
		require.False(t, found, "keys %d and %d are both %q", first, i, text)
		seen[text] = i
	}
}

func TestProblemString(t *testing.T) {
	tests := []struct {
		in   policy.Problem
		want string
	}{
		{policy.Problem{File: "p.yaml", Line: 3, Column: 7, Path: "rules[0].limits[0]", Message: "m"}, "p.yaml:3:7: rules[0].limits[0]: m"},
		{policy.Problem{File: "p.yaml", Line: 3, Message: "m"}, "p.yaml:3: m"},
		{policy.Problem{File: "p.yaml", Message: "m"}, "p.yaml: m"},
		{policy.Problem{Line: 3, Column: 7, Message: "m"}, "3:7: m"},
		{policy.Problem{Path: "a", Message: "m"}, "a: m"},
		{policy.Problem{Message: "m"}, "m"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, tt.in.String())
	}
	require.EqualError(t, policy.Errors{tests[0].in, tests[5].in}, "p.yaml:3:7: rules[0].limits[0]: m\nm")
}

// Whatever the document, Read answers and does not panic.
func FuzzRead(f *testing.F) {
	full, err := os.ReadFile("testdata/full.json")
	require.NoError(f, err)
	f.Add(full)
	keys, err := os.ReadFile("testdata/keys.json")
	require.NoError(f, err)
	f.Add(keys)
	f.Add([]byte(rule(`,"key":[{"header":"x"},"host",{"path":{"segment":1}}]`)))
	f.Add([]byte(`{"version":1,"rules":[{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s",{"requests":1,"per":"1d","algorithm":"fixed_window","offset":"4h","jitter":"5%"}],"overrides":[{"key":["a*"],"unlimited":true},{"key":["*"],"limits":["9/1s"]}]},{"name":"b","counter":"a","key":["host"],"mode":"shadow","limits":[{"requests":1,"per":"1d","offset":"4h","jitter":5},{"requests":512,"per":"1s","algorithm":"sliding_window_log"}]}]}`))
	f.Add([]byte(limits(`{"requests":1,"per":"1s","burst":3,"algorithm":"token_bucket"},{"requests":1,"per":"2s","elastic":true,"algorithm":"fixed_window_per_key"}`)))
	f.Add([]byte(limits(`"1/s; 2/m",{"requests":1e3,"per":"1d","offset":"0"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := policy.ParseJSON(data)
		if err != nil {
			return
		}
		p, errs, _ := policy.Read(n)
		require.Equal(t, p == nil, len(errs) > 0)
		for i := range errs {
			require.NotEmpty(t, errs[i].Message)
			require.True(t, json.Valid(data))
		}
		if p != nil {
			wellFormed(t, p)
		}
	})
}
