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
	"github.com/sluice-ratelimit/sluice/shared/quota"
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
		list = append(list, problems[i].Error())
	}
	return list
}

func TestReadFull(t *testing.T) {
	data, err := os.ReadFile("testdata/full.json")
	require.NoError(t, err)
	p, errs := policy.Read(parse(t, string(data)))
	require.Empty(t, messages(errs))

	window := func(a limit.Algorithm, n uint32, per, offset int64) limit.Window {
		return limit.Window{Algorithm: a, Limit: n, PeriodNs: per, OffsetNs: offset}
	}
	fixed, perKey := limit.FixedWindow, limit.FixedWindowPerKey
	one := policy.Cost{Fixed: 1}
	for i := range p.Rules { // which have tests of their own
		r := &p.Rules[i]
		require.Equal(t, policy.DefaultResponse(), r.Response)
		r.Response, r.MissingResponse = policy.Response{}, nil
		if r.Scope == policy.ScopeProxy {
			require.Equal(t, uint32(quota.LeaseAuto), r.Lease)
			require.Equal(t, policy.UnavailableLocal, r.OnUnavailable)
			r.Scope, r.Lease, r.OnUnavailable = "", 0, ""
		}
	}
	fleetWide := func(name string, limit limit.Window, lease uint32, onUnavailable policy.OnUnavailable) policy.Rule {
		return policy.Rule{
			Name: name, Counter: name, Scope: policy.ScopeCluster, MissingKey: policy.MissingSkip,
			Limits: []policy.Limit{{Window: limit}}, Cost: one, Mode: policy.ModeEnforce, EnforcePercent: 100, Capacity: 1000,
			OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
			Lease: lease, OnUnavailable: onUnavailable,
		}
	}
	fleet := fleetWide("fleet", window(fixed, 1000, second, 0), 100, policy.UnavailableDeny)
	fleet.Key = []policy.KeyPart{{Kind: policy.KeyHost}}
	asks := fleetWide("asks", window(fixed, 10, second, 0), quota.LeaseOff, policy.UnavailableLocal)
	asks.CountDenied = true
	require.Equal(t, &policy.Policy{
		Domain:  "shop",
		Headers: policy.HeadersIETF,
		Quota:   &policy.Quota{Cluster: "outbound|9090||quota.mesh", TimeoutNs: second / 4},
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
		}, fleet, asks, fleetWide("leases", window(fixed, 100, minute, 0), quota.LeaseAuto, policy.UnavailableLocal)},
		ReportKeys: policy.ReportHash,
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

func TestReadPushed(t *testing.T) {
	p, errs := policy.ReadPushed(parse(t, `{"version":1,"revision":"42","rules":[]}`))
	require.Empty(t, messages(errs))
	require.Equal(t, "42", p.Revision)
	p, errs = policy.ReadPushed(parse(t, `{"version":1,"rules":[]}`))
	require.Empty(t, messages(errs))
	require.Empty(t, p.Revision)
	_, errs = policy.ReadPushed(parse(t, `{"version":1,"revision":"`+strings.Repeat("9", 65)+`"}`))
	require.Equal(t, []string{"revision: too_long"}, messages(errs))
}

// A Struct in Envoy's configuration makes every number a double.
func TestIntegersInAnyForm(t *testing.T) {
	for _, text := range []string{"10", "10.0", "1e1", "1.0E+1", "100e-1", "0.1e2", "10.000e0"} {
		p, errs := policy.Read(parse(t, rule(`,"capacity":`+text)))
		require.Empty(t, messages(errs), text)
		require.EqualValues(t, 10, p.Rules[0].Capacity, text)
	}
}

func TestPatternRegexpMatchesInFull(t *testing.T) {
	p, errs := policy.Read(parse(t, rule(`,"match":{"headers":{"h":"~a|bc"}}`)))
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

// Whatever the document, Read answers and does not panic.
func FuzzRead(f *testing.F) {
	full, err := os.ReadFile("testdata/full.json")
	require.NoError(f, err)
	f.Add(full)
	keys, err := os.ReadFile("testdata/keys.json")
	require.NoError(f, err)
	f.Add(keys)
	answers, err := os.ReadFile("testdata/answers.json")
	require.NoError(f, err)
	f.Add(answers)
	f.Add([]byte(rule(`,"key":[{"header":"x"},"host",{"path":{"segment":1}}]`)))
	f.Add([]byte(`{"version":1,"rules":[{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s",{"requests":1,"per":"1d","algorithm":"fixed_window","offset":"4h","jitter":"5%"}],"overrides":[{"key":["a*"],"unlimited":true},{"key":["*"],"limits":["9/1s"]}]},{"name":"b","counter":"a","key":["host"],"mode":"shadow","limits":[{"requests":1,"per":"1d","offset":"4h","jitter":5},{"requests":512,"per":"1s","algorithm":"sliding_window_log"}]}]}`))
	f.Add([]byte(limits(`{"requests":1,"per":"1s","burst":3,"algorithm":"token_bucket"},{"requests":1,"per":"2s","elastic":true,"algorithm":"fixed_window_per_key"}`)))
	f.Add([]byte(limits(`"1/s; 2/m",{"requests":1e3,"per":"1d","offset":"0"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := policy.ParseJSON(data)
		if err != nil {
			return
		}
		p, errs := policy.Read(n)
		require.Equal(t, p == nil, len(errs) > 0)
		for i := range errs {
			require.NotEmpty(t, errs[i].Code)
			require.True(t, json.Valid(data))
		}
		if p != nil {
			wellFormed(t, p)
		}
	})
}
