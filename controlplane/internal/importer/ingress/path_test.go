package ingress

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// off begins why a rule is off.
const off = "# Off: No match can select its requests:"

// limited begins an Ingress with a limit.
const limited = "{kind: Ingress, metadata: {name: own, annotations: {nginx.ingress.kubernetes.io/limit-rps: '1'}}, " +
	"spec: "

// These end an Ingress and begin another one. That of regex makes expressions of the paths of its hosts.
const (
	other  = "}\n---\n{kind: Ingress, metadata: {name: other}, spec: "
	canary = "}\n---\n{kind: Ingress, metadata: {name: other, annotations: {nginx.ingress.kubernetes.io/canary: " +
		`"true"}}, spec: `
	regex = "}\n---\n{kind: Ingress, metadata: {name: other, annotations: {nginx.ingress.kubernetes.io/use-regex: " +
		`"true"}}, spec: `
)

// host is a rule of an Ingress, and rules are its spec.
func host(name, path string) string {
	return "{host: '" + name + "', http: {paths: [{path: " + path + ", pathType: Prefix}]}}"
}

func rules(hosts ...string) string { return "{rules: [" + strings.Join(hosts, ", ") + "]}" }

// An Ingress with a limit has its requests, without those that another Ingress takes.
func TestRequestsOfAnIngress(t *testing.T) {
	for _, tc := range []struct{ name, specs, want string }{
		{"a longer path of its host", rules(host("a.example", "/")) + other + rules(host("a.example", "/api")),
			"match: {hosts: [a.example]} exempt: - {paths: [/api, /api/*]}"},
		{"a longer path of one of its hosts",
			rules(host("a.example", "/"), host("b.example", "/")) + other + rules(host("a.example", "/api")),
			"match: {hosts: [a.example, b.example]} exempt: - {hosts: [a.example], paths: [/api, /api/*]}"},
		{"a narrower host", rules(host("*.example", "/")) + other + rules(host("a.example", "/")),
			"match: {hosts: ['*.example']} exempt: - {hosts: [a.example]}"},
		{"a longer path of a host beside a wider one of the same Ingress",
			rules(host("*.example", "/"), host("a.example", "/")) + other + rules(host("a.example", "/api")),
			"match: {hosts: ['*.example', a.example]} exempt: - {hosts: [a.example], paths: [/api, /api/*]}"},
		{"a narrower host of its own, which counts in the same counter",
			rules(host("*.example", "/"), host("a.example", "/api")) + other + rules(host("b.test", "/")),
			"match: {hosts: ['*.example']} exempt: - {hosts: [a.example], paths: [/api, /api/*]}"},
		{"a shorter path", rules(host("a.example", "/api")) + other + rules(host("a.example", "/")),
			"match: {hosts: [a.example], paths: [/api, /api/*]}"},
		{"a path between two of its own, of which nginx gives it the longer one",
			rules("{host: a.example, http: {paths: [{path: /, pathType: Prefix}, {path: /api/v1, pathType: Prefix}]}}") +
				other + rules(host("a.example", "/api")),
			off + " another Ingress takes some of those to a.example with the path /api."},
		{"a host between two of its own, of which nginx gives it the narrower one",
			rules(host("*.example", "/"), host("b.a.example", "/")) + other + rules(host("*.a.example", "/")),
			off + " another Ingress takes some of those to *.a.example."},
		{"a longer path of a host of its own, which has a narrower one of its own below it",
			rules(host("*.example", "/"), host("a.example", "/")) + other + rules(host("*.example", "/api")),
			off + " another Ingress takes some of those to *.example with the path /api."},
		{"a host of its own between two others of its own with other paths",
			rules(host("*.example", "/"), host("b.a.example", "/"), host("*.a.example", "/x")) + other + rules(),
			off + " another rule of the Ingress has some of those to *.a.example with the path /x."},
		{"the same path of one host, which nginx gives to one of the two",
			rules(host("a.example", "/x"), host("b.example", "/")) + other + rules(host("a.example", "/x")),
			off + " another Ingress has a path as long, /x, and ingress-nginx gives each request to one of the two."},
		{"one text of two types", rules(host("a.example", "/x")) + other +
			rules("{host: a.example, http: {paths: [{path: /x, pathType: ImplementationSpecific}]}}"),
			off + " another Ingress has a path as long, /x, and ingress-nginx gives each request to one of the two."},
		{"the same path of other hosts", rules(host("a.example", "/x")) + other + rules(host("b.example", "/x")),
			"match: {hosts: [a.example], paths: [/x, /x/*]}"},
		{"a canary takes none", rules(host("a.example", "/")) + canary + rules(host("a.example", "/api")),
			"match: {hosts: [a.example]}"},
		{"all hosts that no Ingress names", "{defaultBackend: {}}" + other + rules(host("a.example", "/")),
			"exempt: - {hosts: [a.example]}"},
		{"a default backend beside rules is not for all other hosts",
			"{defaultBackend: {}, rules: [" + host("a.example", "/") + "]}" + other + "{defaultBackend: {}}",
			"match: {hosts: [a.example]}"},
		{"a path with a question mark", rules(host("a.example", "'/a?b'")), off + " they have a condition on path."},
		{"a longer path with a question mark", rules(host("a.example", "/")) + other + rules(host("a.example", "'/a?b'")),
			off + " they have a condition on path."},
		{"and takes none of those",
			"{defaultBackend: {}}" + other + "{defaultBackend: {}, rules: [" + host("a.example", "/") + "]}",
			"exempt: - {hosts: [a.example]}"},
	} {
		require.Equal(t, tc.want, requestsOfOwn(t, limited+tc.specs+"}"), tc.name)
	}
}

// Paths of a host that no Ingress lists are noted.
func TestNoteOfUnlistedPaths(t *testing.T) {
	for _, tc := range []struct {
		name, specs string
		isNoted     bool
	}{
		{"of its only host", rules(host("a.example", "/api")), true},
		{"of a host with expressions", rules(host("a.example", "/a")) + regex + rules(host("a.example", "/b")), true},
		{"which another Ingress has", rules(host("a.example", "/api")) + other + rules(host("a.example", "/")), false},
		{"which a canary has", rules(host("a.example", "/api")) + canary + rules(host("a.example", "/")), true},
		{"of which a wider host has some", rules(host("*.example", "/x"), host("a.example", "/api")) + other +
			rules(host("*.example", "/")), true},
		{"of another Ingress, which has no limit", rules(host("a.example", "/")) + other + rules(host("b.example", "/x")),
			false},
	} {
		text := string(imported(t, limited+tc.specs+"}").Policy)
		require.Equal(t, tc.isNoted, strings.Contains(text, "requests to paths that no Ingress has"), tc.name)
	}
}

// nginx tries expressions in the order of their lengths as an Ingress has them, not as a policy has them.
func TestExpressionsOfAnIngress(t *testing.T) {
	for _, tc := range []struct{ own, other, want string }{
		{"/abc", "/abc$", "paths: ['~(?i)/abc.*']} exempt: - {paths: ['~(?i)/abc']}"},
		{"/abc$", "/abc", "paths: ['~(?i)/abc']}"},
		{"/abcde", "/a|/b", "paths: ['~(?i)/abcde.*']}"},
	} {
		got := requestsOfOwn(t, limited+rules(host("a.example", tc.own))+regex+rules(host("a.example", tc.other))+"}")
		require.Equal(t, "match: {hosts: [a.example], "+tc.want, got)
	}
}

// A path without a type, or of one that is up to the controller, is as one with the type Prefix. nginx redirects /a to
// /a/ without a limit.
func TestTypesOfPaths(t *testing.T) {
	for path, want := range map[string]string{
		"{path: /a, pathType: Prefix}":                 "[/a, /a/*]",
		"{path: /a, pathType: ImplementationSpecific}": "[/a, /a/*]",
		"{path: /a}":                    "[/a, /a/*]",
		"{path: /a, pathType: Exact}":   "[/a]",
		"{path: /a/, pathType: Prefix}": "[/a/*]",
		"{path: /a, pathType: Prefix}, {path: /a/, pathType: Prefix}, {path: /b}": "[/a, /a/*, /b, /b/*]",
	} {
		got := requestsOfOwn(t, limited+rules("{host: a.example, http: {paths: ["+path+"]}}")+"}")
		require.Equal(t, "match: {hosts: [a.example], paths: "+want+"}", got)
	}
}

// imported are objects that are imported.
func imported(t *testing.T, text string) draft.Imported {
	t.Helper()
	in, err := source.Open(source.File{Name: "f", Text: []byte(text)})
	require.NoError(t, err)
	d := draft.New("test", "f", policy.ScopeProxy)
	Read(d, []*source.Document{in})
	made, err := d.Finish()
	require.NoError(t, err)
	return made
}

// requestsOfOwn imports objects, and returns the requests of the rule own-rps, or why it is off.
func requestsOfOwn(t *testing.T, text string) string {
	t.Helper()
	comments, rule, _ := strings.Cut(string(imported(t, text).Policy), "- name: own-rps\n")
	if _, why, isOff := strings.Cut(strings.ReplaceAll(comments, "\n  #   ", " "), off); isOff {
		why, _, _ = strings.Cut(why, "\n")
		return off + why
	}
	requests, _, _ := strings.Cut(rule, "key:")
	return strings.Join(strings.Fields(requests), " ")
}
