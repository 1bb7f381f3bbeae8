package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A host that some server takes for another counts against the client: a match knows
// each name that it may stand for, and only what all servers agree on exempts.
func TestHostSpellings(t *testing.T) {
	for _, c := range []struct {
		authority, key string
		match, exempt  bool // of api.example.com and *.shop.example
	}{
		{"api.example.com", "api.example.com", true, true},
		{"API.Example.com.", "api.example.com", true, true},
		{"api.example.com..:443", "api.example.com", true, true},
		{"api.example.com:", "api.example.com", true, true},
		{"api.example.com:x", "api.example.com", true, false},
		{"API.example.com.:443.", "api.example.com", true, false},
		{"api.example.com:+80", "api.example.com", true, false},
		{"api.example.com:1:2", "api.example.com", true, false},
		{"api.example.com:[80]", "api.example.com", true, false},
		{"api.example.com:x@evil.example:80", "api.example.com", true, false},
		{"user@api.example.com:80", "api.example.com", true, false},
		{"user:secret@api.example.com:80", "user", true, false},
		{"user:secret@api.example.com", "user", true, false},
		{"a:x.shop.example:80@evil.example", "a", true, false},
		{"[api.example.com]", "api.example.com", true, false},
		{"[api.example.com]:80", "api.example.com", true, false},
		{"[api.example.com]x:80", "api.example.com", true, false},
		{"a.shop.example:80", "a.shop.example", true, true},
		{"x:.shop.example", "x", true, false},      // Envoy's *.shop.example takes it
		{"x:@a.shop.example:80", "x", true, false}, // and this, where it ignores ports
		{"a.shop.example:.evil", "a.shop.example", true, false},
		{"shop.example:x", "shop.example", false, false},
		{"api.example.com,evil", "api.example.com,evil", false, false},
		{"[2001:DB8:0::1%eth0]:x", "[2001:db8::1]", false, false},
		{"[2001:db8::1].", "[2001:db8::1]", false, false},
		{":80", "", false, false},
		{"", "", false, false},
		{"[", "[", false, false},
		{"..", ".", false, false},
	} {
		p := hosttest.New()
		p.With(":authority", c.authority)
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],"match":{"hosts":["api.example.com","*.shop.example"]}}`)
		require.Equal(t, c.match, !e.Decide().Allowed, "match %q", c.authority)
		e = compileJSON(t, p, `{"name":"r","limits":["0/1h"],"exempt":[{"hosts":["api.example.com","*.shop.example"]}]}`)
		require.Equal(t, c.exempt, e.Decide().Allowed, "exempt %q", c.authority)
		e = compileJSON(t, p, `{"name":"r","key":["host"],"limits":["9/1h"]}`)
		require.Equal(t, c.key, e.Decide().Subjects[0].Key.Parts[0].Text, c.authority)
		require.Equal(t, c.key, policy.CanonicalHost(c.key), "overrides could not name it")
	}
}

// A path with parameters is also the path that servers see which drop them. A match
// knows both, an exemption needs both, and the key is the second.
func TestPathParameters(t *testing.T) {
	for _, c := range []struct {
		path, key     string
		match, exempt bool // of /login, /v1/* and /odd;x/*
	}{
		{"/login", "/login", true, true},
		{"/login;x=1", "/login", true, false},
		{"/login%3bx", "/login", true, false},
		{"/;x/login", "/login", true, false},
		{"/;/;/login?a;b", "/login", true, false},
		{"/;x/v1/orders", "/v1/orders", true, false},
		{"/v1;x/orders;y", "/v1/orders", true, false},
		{"/v1/orders;y", "/v1/orders", true, true},
		{"/v1/;x/orders", "/v1/orders", true, true},
		{"/a/..;/login", "/login", true, false},
		{"/a/b/..;x/.;/../login", "/login", true, false},
		{"/v1/..;/login", "/login", true, true},
		{"/v1/..;/other", "/other", true, false},
		{"/..;/..;/login", "/login", true, false},
		{"/odd;x/y", "/odd/y", true, false},
		{"/v1/%0Ax", "/v1/\nx", true, true},
		{"/login;/", "/login/", false, false},
		{"/login/;x", "/login/", false, false},
		{"/login/..;", "/", false, false},
		{"/;x", "/", false, false},
		{"/x?/;/login", "/x", false, false},
		{"/x#;/login", "/x", false, false},
		{"*;", "/*", false, false},
	} {
		p := hosttest.New()
		p.With(":path", c.path)
		e := compileJSON(t, p, `{"name":"r","limits":["0/1h"],"match":{"paths":["/login","~/v[0-9]/.*","/odd;x/*"]}}`)
		require.Equal(t, c.match, !e.Decide().Allowed, "match %q", c.path)
		e = compileJSON(t, p, `{"name":"r","limits":["0/1h"],"exempt":[{"paths":["/login","/v1/*","/odd;x/*"]}]}`)
		require.Equal(t, c.exempt, e.Decide().Allowed, "exempt %q", c.path)
		e = compileJSON(t, p, `{"name":"r","key":["path"],"limits":["9/1h"]}`)
		require.Equal(t, c.key, e.Decide().Subjects[0].Key.Parts[0].Text, c.path)
	}
}

// An override that raises a limit holds for a host or path only if it holds however
// servers may read it; one that lowers a limit holds if it does in one way.
func TestOverridesOfOtherSpellings(t *testing.T) {
	for _, c := range []struct {
		key, pattern string
		headers      []string
		raised, low  bool
	}{
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:80"}, true, true},
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:x"}, false, true},
		{`"host"`, `*.shop.example`, []string{":authority", "x:.shop.example"}, false, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1/a;b"}, true, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1;b/a"}, false, true},
		{`"path"`, `/v1;b/*`, []string{":path", "/v1;b/a"}, false, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/v1/a;b"}, true, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `path:1=v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `header:h=v1`, []string{":path", "/;b/v2", "h", "v1"}, true, true},
		{`{"header":"h"},"path"`, `v1","*`, []string{":path", "/;b/v2", "h", "v1"}, true, true},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		for limit, want := range map[string]bool{"7/1h": c.raised, "1/1h": c.low} {
			e := compileJSON(t, p, `{"name":"r","key":[`+c.key+`],"limits":["3/1h"],"overrides":[{"key":["`+c.pattern+`"],"limits":["`+limit+`"]}]}`)
			require.Equal(t, want, e.Decide().Subjects[0].Override >= 0, "%s %s %v", c.pattern, limit, c.headers)
		}
	}
	// What one request's path left open says nothing of the next.
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":["path"],"limits":["3/1h"],"overrides":[{"key":["/v1"],"unlimited":true}]}`)
	p.With(":path", "/;/v1")
	require.Negative(t, e.Decide().Subjects[0].Override)
	p.With(":path", "/v1")
	require.Zero(t, e.Decide().Subjects[0].Override)
}
