package policy_test

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestReadKeys(t *testing.T) {
	data, err := os.ReadFile("testdata/keys.json")
	require.NoError(t, err)
	p, errs := policy.Read(parse(t, string(data)))
	require.Empty(t, messages(errs))

	var networks []netip.Prefix
	for _, text := range []string{
		"192.0.2.7/32", "10.0.0.0/8", "2001:db8::/32", "::1/128", "192.0.2.0/24", "192.0.2.9/32", "0.0.0.0/0", "::/0",
	} {
		networks = append(networks, netip.MustParsePrefix(text))
	}
	r := &p.Rules[0]
	require.Equal(t, policy.Match{
		Hosts: []string{"api.example", "*.shop.example", "[2001:db8::1]", "192.0.2.1"},
		Paths: []policy.Pattern{
			{Kind: policy.Prefix, Text: "/café/"}, {Kind: policy.Exact, Text: "/a b"}, {Kind: policy.Exact, Text: "/x*"},
			expression("/%20+"), {Kind: policy.Exact, Text: "/100%"},
		},
		ClientIPs: networks,
	}, r.Match)
	require.Equal(t, []policy.Match{
		{Methods: []string{"OPTIONS"}},
		{
			Headers:   []policy.HeaderMatch{{Name: "x-probe", Value: policy.Pattern{Kind: policy.Present}}},
			ClientIPs: []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")},
		},
	}, r.Exempt)
	require.Equal(t, []policy.KeyPart{
		{Kind: policy.KeyQuery, Name: "a b"},
		{Kind: policy.KeyCookie, Name: "sid"},
		{Kind: policy.KeyRoute},
		{Kind: policy.KeyRoute},
		{Kind: policy.KeyJWT, Name: "payload", Path: []string{"sub"}},
		{Kind: policy.KeyJWT, Name: "p", Path: []string{"org", "a.b"}},
		{Kind: policy.KeyProperty, Path: []string{"connection", "uri_san_peer_certificate"}},
		{Kind: policy.KeyFirstOf, Of: []policy.KeyPart{
			{Kind: policy.KeyHeader, Name: "x-api-key"},
			{Kind: policy.KeyQuery, Name: "key"},
			{Kind: policy.KeyJWT, Name: "p", Path: []string{"sub"}},
			{Kind: policy.KeyProperty, Path: []string{"source", "port"}},
			{Kind: policy.KeyPath, Segment: 2},
			{Kind: policy.KeyClientIP, V4Prefix: 24, V6Prefix: 64},
		}},
		{Kind: policy.KeyFirstOf, Of: []policy.KeyPart{{Kind: policy.KeyCookie, Name: "sid"}, {Kind: policy.KeyHost}}},
	}, r.Key)
	require.Equal(t, policy.Cost{Query: "n", Default: 2, Min: 0, Max: 100}, r.Cost)
	texts := func(i int) (list []string) {
		for _, p := range r.Overrides[i].Key[7:] {
			list = append(list, p.Text)
		}
		return list
	}
	require.Equal(t, []string{"client_ip=192.0.2.0/24", "host=api.example"}, texts(0))
	require.Equal(t, []string{"header:x-api-key=gold-", "host=api."}, texts(1))
	require.Equal(t, []string{"path:2=a b", ".*"}, texts(2))
	require.Equal(t, []string{"head", "x"}, texts(3))
	require.Equal(t, "/a b", p.Rules[1].Overrides[0].Key[0].Text)
	require.Empty(t, p.Rules[1].Exempt)

	// Counters are found by this text: it stays.
	require.Equal(t, "query:3:a b,cookie:3:sid,route,route,jwt:7:payload:1:3:sub,jwt:1:p:2:3:org:3:a.b,"+
		"property:2:10:connection:24:uri_san_peer_certificate,"+
		"first_of:6(header:9:x-api-key,query:3:key,jwt:1:p:1:3:sub,property:2:6:source:4:port,path:2,client_ip:24:64),"+
		"first_of:2(cookie:3:sid,host)", r.KeyDefinition())
}

func TestNewKeyDefinitionsAreUnambiguous(t *testing.T) {
	query := func(name string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyQuery, Name: name} }
	host, route := policy.KeyPart{Kind: policy.KeyHost}, policy.KeyPart{Kind: policy.KeyRoute}
	property := func(path ...string) policy.KeyPart { return policy.KeyPart{Kind: policy.KeyProperty, Path: path} }
	jwt := func(provider string, path ...string) policy.KeyPart {
		return policy.KeyPart{Kind: policy.KeyJWT, Name: provider, Path: path}
	}
	firstOf := func(parts ...policy.KeyPart) policy.KeyPart {
		return policy.KeyPart{Kind: policy.KeyFirstOf, Of: parts}
	}
	seen := map[string]int{}
	for i, key := range [][]policy.KeyPart{
		{query("a")}, {{Kind: policy.KeyCookie, Name: "a"}}, {{Kind: policy.KeyHeader, Name: "a"}}, {{Kind: policy.KeyHeader, Name: "a", Scheme: "b"}},
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
