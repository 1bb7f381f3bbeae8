package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestKeyDefinitionsAreUnambiguous(t *testing.T) {
	query := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyQuery, Name: name} }
	header := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyHeader, Name: name} }
	host := policy.KeyPart{Kind: policy.KeyHost}
	method := policy.KeyPart{Kind: policy.KeyMethod}
	route := policy.KeyPart{Kind: policy.KeyRoute}
	property := func(path ...string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyProperty, Path: path} }
	jwt := func(provider string, path ...string) policy.KeyPart {
		return policy.KeyPart{Kind: policy.KeyJWT, Name: provider, Path: path}
	}
	firstOf := func(parts ...policy.KeyPart) policy.KeyPart {
		return policy.KeyPart{Kind: policy.KeyFirstOf, Of: parts}
	}
	seen := map[string]int{}
	for i, key := range [][]policy.KeyPart{
		nil, {host}, {method}, {{Kind: policy.KeyPath}}, {{Kind: policy.KeyPath, Segment: 1}}, {host, method}, {method, host},
		{header("host")}, {header("a,host")}, {header("a"), host}, {header("a"), header("b")}, {header("a,header:1:b")},
		{{Kind: policy.KeyClientIP, V4Prefix: 2, V6Prefix: 41}}, {{Kind: policy.KeyClientIP, V4Prefix: 24, V6Prefix: 1}},
		{query("a")}, {{Kind: policy.KeyCookie, Name: "a"}}, {header("a")},
		{{Kind: policy.KeyHeader, Name: "a", Scheme: "b"}},
		{{Kind: policy.KeyAddress, Name: "a", V4Prefix: 32}}, {{Kind: policy.KeyAddress, Name: "a", V6Prefix: 32}},
		{query("a"), query("b")}, {query("a,query:1:b")},
		{route}, {property("route_name")}, {property("a", "b")}, {property("a.b")}, {property("a"), property("b")},
		{property("a:1:b")},
		{jwt("a", "b")}, {jwt("a", "b", "c")}, {jwt("a", "b:1:c")}, {jwt("a:1:1:b")}, {jwt("b", "a")},
		{firstOf(host, route)}, {firstOf(route, host)}, {host, route}, {firstOf(host, route), host},
		{firstOf(host, route, host)},
		{firstOf(query("a),host"), route)}, {firstOf(query("a"), host, route)}, {firstOf(query("a"), host), route},
	} {
		text := (&policy.Rule{Key: key}).KeyDefinition()
		first, found := seen[text]
		require.False(t, found, "keys %d and %d are both %q", first, i, text)
		seen[text] = i
	}
}

func TestCanonicalHost(t *testing.T) {
	for host, want := range map[string]string{
		"": "", ".": ".", "...": ".", "A.Example": "a.example", "a.example.": "a.example", "a.example..": "a.example",
		"192.0.2.1":       "192.0.2.1",
		"[2001:DB8:0::1]": "[2001:db8::1]", "[::1]": "[::1]", "[fe80::1%ETH0]": "[fe80::1]",
		"[::ffff:192.0.2.1]": "[::ffff:192.0.2.1]",
		"[1.2.3.4]":          "[1.2.3.4]", "[": "[", "[::1": "[::1", "[X]": "[x]",
	} {
		require.Equal(t, want, policy.CanonicalHost(host), host)
		require.Equal(t, want, policy.CanonicalHost(want), "not stable")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		policy.CanonicalHost("api.example.com.")
		policy.CanonicalHost("[2001:db8::1]")
	}))
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string][2]string{
		"":             {"", ""},
		"a+b":          {"a+b", "a b"},
		"a%20%2B":      {"a +", "a +"},
		"%41%c3%A9%00": {"Aé\x00", "Aé\x00"},
		"%2541":        {"%41", "%41"},
		"%":            {"%", "%"},
		"%4":           {"%4", "%4"},
		"%zz%4g%%41":   {"%zz%4g%A", "%zz%4g%A"},
	} {
		require.Equal(t, want[0], policy.Unescape(text), text)
		require.Equal(t, want[1], policy.UnescapeQuery(text), text)
	}
}

// However a key reads a credential, it is known for one.
func TestHasCredential(t *testing.T) {
	property := func(path ...string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyProperty, Path: path} }
	named := func(kind policy.KeyKind, names ...string) (parts []policy.KeyPart) {
		for _, name := range names {
			parts = append(parts, policy.KeyPart{Kind: kind, Name: name})
		}
		return parts
	}
	secret := slices.Concat(
		named(policy.KeyHeader, "authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token",
			"x-amz-security-token", ":path"),
		named(policy.KeyQuery, "access_token", "api_key", "Token", "key", "sig", "X-Amz-Signature", "client_secret",
			"password", "code"),
		named(policy.KeyCookie, "sid", "theme"),
		[]policy.KeyPart{
			property("request", "headers", "Authorization"), property("request", "headers", "x-api-key"),
			property("request", "headers"),
			property("request", "query"), property("request", "path"),
			property("metadata", "filter_metadata", "edge", "api_key"),
			{Kind: policy.KeyHeader, Name: "x-proof", Scheme: "dpop"},
			{Kind: policy.KeyJWT, Name: "p", Path: []string{"session_id"}},
		})
	for _, p := range secret {
		require.True(t, p.HasCredential(), p.Label())
		inside := policy.KeyPart{Kind: policy.KeyFirstOf, Of: []policy.KeyPart{{Kind: policy.KeyHost}, p}}
		require.True(t, inside.HasCredential(), p.Label())
	}
	for _, p := range slices.Concat(
		named(policy.KeyHeader, "x-user-id", "x-tenant", ":authority"), named(policy.KeyQuery, "user", "page", "zipcode"),
		[]policy.KeyPart{
			property("request", "headers", "x-user-id"), property("request", "url_path"), property("source", "address"),
			property("connection", "uri_san_peer_certificate"),
			{Kind: policy.KeyJWT, Name: "p", Path: []string{"sub"}}, {Kind: policy.KeyClientIP}, {Kind: policy.KeyHost},
			{Kind: policy.KeyPath}, {Kind: policy.KeyMethod}, {Kind: policy.KeyRoute},
		}) {
		require.False(t, p.HasCredential(), p.Label())
	}
}

// Of a client behind NAT64 the translated address counts.
func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7": "192.0.2.0/24", "2001:db8:0:1:2::7": "2001:db8:0:1::/64", "64:ff9b::192.0.2.7": "64:ff9b::c000:200/120",
		"64:ff9b:1::7": "64:ff9b:1::/64",
	} {
		require.Equal(t, want, (&policy.KeyPart{V4Prefix: 24, V6Prefix: 64}).Network(netip.MustParseAddr(text)))
	}
	whole := policy.KeyPart{V4Prefix: 32, V6Prefix: 64}
	require.Equal(t, "64:ff9b::c000:207", whole.Network(netip.MustParseAddr("64:ff9b::192.0.2.7")))
}

// wellFormed checks what everyone who reads a policy relies on.
func wellFormed(t *testing.T, p *policy.Policy) {
	t.Helper()
	units := map[string]uint16{} // of each counter's logs
	for i := range p.Rules {
		r := &p.Rules[i]
		require.LessOrEqual(t, r.EnforcePercent, uint8(100))
		require.Equal(t, r.Holds(), r.HoldNs > 0)
		require.True(t, r.MaxHoldNs == 0 || r.Holds() && r.MaxHoldNs >= r.HoldNs)
		require.True(t, r.LingerNs == 0 || r.Concurrency())
		if r.Settle != nil {
			require.Positive(t, r.Settle.Max)
			require.Less(t, len(r.Limits), policy.MaxWindows)
			require.False(t, r.Concurrency())
		}
		for j, w := range r.Windows() {
			fits(t, w)
			require.False(t, w.Unlimited)
			require.False(t, r.CountDenied && (r.Holds() || w.Algorithm == limit.TokenBucket))
			require.Equal(t, r.Concurrency(), w.Algorithm == limit.Concurrency)
			require.True(t, !r.Concurrency() || w.PeriodNs == r.HoldNs)
			if w.Algorithm == limit.SlidingWindowLog {
				id := fmt.Sprint(r.Counter, " ", w.PeriodNs)
				if known, found := units[id]; found {
					require.Equal(t, known, w.Units)
				}
				units[id] = w.Units
			}
			for k := range j {
				require.False(t, w.Same(r.Limits[k].Window))
			}
		}
		for j := range r.Overrides {
			o := &r.Overrides[j]
			require.Len(t, o.Key, len(r.Key))
			if o.Unlimited {
				require.Empty(t, o.Limits)
				continue
			}
			require.Len(t, o.Limits, len(r.Limits))
			for k, w := range o.Windows() {
				fits(t, w)
				require.True(t, w.Same(r.Limits[k].Window))
				require.Equal(t, r.Limits[k].Units, w.Units)
				require.Equal(t, r.Limits[k].Name, o.Limits[k].Name)
			}
		}
	}
}

func fits(t *testing.T, w limit.Window) {
	t.Helper()
	is := func(a limit.Algorithm) bool { return w.Algorithm == a }
	require.True(t, w.InRange())
	require.True(t, w.OffsetNs == 0 || is(limit.FixedWindow) || is(limit.Calendar))
	require.True(t, w.Jitter == 0 || is(limit.FixedWindow) && w.Jitter <= 100)
	require.True(t, !w.Elastic || is(limit.FixedWindowPerKey))
	require.True(t, w.Burst == 0 || is(limit.TokenBucket))
	require.True(t, w.Burst > 0 || !is(limit.TokenBucket) || w.Limit == 0)
	require.True(t, w.Units == 0 || is(limit.SlidingWindowLog))
	require.True(t, !is(limit.SlidingWindowLog) || w.Limit <= uint32(w.Units) && w.Units <= limit.MaxLog)
}

// A log remembers as much as any key of any rule of its counter may use.
func TestUnits(t *testing.T) {
	p := valid(t, "d", `{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s","0/1m"],
			"overrides":[{"key":["a"],"limits":["9/1s"]},{"key":["b"],"limits":["3/1m"]}]},
		{"name":"b","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["5/1s"]},
		{"name":"c","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["2/1s"],
			"overrides":[{"key":["a"],"limits":["512/1s"]}]},
		{"name":"d","counter":"b","key":["host"],"algorithm":"sliding_window_log","limits":["6/1s"],
			"overrides":[{"key":["a"],"limits":["7/1s"]}]},
		{"name":"e","counter":"e","algorithm":"sliding_window_log","limits":["5/1s","0/1m"],"mode":"off"},
		{"name":"f","counter":"e","algorithm":"sliding_window_log","limits":["70/1m","0/1s"]}`)
	want := map[string][]uint16{"a": {9, 3}, "b": {512}, "c": {512}, "d": {512}, "e": {5, 70}, "f": {70, 5}}
	for i := range p.Rules {
		r := &p.Rules[i]
		var got []uint16
		for _, w := range r.Windows() {
			got = append(got, w.Units)
		}
		require.Equal(t, want[r.Name], got, r.Name)
	}
	wellFormed(t, p)
}

// valid reads rules that must be valid.
func valid(t *testing.T, domain, rules string) *policy.Policy {
	t.Helper()
	p, errs := policy.Read(parse(t, `{"version":1,"domain":"`+domain+`","rules":[`+rules+`]}`))
	require.Empty(t, messages(errs))
	return p
}
