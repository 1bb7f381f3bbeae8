package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestKeyDefinitionsAreUnambiguous(t *testing.T) {
	query := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyQuery, Name: name} }
	header := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyHeader, Name: name} }
	host, method, route := policy.KeyPart{Kind: policy.KeyHost}, policy.KeyPart{Kind: policy.KeyMethod}, policy.KeyPart{Kind: policy.KeyRoute}
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
		{query("a")}, {{Kind: policy.KeyCookie, Name: "a"}}, {header("a")}, {{Kind: policy.KeyHeader, Name: "a", Scheme: "b"}},
		{{Kind: policy.KeyAddress, Name: "a", V4Prefix: 32}}, {{Kind: policy.KeyAddress, Name: "a", V6Prefix: 32}}, {query("a"), query("b")}, {query("a,query:1:b")},
		{route}, {property("route_name")}, {property("a", "b")}, {property("a.b")}, {property("a"), property("b")}, {property("a:1:b")},
		{jwt("a", "b")}, {jwt("a", "b", "c")}, {jwt("a", "b:1:c")}, {jwt("a:1:1:b")}, {jwt("b", "a")},
		{firstOf(host, route)}, {firstOf(route, host)}, {host, route}, {firstOf(host, route), host}, {firstOf(host, route, host)},
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
		"": "", ".": ".", "...": ".", "A.Example": "a.example", "a.example.": "a.example", "a.example..": "a.example", "192.0.2.1": "192.0.2.1",
		"[2001:DB8:0::1]": "[2001:db8::1]", "[::1]": "[::1]", "[fe80::1%ETH0]": "[fe80::1]", "[::ffff:192.0.2.1]": "[::ffff:192.0.2.1]",
		"[1.2.3.4]": "[1.2.3.4]", "[": "[", "[::1": "[::1", "[X]": "[x]",
	} {
		require.Equal(t, want, policy.CanonicalHost(host), host)
		require.Equal(t, want, policy.CanonicalHost(want), "not stable")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { policy.CanonicalHost("api.example.com."); policy.CanonicalHost("[2001:db8::1]") }))
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
		named(policy.KeyHeader, "authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token", "x-amz-security-token", ":path"),
		named(policy.KeyQuery, "access_token", "api_key", "Token", "key", "sig", "X-Amz-Signature", "client_secret", "password", "code"),
		named(policy.KeyCookie, "sid", "theme"),
		[]policy.KeyPart{
			property("request", "headers", "Authorization"), property("request", "headers", "x-api-key"), property("request", "headers"),
			property("request", "query"), property("request", "path"), property("metadata", "filter_metadata", "edge", "api_key"),
			{Kind: policy.KeyHeader, Name: "x-proof", Scheme: "dpop"}, {Kind: policy.KeyJWT, Name: "p", Path: []string{"session_id"}},
		})
	for _, p := range secret {
		require.True(t, p.HasCredential(), p.Label())
		inside := policy.KeyPart{Kind: policy.KeyFirstOf, Of: []policy.KeyPart{{Kind: policy.KeyHost}, p}}
		require.True(t, inside.HasCredential(), p.Label())
	}
	for _, p := range slices.Concat(
		named(policy.KeyHeader, "x-user-id", "x-tenant", ":authority"), named(policy.KeyQuery, "user", "page", "zipcode"),
		[]policy.KeyPart{
			property("request", "headers", "x-user-id"), property("request", "url_path"), property("source", "address"), property("connection", "uri_san_peer_certificate"),
			{Kind: policy.KeyJWT, Name: "p", Path: []string{"sub"}}, {Kind: policy.KeyClientIP}, {Kind: policy.KeyHost}, {Kind: policy.KeyPath}, {Kind: policy.KeyMethod}, {Kind: policy.KeyRoute},
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
	require.Equal(t, "64:ff9b::c000:207", (&policy.KeyPart{V4Prefix: 32, V6Prefix: 64}).Network(netip.MustParseAddr("64:ff9b::192.0.2.7")))
}
