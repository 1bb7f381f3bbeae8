package gateway

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// read makes the draft of a BackendTrafficPolicy with one rule, which has these fields beside its limit.
func read(t *testing.T, fields string) *draft.Draft {
	t.Helper()
	return readRule(t, "limit: {requests: 5, unit: Minute}, "+fields)
}

func readRule(t *testing.T, fields string) *draft.Draft {
	t.Helper()
	text := "{kind: BackendTrafficPolicy, metadata: {name: shop}, spec: {rateLimit: {global: {rules: [" +
		"{" + fields + "}]}}}}"
	in, err := source.Open(source.File{Name: "f", Text: []byte(text)})
	require.NoError(t, err)
	d := draft.New("test", "f", policy.ScopeProxy)
	Read(d, []*source.Document{in})
	return d
}

// Conditions go to the match, or exempt what they exclude. What counts apart goes to the key.
func TestConditionsOfARule(t *testing.T) {
	for _, tc := range []struct{ selector, want string }{
		{"methods: [{value: POST}, {value: PUT}]", "match: {methods: [POST, PUT]}"},
		{"methods: [{value: POST, invert: true}]", "exempt: - {methods: [POST]}"},
		{"headers: [{name: X-Plan, value: gold}]", "match: {headers: {x-plan: gold}}"},
		{"headers: [{name: x-user, type: Distinct}]", "key: [{header: x-user}]"},
		{"path: {value: /a}", "match: {paths: ['~/a(/.*)?']}"},
		{"path: {value: /}", ""},
		{"sourceCIDR: {value: 10.1.2.3/8}", "match: {client_ips: [10.0.0.0/8]}"},
		{"sourceCIDR: {type: Distinct, value: 10.0.0.0/8}", "match: {client_ips: [10.0.0.0/8]} " +
			"key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]"},
	} {
		made, err := read(t, "clientSelectors: [{"+tc.selector+"}]").Finish()
		require.NoError(t, err, tc.selector)
		_, rule, _ := strings.Cut(string(made.Policy), "- name: shop-1\n")
		got := strings.Join(strings.Fields(rule), " ")
		require.Equal(t, strings.TrimSpace(tc.want+" limits: [5/minute]"), got, tc.selector)
	}
}

// No path is outside of /, so such a rule limits nothing there.
func TestARuleForNoPathIsOff(t *testing.T) {
	made, err := read(t, "clientSelectors: [{path: {value: /, invert: true}}]").Finish()
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), `mode: "off"`)
}

// A field that is null is as if it were not there.
func TestFieldsThatAreNull(t *testing.T) {
	made, err := readRule(t, "limit: {requests: 5, unit: Minute, fromMetadata: null}, xRateLimitHeaders: null").Finish()
	require.NoError(t, err)
	require.NotContains(t, string(made.Policy), "mode")
	require.NotContains(t, string(made.Policy), "ignored")
}

// A condition that Envoy Gateway does not have is a problem at its place.
func TestBadConditionsOfARule(t *testing.T) {
	for selector, want := range map[string]string{
		"path: {type: Suffix, value: /a}":   "path: type must be Exact, Distinct, PathPrefix or RegularExpression, not",
		"sourceCIDR: {value: 10.0.0.0}":     "sourceCIDR: value must be a network such as 10.0.0.0/8, not \"10.0.0.0\"",
		"methods: [{value: post}]":          "methods[0]: must be a method such as GET, not \"post\"",
		"queryParams: [{type: Distinct}]":   "queryParams[0]: a query parameter needs a name",
		"headers: [{name: a b, value: x}]":  "headers[0]: \"a b\" is not the name of a header",
		"headers: [{name: a}], cookies: []": "unknown field \"cookies\"",
	} {
		require.ErrorContains(t, read(t, "clientSelectors: [{"+selector+"}]").Err(), want, selector)
	}
}
