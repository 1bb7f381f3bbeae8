package simulate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

var filter []byte

// compiled returns the filter, compiled once for all tests.
func compiled(t *testing.T) []byte {
	t.Helper()
	if filter == nil {
		filter = buildtest.Wasm(t)
	}
	return filter
}

func run(t *testing.T, policy, requests string, workers int) (string, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte(policy), 0o600))
	var out bytes.Buffer
	err := simulate.Run(context.Background(), simulate.Options{
		Wasm: compiled(t), Policy: file, Requests: strings.NewReader(requests), Dir: dir,
		Workers: workers, Seed: 1, CacheDir: buildtest.CacheDir(),
		Log: func(message string) { t.Log(message) },
	}, &out)
	return out.String(), err
}

func TestOutputExactly(t *testing.T) {
	out, err := run(t, `
version: 1
rules:
  - name: per-user
    key: [{header: x-user-id}]
    limits: [2/10s]
exempt: [{paths: [/health]}]
`, `{"at_ms":1500,"headers":{"x-user-id":"alice"}}
{"at_ms":1500,"path":"/health","headers":{"x-user-id":"alice"}}
{"at_ms":1500,"headers":{"x-user-id":["alice","mallory"]}}
{"at_ns":1500000001,"headers":{"X-User-Id":"alice"}}
{"at":"1970-01-01T00:00:01.5Z"}
{"at_ms":9999,"op":"peek","rule":"per-user","key":["bob"],"n":3}
{"at_ms":9999,"op":"hit","rule":"per-user","key":["bob"],"n":2}
{"at_ms":1500,"headers":{"x-user-id":"eve"},"fail":"get"}
`, 2)
	require.NoError(t, err)
	want := `{"at_ms":1500,"allowed":true,"status":200,"rules":[{"rule":"per-user","key":["alice"],"mode":"enforced","allowed":true,"remaining":1,"windows":[{"limit":2,"per_ms":10000,"used":1,"remaining":1,"reset_ms":8500}]}],"headers":{}}
{"at_ms":1500,"allowed":true,"status":200,"exempt":true,"rules":[],"headers":{}}
{"at_ms":1500,"allowed":true,"status":200,"rules":[{"rule":"per-user","key":["alice"],"mode":"enforced","allowed":true,"remaining":0,"windows":[{"limit":2,"per_ms":10000,"used":2,"remaining":0,"reset_ms":8500}]}],"headers":{}}
{"at_ns":1500000001,"allowed":false,"status":429,"denied_by":"per-user","retry_after_ms":8500,"retry_after_ns":8499999999,"rules":[{"rule":"per-user","key":["alice"],"mode":"enforced","allowed":false,"reason":"limit","remaining":0,"windows":[{"limit":2,"per_ms":10000,"per_ns":10000000000,"used":2,"remaining":0,"reset_ms":8500,"reset_ns":8499999999}]}],"headers":{"retry-after":"9"}}
{"at":"1970-01-01T00:00:01.5Z","allowed":true,"status":200,"rules":[],"headers":{}}
{"at_ms":9999,"op":"peek","allowed":false,"status":429,"denied_by":"per-user","retry_after_ms":-1,"rules":[{"rule":"per-user","key":["bob"],"mode":"enforced","allowed":false,"reason":"limit","remaining":2,"windows":[{"limit":2,"per_ms":10000,"used":0,"remaining":2,"reset_ms":1}]}],"headers":{}}
{"at_ms":9999,"op":"hit","allowed":true,"status":200,"rules":[{"rule":"per-user","key":["bob"],"mode":"enforced","allowed":true,"remaining":0,"windows":[{"limit":2,"per_ms":10000,"used":2,"remaining":0,"reset_ms":1}]}],"headers":{}}
{"at_ms":1500,"allowed":true,"status":200,"rules":[{"rule":"per-user","key":["eve"],"mode":"enforced","allowed":true,"reason":"on_error","windows":[]}],"headers":{}}
`
	require.Equal(t, strings.Split(want, "\n"), strings.Split(out, "\n"))
}

// Every operation answers as the command-line reference says, in ms rounded up
// and for at_ns in both units.
func TestOperationsExactly(t *testing.T) {
	out, err := run(t, `
version: 1
rules:
  - name: r
    key: [{header: u}]
    capacity: 8
    limits: [4/10s, {requests: 9, per: 1h, name: hourly, algorithm: sliding_window_log}, {requests: 3, per: 1m, burst: 6, algorithm: token_bucket}]
  - {name: none, limits: []}
`, `{"at_ms":1500,"op":"get","rule":"r","key":["a"]}
{"at_ms":1500,"op":"expires_at","rule":"r","key":["a"]}
{"at_ms":1500,"op":"reset","rule":"r","key":["a"]}
{"at_ms":1500,"op":"inc","rule":"r","key":["a"],"n":2}
{"at_ns":1500000001,"op":"set","rule":"r","key":["a"],"n":5,"window":"hourly"}
{"at_ns":1500000001,"op":"expires_at","rule":"r","key":["a"]}
{"at":"1970-01-01T00:00:01.6Z","op":"inc","rule":"r","key":["a"]}
{"at_ms":1600,"op":"set","rule":"r","key":["a"],"n":0,"window":"2"}
{"at_ms":1600,"op":"reset","rule":"r","key":["a"]}
{"at_ms":1600,"op":"hit","rule":"r","key":["a"],"n":4}
{"at_ms":1600,"op":"clean","rule":"r"}
{"at_ms":3700000,"op":"clean"}
{"at_ms":3700000,"op":"hit","rule":"r","key":["b"]}
{"at_ms":3700000,"op":"stats","rule":"r"}
{"at_ms":3700000,"op":"stats"}
`, 1)
	require.NoError(t, err)
	//nolint:testifylint // lines of JSON, whose bytes are what matters
	require.Equal(t, `{"at_ms":1500,"op":"get","value":0,"windows":[{"limit":4,"per_ms":10000,"used":0,"remaining":4,"reset_ms":8500},{"name":"hourly","limit":9,"per_ms":3600000,"used":0,"remaining":9,"reset_ms":0},{"limit":6,"per_ms":60000,"used":0,"remaining":6,"reset_ms":0}]}
{"at_ms":1500,"op":"expires_at","value":10000,"windows":[{"limit":4,"per_ms":10000,"used":0,"remaining":4,"reset_ms":8500},{"name":"hourly","limit":9,"per_ms":3600000,"used":0,"remaining":9,"reset_ms":0},{"limit":6,"per_ms":60000,"used":0,"remaining":6,"reset_ms":0}]}
{"at_ms":1500,"op":"reset","value":0,"windows":[{"limit":4,"per_ms":10000,"used":0,"remaining":4,"reset_ms":8500},{"name":"hourly","limit":9,"per_ms":3600000,"used":0,"remaining":9,"reset_ms":0},{"limit":6,"per_ms":60000,"used":0,"remaining":6,"reset_ms":0}]}
{"at_ms":1500,"op":"inc","value":2,"windows":[{"limit":4,"per_ms":10000,"used":2,"remaining":2,"reset_ms":8500},{"name":"hourly","limit":9,"per_ms":3600000,"used":2,"remaining":7,"reset_ms":3600000},{"limit":6,"per_ms":60000,"used":2,"remaining":4,"reset_ms":40000}]}
{"at_ns":1500000001,"op":"set","value":5,"windows":[{"limit":4,"per_ms":10000,"per_ns":10000000000,"used":2,"remaining":2,"reset_ms":8500,"reset_ns":8499999999},{"name":"hourly","limit":9,"per_ms":3600000,"per_ns":3600000000000,"used":5,"remaining":4,"reset_ms":3600000,"reset_ns":3600000000000},{"limit":6,"per_ms":60000,"per_ns":60000000000,"used":2,"remaining":4,"reset_ms":40000,"reset_ns":39999999999}]}
{"at_ns":1500000001,"op":"expires_at","value":10000,"value_ns":10000000000,"windows":[{"limit":4,"per_ms":10000,"per_ns":10000000000,"used":2,"remaining":2,"reset_ms":8500,"reset_ns":8499999999},{"name":"hourly","limit":9,"per_ms":3600000,"per_ns":3600000000000,"used":5,"remaining":4,"reset_ms":3600000,"reset_ns":3600000000000},{"limit":6,"per_ms":60000,"per_ns":60000000000,"used":2,"remaining":4,"reset_ms":40000,"reset_ns":39999999999}]}
{"at":"1970-01-01T00:00:01.6Z","op":"inc","value":3,"windows":[{"limit":4,"per_ms":10000,"used":3,"remaining":1,"reset_ms":8400},{"name":"hourly","limit":9,"per_ms":3600000,"used":6,"remaining":3,"reset_ms":3600000},{"limit":6,"per_ms":60000,"used":3,"remaining":3,"reset_ms":59900}]}
{"at_ms":1600,"op":"set","value":0,"windows":[{"limit":4,"per_ms":10000,"used":3,"remaining":1,"reset_ms":8400},{"name":"hourly","limit":9,"per_ms":3600000,"used":6,"remaining":3,"reset_ms":3600000},{"limit":6,"per_ms":60000,"used":0,"remaining":6,"reset_ms":0}]}
{"at_ms":1600,"op":"reset","value":1,"windows":[{"limit":4,"per_ms":10000,"used":0,"remaining":4,"reset_ms":8400},{"name":"hourly","limit":9,"per_ms":3600000,"used":0,"remaining":9,"reset_ms":0},{"limit":6,"per_ms":60000,"used":0,"remaining":6,"reset_ms":0}]}
{"at_ms":1600,"op":"hit","allowed":true,"status":200,"rules":[{"rule":"r","key":["a"],"mode":"enforced","allowed":true,"remaining":0,"windows":[{"limit":4,"per_ms":10000,"used":4,"remaining":0,"reset_ms":8400},{"name":"hourly","limit":9,"per_ms":3600000,"used":4,"remaining":5,"reset_ms":3600000},{"limit":6,"per_ms":60000,"used":4,"remaining":2,"reset_ms":80000}]}],"headers":{}}
{"at_ms":1600,"op":"clean","value":0}
{"at_ms":3700000,"op":"clean","value":1}
{"at_ms":3700000,"op":"hit","allowed":true,"status":200,"rules":[{"rule":"r","key":["b"],"mode":"enforced","allowed":true,"remaining":3,"windows":[{"limit":4,"per_ms":10000,"used":1,"remaining":3,"reset_ms":10000},{"name":"hourly","limit":9,"per_ms":3600000,"used":1,"remaining":8,"reset_ms":3600000},{"limit":6,"per_ms":60000,"used":1,"remaining":5,"reset_ms":20000}]}],"headers":{}}
{"at_ms":3700000,"op":"stats","rules":[{"rule":"r","keys":1,"capacity":8,"slots":8,"buckets":1,"bytes":936,"metrics":{"allowed":2,"denied":0,"shadow_denied":0,"evicted":0,"floor_denied":0,"full":0,"cas_retries":0,"contention":0,"errors":0,"clock_rebased":0,"not_taken_back":0,"window_resets":0,"boundary_spikes":0,"too_long":0,"cost_unreadable":0}}]}
{"at_ms":3700000,"op":"stats","rules":[{"rule":"r","keys":1,"capacity":8,"slots":8,"buckets":1,"bytes":936,"metrics":{"allowed":2,"denied":0,"shadow_denied":0,"evicted":0,"floor_denied":0,"full":0,"cas_retries":0,"contention":0,"errors":0,"clock_rebased":0,"not_taken_back":0,"window_resets":0,"boundary_spikes":0,"too_long":0,"cost_unreadable":0}},{"rule":"none","keys":0,"capacity":65536,"slots":0,"buckets":0,"bytes":0,"metrics":{"allowed":0,"denied":0,"shadow_denied":0,"evicted":0,"floor_denied":0,"full":0,"cas_retries":0,"contention":0,"errors":0,"clock_rebased":0,"not_taken_back":0,"window_resets":0,"boundary_spikes":0,"too_long":0,"cost_unreadable":0}}]}
`, out)
}

func TestPolicyLineKeepsCounters(t *testing.T) {
	dir := t.TempDir()
	policy := func(limit string) string {
		return "version: 1\nrules: [{name: all, limits: [" + limit + "]}]\n"
	}
	for name, limit := range map[string]string{"one.yaml": "1/1h", "three.yaml": "3/1h"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(policy(limit)), 0o600))
	}
	var out bytes.Buffer
	err := simulate.Run(context.Background(), simulate.Options{
		Wasm: compiled(t), Policy: filepath.Join(dir, "one.yaml"), Dir: dir, Workers: 4, Seed: 1, CacheDir: buildtest.CacheDir(),
		Log: func(string) {},
		Requests: strings.NewReader(`{"at_ms":0}
{"at_ms":0}
{"at_ms":1,"op":"policy","file":"three.yaml"}
{"at_ms":1}
{"at_ms":1}
{"at_ms":1}
`)}, &out)
	require.NoError(t, err)
	require.Equal(t, []string{"200", "429", "policy", "200", "200", "429"}, statuses(t, out.String()))
}

func statuses(t *testing.T, out string) (list []string) {
	t.Helper()
	for line := range strings.Lines(out) {
		var l struct {
			Op     string
			Status json.Number
		}
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		if l.Op == "policy" {
			list = append(list, l.Op)
		} else {
			list = append(list, l.Status.String())
		}
	}
	return list
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
		out, err := run(t, policy, `{"at_ms":0}`+"\n"+c.line+"\n"+`{"at_ms":9}`+"\n", 2)
		require.ErrorContains(t, err, "line 2: "+c.want, c.line)
		require.Empty(t, out, c.line)
	}
}

func TestFaults(t *testing.T) {
	const policy = `
version: 1
rules:
  - {name: open, key: [{header: o}], limits: [1/1h], on_error: allow, on_contention: allow}
  - {name: shut, key: [{header: s}], limits: [1/1h], on_error: deny}
`
	out, err := run(t, policy, `{"at_ms":0,"headers":{"o":"first","s":"first"}}
{"at_ms":0,"headers":{"o":"a"},"fail":"get"}
{"at_ms":0,"headers":{"o":"a"},"fail":"set"}
{"at_ms":0,"headers":{"o":"a"},"fail":"cas:256"}
{"at_ms":0,"headers":{"o":"a"}}
{"at_ms":0,"headers":{"o":"b"},"fail":"cas:257"}
{"at_ms":0,"headers":{"o":"b"}}
{"at_ms":0,"headers":{"s":"a"},"fail":"get"}
{"at_ms":0,"headers":{"s":"a"},"fail":"cas:257"}
{"at_ms":0,"headers":{"s":"a"}}
`, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"200", "200", "200", "200", "429", "200", "200", "429", "429", "200"}, statuses(t, out))
	require.Contains(t, out, `"reason":"on_contention"`)
	require.Contains(t, out, `"headers":{"retry-after":"1"}`)
}

// What a line says of the request beside its headers is in the keys.
func TestWhatTheProxyKnows(t *testing.T) {
	out, err := run(t, `
version: 1
rules:
  - {name: route, key: [route], limits: [9/1h]}
  - {name: claims, key: [{jwt: {provider: p, claim: sub}}, {jwt: {provider: p, claim: [org, id]}}], limits: [9/1h]}
  - {name: properties, key: [{property: [source, port]}, {property: [connection, mtls]}, {property: [filter_state, k]}], limits: [9/1h]}
  - {name: text, key: [{query: q}, {cookie: c}], cost: {query: n}, limits: [9/1h]}
  - {name: first, key: [{first_of: [{query: q}, {cookie: c}, client_ip]}], limits: [9/1h]}
`, `{"at_ms":0,"route":"main"}
{"at_ms":0,"metadata":{"envoy.filters.http.jwt_authn":{"p":{"sub":"alice","org":{"id":42}}}}}
{"at_ms":0,"properties":{"source.port":"443","connection.mtls":"\u0001","filter_state.k":"v"}}
{"at_ms":0,"path":"/?q=a+b&n=3","headers":{"cookie":["x=1","c=2"]}}
{"at_ms":0,"client_ip":"192.0.2.7"}
{"at_ms":0,"op":"get","rule":"first","key":["client_ip=192.0.2.7"]}
`, 1)
	require.NoError(t, err)
	lines := strings.Split(out, "\n")
	require.Contains(t, lines[0], `{"rule":"route","key":["main"],`)
	require.Contains(t, lines[1], `{"rule":"claims","key":["alice","42"],`)
	require.Contains(t, lines[2], `{"rule":"properties","key":["443","true","v"],`)
	require.Contains(t, lines[3], `{"rule":"text","key":["a b","2"],"mode":"enforced","allowed":true,"remaining":6,`)
	require.Contains(t, lines[3], `{"rule":"first","key":["query:q=a b"],`)
	require.Contains(t, lines[4], `{"rule":"first","key":["client_ip=192.0.2.7"],`)
	require.Contains(t, lines[5], `"value":1,`)
}

// TestInputIsBounded: a pipe that never ends fills neither memory nor disk.
func TestInputIsBounded(t *testing.T) {
	const policy = "version: 1\nrules: []\n"
	for _, lines := range []string{
		strings.Repeat("\n", 1_000_000) + `{"at_ms":0}`,
		strings.Repeat(strings.Repeat(" ", 1<<20-1)+"\n", 128) + "\n",
	} {
		out, err := run(t, policy, lines, 1)
		require.ErrorContains(t, err, "simulate fewer at a time")
		require.Empty(t, out)
	}
}
