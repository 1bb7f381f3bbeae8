package simulate_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// run simulates lines by a policy, with a worker and a proxy if the options say nothing else.
func run(t *testing.T, policy, requests string, o simulate.Options) (string, error) {
	t.Helper()
	o.Wasm = buildtest.Wasm(t)
	o.Seed = 1
	o.CacheDir = buildtest.CacheDir()
	o.Log = func(message string) { t.Log(message) }
	o.Policy, o.Text = "policy.yaml", []byte(policy)
	o.Requests = strings.NewReader(requests)
	o.Workers = max(o.Workers, 1)
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

// refusal is a line that is rejected, and why.
type refusal struct{ line, want string }

// refuses puts each line behind others, and requires that nothing is written but why it is rejected.
func refuses(t *testing.T, policy, before string, refusals []refusal) {
	t.Helper()
	for _, r := range refusals {
		out, err := run(t, policy, before+r.line+"\n"+`{"at_ms":9}`+"\n", simulate.Options{Workers: 2})
		require.ErrorContains(t, err, fmt.Sprintf("line %d: %s", 1+strings.Count(before, "\n"), r.want), r.line)
		require.Empty(t, out, r.line)
	}
}

func TestBadInputWritesNothing(t *testing.T) {
	const policy = `{version: 1, rules: [
		{name: r, key: [method], limits: [1/1s]}, {name: c, scope: cluster, key: [method], limits: [1/1s]}]}`
	refuses(t, policy, `{"at_ms":0}`+"\n", []refusal{
		{`{"at_ms":1,"color":"red"}`, `unknown field "color"`},
		{`{"at_ms":1`, "the JSON object has no end"},
		{`{"at_ms":1}{"at_ms":2}`, "there is more than one JSON object"},
		{`{"method":"GET"}`, "a line needs one time: at_ms, at_ns or at"},
		{`{"at_ms":1,"at_ns":1}`, "a line needs one time: at_ms, at_ns or at"},
		{`{"at_ms":-1}`, "at_ms: -1 is not a whole number from 0 to "},
		{`{"at_ms":1.5}`, "at_ms: 1.5 is not a whole number"},
		{`{"at":"yesterday"}`, `at: "yesterday" is not a time like`},
		{`{"at_ms":1,"worker":2}`, "worker: there is no worker 2: the 2 workers count from 0"},
		{`{"at_ms":1,"fail":"sometimes"}`, `fail: "sometimes" must be get, set, quota or cas:N`},
		{`{"at_ms":1,"rule":"r"}`, "rule: a request has none"},
		{`{"at_ms":1,"op":"steal"}`, `op: unknown operation "steal": it must be clean, expires_at, get, hit,`},
		{`{"at_ms":1,"op":"get","rule":"r","key":["GET"],"n":1}`, `n: op get has none`},
		{`{"at_ms":1,"op":"set","rule":"r","key":["GET"]}`, `n: op set needs the units to set`},
		{
			`{"at_ms":1,"op":"inc","rule":"r","key":["GET"],"n":4294967296}`,
			`n: must be a whole number from 0 to 4294967295, not`,
		},
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
	})
}

func TestBadAnswersWriteNothing(t *testing.T) {
	refuses(t, "version: 1\nrules: []\n", `{"at_ms":0,"id":"a"}
{"at_ms":0,"id":"done"}
{"at_ms":0,"answer":"done","reset":"client"}
{"at_ms":0,"id":"begun"}
{"at_ms":4,"answer":"begun","status":200}
`, []refusal{
		{`{"at_ms":5,"answer":"x","status":200}`, `answer: no request before has the id "x"`},
		{`{"at_ms":5,"id":"a"}`, `id: line 1 has "a", too`},
		{`{"at_ms":5,"id":""}`, `id: it has 0 bytes, and must have from 1 to 256`},
		{`{"at_ms":5,"answer":"done","chunk":"x"}`, `answer: the answer to "done" has ended on line 3`},
		{`{"at_ms":5,"answer":"a","chunk":"x"}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"a","chunk":"x","reset":"client"}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"a","end":true}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"begun","status":200}`, `status: the answer to "begun" has one already`},
		{`{"at_ms":3,"answer":"begun","end":true}`, `at_ms: it is before that of the last line with "begun"`},
		{`{"at":"2000-01-01T00:00:00Z","answer":"begun","end":true}`, `at: an answer takes 7 days at most from its request`},
		{`{"at_ms":5,"answer":"a"}`, `answer: the line says nothing of it`},
		{`{"at_ms":5,"answer":"a","status":100}`, `status: 100 is not a status of an answer`},
		{`{"at_ms":5,"answer":"a","status":"200"}`, `status: must be a whole number`},
		{`{"at_ms":5,"answer":"begun","headers":{"a":"b"},"end":true}`, `headers: they come with the answer's status`},
		{`{"at_ms":5,"answer":"a","status":200,"headers":{"a b":"c"}}`, `headers: "a b" is not a header name`},
		{`{"at_ms":5,"answer":"begun","trailers":{"":"c"}}`, `trailers: "" is not a header name`},
		{`{"at_ms":5,"answer":"begun","end":false}`, `end: must be true`},
		{`{"at_ms":5,"answer":"begun","end":1}`, `end: must be true, not number`},
		{`{"at_ms":5,"answer":"begun","reset":"server"}`, `reset: "server" must be client or upstream`},
		{`{"at_ms":5,"answer":"begun","end":true,"reset":"client"}`, `reset: the answer has ended on the same line`},
		{`{"at_ms":5,"answer":"begun","op":"get"}`, `op: an answer has none`},
		{`{"at_ms":5,"answer":"begun","end":true,"path":"/"}`, `path: an answer has none, but answer, status,`},
		{`{"at_ms":5,"status":200}`, `status: a request has none`},
		{`{"at_ms":5,"op":"stats","id":"z"}`, `id: op stats has none`},
	})
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

var update = flag.Bool("update", false, "write what comes of the scenarios into their files")

// Each scenario says what comes of lines, to the byte, and of cluster.yaml the same.
func TestScenarios(t *testing.T) {
	buildtest.Archives(t, "testdata/scenario/*.txtar", *update, func(files []txtar.File) {
		dir, texts := t.TempDir(), map[string]string{}
		for _, f := range files {
			texts[f.Name] = string(f.Data)
			require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
		}
		output := &files[len(files)-1]
		require.Equal(t, "output.jsonl", output.Name)
		require.NotEmpty(t, texts["requests.jsonl"])
		o := simulate.Options{Workers: 2, Dir: dir}
		require.NoError(t, json.Unmarshal([]byte(cmp.Or(texts["options.json"], "{}")), &o))
		out, err := run(t, texts["policy.yaml"], texts["requests.jsonl"], o)
		require.NoError(t, err)
		output.Data = []byte(out)
		if texts["cluster.yaml"] != "" {
			same, err := run(t, texts["cluster.yaml"], texts["requests.jsonl"], o)
			require.NoError(t, err)
			require.Equal(t, out, same)
		}
	})
}

// Cases from the tests of other rate limiters, each with its source: lines on one rule, and what
// must be said of them. A leaky meter, or GCRA, is a token bucket; nanoseconds are taken for
// milliseconds, as a bucket does not change when all its times are a million times as long. Left
// out is what follows other rules than ours: a denied hit that takes what is left, as
// gubernator's, an interval whose end counts, as limits', a sliding count with fractions.
func TestVectorsOfOtherRateLimiters(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var vectors []struct {
		ID, Src, Rule string
		Denied        *int // of all lines
		Lines         []struct {
			In   json.RawMessage
			Want map[string]any
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&vectors))
	for i, v := range vectors {
		if i > 0 && proctest.Race {
			break // one goroutine runs a case
		}
		t.Run(v.ID, func(t *testing.T) {
			var in strings.Builder
			for _, l := range v.Lines {
				in.Write(append(l.In, '\n'))
			}
			policy := "version: 1\nrules: [{name: r, cost: {header: x-cost, min: 0, max: 4294967295}, " + v.Rule + "}]\n"
			out, err := run(t, policy, in.String(), simulate.Options{})
			require.NoError(t, err)
			if v.Denied != nil {
				require.Equal(t, *v.Denied, strings.Count(out, `"allowed":false,"status"`))
			}
			for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
				got := said(t, line)
				for field, want := range v.Lines[i].Want {
					require.Equal(t, want, got[field], "%s of line %d: %s", field, i, line)
				}
			}
		})
	}
}

// said is what a line says, also of the rule and of its windows.
func said(t *testing.T, text string) map[string]any {
	t.Helper()
	var line struct {
		Allowed any
		Retry   any `json:"retry_after_ms"`
		Rules   []struct {
			Remaining any
			Windows   []struct {
				Used  any
				Reset any `json:"reset_ms"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &line))
	said := map[string]any{"allowed": line.Allowed, "retry_after_ms": line.Retry}
	for _, r := range line.Rules { // one, of requests
		var used, reset []any
		for _, w := range r.Windows {
			used, reset = append(used, w.Used), append(reset, w.Reset)
		}
		said["remaining"] = r.Remaining
		said["used"] = used
		said["reset_ms"] = reset
	}
	return said
}
