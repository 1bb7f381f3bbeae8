package simulate_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// run simulates lines by a policy, with a worker and a proxy if the options say nothing else.
func run(t *testing.T, policy, requests string, o simulate.Options) (string, error) {
	t.Helper()
	o.Wasm, o.Seed, o.CacheDir, o.Log = buildtest.Wasm(t), 1, buildtest.CacheDir(), func(message string) { t.Log(message) }
	o.Policy, o.Text, o.Requests, o.Workers = "policy.yaml", []byte(policy), strings.NewReader(requests), max(o.Workers, 1)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	var out bytes.Buffer
	err := simulate.Run(t.Context(), o, &out)
	return out.String(), err
}

// simulateLines returns what each line came to over some proxies.
func simulateLines(t *testing.T, policy string, proxies int, lines string) []string {
	t.Helper()
	out, err := run(t, policy, lines, simulate.Options{Proxies: proxies})
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(out), "\n")
}

func TestBadInputWritesNothing(t *testing.T) {
	const policy = "version: 1\nrules: [{name: r, key: [method], limits: [1/1s]}, {name: c, scope: cluster, key: [method], limits: [1/1s]}]\n"
	for _, c := range []struct{ line, want string }{
		{`{"at_ms":1,"color":"red"}`, `unknown field "color"`},
		{`{"at_ms":1`, "the JSON object has no end"},
		{`{"at_ms":1}{"at_ms":2}`, "there is more than one JSON object"},
		{`{"method":"GET"}`, "a line needs one time: at_ms, at_ns or at"},
		{`{"at_ms":1,"at_ns":1}`, "a line needs one time: at_ms, at_ns or at"},
		{`{"at_ms":-1}`, "at_ms: -1 is no whole number from 0 to "},
		{`{"at_ms":1.5}`, "at_ms: 1.5 is no whole number"},
		{`{"at":"yesterday"}`, `at: "yesterday" is no time like`},
		{`{"at_ms":1,"worker":2}`, "worker: 2 is none of the 2 workers, which count from 0"},
		{`{"at_ms":1,"fail":"sometimes"}`, `fail: "sometimes" must be get, set, quota or cas:N`},
		{`{"at_ms":1,"rule":"r"}`, "rule: a request has none"},
		{`{"at_ms":1,"op":"steal"}`, `op: unknown operation "steal": it must be clean, expires_at, get, hit,`},
		{`{"at_ms":1,"op":"get","rule":"r","key":["GET"],"n":1}`, `n: op get has none`},
		{`{"at_ms":1,"op":"set","rule":"r","key":["GET"]}`, `n: op set needs the units to set`},
		{`{"at_ms":1,"op":"inc","rule":"r","key":["GET"],"n":4294967296}`, `n: must be a whole number from 0 to 4294967295, not`},
		{`{"at_ms":1,"op":"get","rule":"r","key":"a"}`, `key: must be a list of texts, not string`},
		{`{"at_ms":1,"op":"set","rule":"r","n":1}`, `op set: the key of rule "r" has 1 part, not 0`},
		{`{"at_ms":1,"op":"peek","rule":"c"}`, `op peek: the key of rule "c" has 1 part, not 0`},
		{`{"at_ms":1,"op":"stats","rule":"s"}`, `op stats: there is no rule "s"`},
		{`{"at_ms":1,"op":"peek","rule":"r","key":["GET"],"path":"/x"}`, "path: op peek has none"},
		{`{"at_ms":1,"op":"peek","rule":"c","key":["GET"],"fail":"get"}`, `fail: rule "c" has scope cluster`},
		{`{"at_ms":1,"op":"policy"}`, "file: op policy needs the file"},
		{`{"at_ms":1,"op":"policy","file":"none.yaml"}`, "read policy: "},
		{`{"at_ms":1,"metadata":{"ns":7}}`, "metadata: must be an object, not number"},
		{`{"at_ms":1,"headers":{"a":1}}`, "headers"},
	} {
		out, err := run(t, policy, `{"at_ms":0}`+"\n"+c.line+"\n"+`{"at_ms":9}`+"\n", simulate.Options{Workers: 2})
		require.ErrorContains(t, err, "line 2: "+c.want, c.line)
		require.Empty(t, out, c.line)
	}
}

// TestInputIsBounded: a pipe that never ends fills neither memory nor disk.
func TestInputIsBounded(t *testing.T) {
	const policy = "version: 1\nrules: []\n"
	for _, lines := range []string{
		strings.Repeat("\n", 1_000_000) + `{"at_ms":0}`,
		strings.Repeat(strings.Repeat(" ", 1<<20-1)+"\n", 128) + "\n",
	} {
		out, err := run(t, policy, lines, simulate.Options{})
		require.ErrorContains(t, err, "simulate fewer at a time")
		require.Empty(t, out)
	}
}
