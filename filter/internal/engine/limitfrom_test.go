package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// fromClaim is a limit that requests say.
const fromClaim = `{"name":"n","requests":{"jwt":{"provider":"corp","claim":"rpm"},"default":3,"max":9},"per":"1m"}`

// claim moves on to a request of a user whose token says a limit, in JSON; "" says none.
func claim(t *testing.T, p *proxy, user, rpm string) {
	p.With("u", user)
	p.Attributes = map[string]string{}
	if rpm != "" {
		p.Attributes["metadata"] = hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"corp":{"rpm":`+rpm+`}}}`)
	}
}

// A request's own number is its limit: a whole number in digits, as a number or as text, at
// most max; else the default.
func TestARequestSaysItsLimit(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[`+fromClaim+`]}`)
	for i, tt := range []struct {
		rpm      string
		limit    int
		from, is string
	}{
		{"5", 5, `"jwt:corp:rpm"`, ""},
		{`"5"`, 5, `"jwt:corp:rpm"`, ""},
		{"9", 9, `"jwt:corp:rpm"`, ""},
		{"10", 9, `"jwt:corp:rpm"`, `,"limit_is":"max"`},
		{"4294967296", 9, `"jwt:corp:rpm"`, `,"limit_is":"max"`},
		{"0", 0, `"jwt:corp:rpm"`, ""},
		{"3", 3, `"jwt:corp:rpm"`, ""},
		{"", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"-1", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"4.5", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"1e21", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`"many"`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`""`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{`"5 "`, 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"true", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
		{"[5]", 3, `"jwt:corp:rpm"`, `,"limit_is":"default"`},
	} {
		claim(t, p, string(rune('a'+i)), tt.rpm)
		passed := 0
		for e.Decide().Allowed {
			passed++
		}
		require.Equal(t, tt.limit, passed, tt.rpm)
		require.Contains(t, report(e.Decide()), `"limit_from":`+tt.from+tt.is+`,"per_ns"`, tt.rpm)
	}
}

// An operation knows no request, so the default holds for it, and it says so. It counts in
// the key's record all the same.
func TestOperationsOnALimitFromTheRequest(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[`+fromClaim+`]}`)
	claim(t, p, "a", "9")
	require.True(t, e.Decide().Allowed)
	get := operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{"a"}})
	require.Contains(t, get, `{"value":1,"windows":[{"name":"n","limit":3,"limit_from":"jwt:corp:rpm","limit_is":"default","per_ns":60000000000,"used":1,"remaining":2,`)
	operate(t, e, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 8})
	require.True(t, e.Decide().Allowed)
	require.False(t, e.Decide().Allowed)

	for limit, left := range map[string]string{"10": `"limit":9,"limit_from":"jwt:corp:rpm","limit_is":"max"`, "9": `"limit":9,"limit_from":"jwt:corp:rpm"`} {
		get = operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{"a"}, Limits: []string{limit}})
		require.Contains(t, get, left+`,"per_ns":60000000000,"used":9,"remaining":0,`)
	}
	require.Contains(t, operate(t, e, Operation{Name: "hit", Rule: "r", Key: []string{"b"}, N: 8, Limits: []string{"8"}}), `{"allowed":true,`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: []string{"8"}}), `{"allowed":false,`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: []string{"9"}}), `{"allowed":true,`)
	for _, wrong := range [][]string{{"9", "9"}, {"x"}, {""}, {"-1"}, {"4294967296"}} {
		_, err := e.Operate(Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: wrong})
		require.Error(t, err, wrong)
	}
	_, err := e.Operate(Operation{Name: "peek", Rule: "r", Key: []string{"b"}, N: 1, Limits: []string{"9", "9"}})
	require.EqualError(t, err, `requests say 1 of the limits of rule "r", not 2`)
}

// A header is taken only where all its values are one number.
func TestALimitFromATrustedHeader(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":[
		{"requests":{"header":"X-Limit","trusted":true,"default":1,"max":9},"per":"1m"},
		{"requests":{"property":["request","headers","x-limit"],"trusted":true,"default":9,"max":9},"per":"1h"}]}`)
	for i, tt := range []struct {
		values []string
		passed int
	}{{[]string{"4"}, 4}, {[]string{"4", "4"}, 4}, {[]string{"4,4"}, 4}, {[]string{" 4"}, 4}, {[]string{"4", "5"}, 1}, {[]string{"+4"}, 1}, {nil, 1}, {[]string{"0"}, 0}} {
		p.With("u", string(rune('a'+i)))
		p.Headers["x-limit"] = tt.values
		if tt.values == nil {
			delete(p.Headers, "x-limit")
		}
		passed := 0
		for e.Decide().Allowed {
			passed++
		}
		require.Equal(t, tt.passed, passed, "%q", tt.values)
	}
}
