package policyfile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// writer writes random policies: about half are valid.
type writer struct{ *rand.Rand }

// oneOf picks a value; the last ones, behind "!", are wrong and rare.
func (w writer) oneOf(values ...string) string {
	good := values
	for i, v := range values {
		if v == "!" {
			good = values[:i]
			if w.IntN(60) == 0 {
				good = values[i+1:]
			}
		}
	}
	return good[w.IntN(len(good))]
}

// object writes some of these fields, name and value in turn.
func (w writer) object(always int, fields ...string) string {
	var list []string
	for i := 0; i < len(fields); i += 2 {
		if i/2 < always || w.IntN(3) == 0 {
			list = append(list, fmt.Sprintf("%q:%s", fields[i], fields[i+1]))
		}
	}
	return "{" + strings.Join(list, ",") + "}"
}

func (w writer) list(least, most int, item func() string) string {
	var list []string
	for range least + w.IntN(most-least+1) {
		list = append(list, item())
	}
	return "[" + strings.Join(list, ",") + "]"
}

func (w writer) match(least int) string {
	text := func(values ...string) string {
		return w.list(1, 3, func() string { return w.oneOf(values...) })
	}
	return w.object(least,
		"paths", text(`"/v1/*"`, `"=/a*"`, `"~/u/[0-9]+"`, `"/%41"`, `"*"`, "!", `"v1"`, `"/*/x"`, `"~("`, `"/a?b"`, `""`, `7`),
		"hosts", text(`"api.example."`, `"*.Shop.example"`, `"[2001:DB8::0]"`, "!", `"a:80"`, `"*"`, `"[::1"`, `"::1"`, `"bü"`),
		"methods", text(`"GET"`, `"M-SEARCH"`, "!", `"get"`, `"G T"`),
		"client_ips", text(`"10.0.0.0/8"`, `"192.0.2.7"`, `"::/0"`, `"::ffff:10.0.0.0/104"`, "!", `"10.0.0.1/8"`, `"x"`, `"::ffff:0.0.0.0/80"`),
		"headers", w.object(1, "x-a", w.oneOf(`"a*"`, `"*a"`, `"~a|b"`, `"="`, `"!"`, `"*"`, "!", `"*a*"`, `"!a"`, `"~["`, `1`), w.oneOf("X-B", "x-c", "!", "x-A", "a b", ":path"), `"b"`))
}

func (w writer) part(depth int) string {
	if depth == 0 && w.IntN(4) == 0 {
		return `{"first_of":` + w.list(2, 3, func() string { return w.part(1) }) + "}"
	}
	return w.oneOf(`"client_ip"`, `"host"`, `"route"`, `{"path":"full"}`, `{"path":{"segment":2}}`, `{"method":{}}`, `{"header":"X-User"}`, `{"query":"q q"}`,
		`{"cookie":"sid"}`, `{"jwt":{"provider":"p","claim":"sub"}}`, `{"jwt":{"claim":["a","b"],"provider":"q"}}`, `{"property":["source","port"]}`,
		`{"client_ip":{"v4_prefix":24,"v6_prefix":56}}`,
		"!", `"query"`, `{"header":"a b"}`, `{"cookie":"a=b"}`, `{"jwt":{"claim":"sub"}}`, `{"property":[]}`, `{"property":["response","code"]}`, `{"path":{"segment":0}}`,
		`{"first_of":["host"]}`, `{"first_of":["host",{"first_of":["host","path"]}]}`, `{"query":"a","cookie":"b"}`, `{}`, `7`)
}

func (w writer) rule(i int) string {
	key := w.list(0, 3, func() string { return w.part(0) })
	var parts []any
	_ = json.Unmarshal([]byte(key), &parts)
	patterns := make([]string, len(parts), len(parts)+1)
	for i := range patterns {
		patterns[i] = w.oneOf(`"*"`, `"a*"`, `"~[a-z]+"`, `"192.0.2.7"`, `"client_ip=192.0.2.7"`, "!", `"!"`, `"~("`, `""`)
	}
	if w.IntN(60) == 0 {
		patterns = append(patterns, `"*"`)
	}
	overrides := "[]"
	if len(parts) > 0 {
		overrides = w.list(0, 2, func() string {
			return `{` + w.oneOf("", `"name":"gold",`, "!", `"name":"",`) + `"key":[` + strings.Join(patterns, ",") + `],` + w.oneOf(`"unlimited":true`, `"limits":["7/1s"]`, "!", `"limits":["7/2s"]`, `"limits":[],"unlimited":true`) + "}"
		})
	}
	least := 1 // an exemption without conditions is refused
	if w.IntN(60) == 0 {
		least = 0
	}
	return w.object(2,
		"name", w.oneOf(fmt.Sprintf(`"r%d"`, i), "!", `"r0"`, `""`, `" x"`),
		"limits", w.oneOf(`["5/1s"]`, `["5/1s",{"requests":9,"per":"1d","name":"d","offset":"4h"}]`, `[{"requests":9,"per":"2 Minutes"}]`, "!", `[{"requests":9,"per":"fortnight"}]`, `["5/fortnight"]`, `["5/1s","6/1s"]`, `[{"requests":1}]`, `7`),
		"match", w.match(0), "exempt", w.list(0, 2, func() string { return w.match(least) }), "key", key, "overrides", overrides,
		"missing_key", w.oneOf(`"skip"`, `"deny"`, `"share"`, "!", `"allow"`),
		"cost", w.oneOf(`3`, `{"request_bytes":{"per_unit":4,"min":0}}`, `[{"match":`+w.match(0)+`,"cost":2},{"cost":{"query":"n"}}]`, `{"header":"X-Cost"}`, `{"query":"n","min":0,"default":0,"max":9}`, "!", `[]`, `[{"cost":2},{"cost":3}]`, `[{"match":{},"cost":[]}]`, `0`, `{"query":"n","header":"n"}`, `{}`, `{"query":"n","min":7,"max":6}`),
		"settle", w.settle()+w.oneOf(``, `,"hold":"10s"`, `,"max_hold":"1d"`, "!", `,"hold":"9s"`, `,"linger":"1s"`),
		"algorithm", w.oneOf(`"fixed_window"`, `"sliding_window_counter"`, `"fixed_window_per_key"`, "!", `"token_bucket"`, `"sliding"`),
		"response", w.response(), "scope", w.oneOf(`"proxy"`, `"cluster"`, "!", `"node"`),
		"lease", w.oneOf(`"auto"`, `"off"`, `1`, `1e3`, "!", `0`, `"5"`, `4294967295`), "on_unavailable", w.oneOf(`"local"`, `"allow"`, `"deny"`, "!", `"inherit"`),
		"on_error", w.oneOf(`"allow"`, `"deny"`, "!", `"inherit"`), "on_contention", w.oneOf(`"allow"`, `"deny"`, "!", `true`),
		"mode", w.oneOf(`"enforce"`, `"shadow"`, `"off"`, "!", `"on"`),
		"enforce_percent", w.oneOf(`100`, `0`, `1e1`, "!", `101`), "capacity", w.oneOf(`1`, `65536`, `10.0`, "!", `0`, `1e99`),
		"counter", w.oneOf(`"c1"`, `"c2"`, `"c3"`), "count_denied", w.oneOf(`true`, `false`, "!", `"true"`),
		w.oneOf("on_full", "!", "onfull", "on_fill"), w.oneOf(`"inherit"`, `"deny"`, `"allow"`))
}

func (w writer) settle() string {
	return w.object(0,
		"to", w.oneOf(`"cost"`, `"tokens"`, `"milliseconds"`, `{"header":"X-Cost"}`, `{"trailer":"t"}`, "!", `"token"`, `{}`, `{"header":":status"}`),
		"when", w.object(0, "status", w.oneOf(`[401,"5xx"]`, `["400-499"]`, "!", `[]`, `[99]`, `401`), "grpc_status", w.oneOf(`["ok",16]`, "!", `[17]`),
			"headers", w.oneOf(`{"x-a":"~a|b"}`, `{"X-A":"!"}`, "!", `{}`), "no_answer", w.oneOf(`false`, "!", `0`)),
		"unknown", w.oneOf(`"cost"`, `0`, `"0"`, "!", `"estimate"`, `1`), "max", w.oneOf(`1`, "!", `0`), "identity", w.oneOf(`true`, "!", `"true"`))
}

func (w writer) response() string {
	return w.object(0,
		"status", w.oneOf(`429`, `503`, "!", `200`, `600`, `"429"`), "body", w.oneOf(`""`, `"%RULE% %LIMIT% %%"`, "!", `"%NO%"`, `"100%"`, `7`),
		"content_type", w.oneOf(`"text/plain"`, `"application/json; charset=utf-8"`, "!", `"plain"`, `"a/b\r\nc: d"`),
		"headers", w.oneOf(`{}`, `{"x-a":"%REMAINING%","X-B":""}`, "!", `{"retry-after":"1"}`, `{"x-a":"1","X-A":"2"}`, `{"a b":"1"}`, `{"x":"\n"}`),
		"grpc_status", w.oneOf(`"unavailable"`, `8`, "!", `"ok"`, `0`, `17`, `"8"`))
}

func (w writer) manage() string {
	return w.object(2, "path", w.oneOf(`"/.sluice/"`, "!", `"/"`, `"x/"`, `"/a?b/"`, `"/a"`),
		"token_sha256", w.oneOf(`"`+strings.Repeat("0aF9", 16)+`"`, "!", `"abc"`, `""`), "port", w.oneOf(`1`, `65535`, "!", `0`, `65536`))
}

func (w writer) policy() string {
	i := 0
	return w.object(2, "version", w.oneOf("1", "1.0", "!", "2", `"1"`),
		"rules", w.list(0, 3, func() string { i++; return w.rule(i - 1) }), "manage", w.manage(),
		"exempt", w.list(0, 2, func() string { return w.match(1) }),
		"domain", w.oneOf(`"shop"`, `"é"`, "!", `""`, `"\u0001"`), "headers", w.oneOf(`"ietf"`, `"none"`, "!", `"draft"`),
		"quota", w.object(0, "cluster", w.oneOf(`"q"`, "!", `""`, `7`), "timeout", w.oneOf(`"1ms"`, `"2.5s"`, "!", `"0"`, `"11s"`, `100`)))
}

// asYAML writes JSON as the YAML that a person might.
func asYAML(t *testing.T, text string) []byte {
	t.Helper()
	var n yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(text), &n))
	var plain func(n *yaml.Node)
	plain = func(n *yaml.Node) {
		n.Style = 0
		for _, c := range n.Content {
			plain(c)
		}
	}
	plain(&n)
	out, err := yaml.Marshal(&n)
	require.NoError(t, err)
	return out
}

// What a person may write, in YAML or JSON, and what the filter takes is the
// same: the judgement, and the policy that comes of it.
func TestFilterTakesWhatValidateTakes(t *testing.T) {
	wasm := buildtest.Wasm(t)
	h, err := sim.New(context.Background(), sim.Options{Wasm: wasm, CacheDir: buildtest.CacheDir(), PluginName: "sluice"})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	w := writer{rand.New(rand.NewPCG(5, 6))}
	taken, refused := 0, 0
	for i := range 3000 {
		text := w.policy()
		p, n, _, err := policyfile.Read("p.json", []byte(text))
		q, m, _, err2 := policyfile.Read("p.yaml", asYAML(t, text))
		require.Equal(t, err == nil, err2 == nil, "%s\n%v\n%v", text, err, err2)
		require.Equal(t, p, q, text)
		if err == nil {
			require.Equal(t, policy.AppendJSON(nil, n), policy.AppendJSON(nil, m), text)
			tree, err := policy.ParseJSON(policy.PushedJSON(n))
			require.NoError(t, err, text)
			again, problems := policy.ReadPushed(tree)
			require.Empty(t, problems, text)
			require.Equal(t, p, again, text)
			taken++
		} else {
			refused++
		}
		if i%20 == 0 { // a machine of its own for each makes this slow
			require.Equal(t, err == nil, h.Configure([]byte(text)) == nil, "%s\n%v", text, err)
		}
	}
	t.Log(taken, "policies taken,", refused, "refused")
	require.Greater(t, taken, 700)
	require.Greater(t, refused, 700)
}
