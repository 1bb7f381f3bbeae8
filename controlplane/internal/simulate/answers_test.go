package simulate_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// settler is the filter that says what it has seen of an answer.
func settler(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settler.wasm")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", file, "./testdata/settler")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	wasm, err := os.ReadFile(file)
	require.NoError(t, err)
	return wasm
}

func settle(t *testing.T, wasm []byte, requests string) string {
	t.Helper()
	const policy = "version: 1\nrules: [{name: r, limits: [9/1s], settle: {}, hold: 10s}, {name: plain, limits: [9/1s]}]\n"
	var out bytes.Buffer
	require.NoError(t, simulate.Run(t.Context(), simulate.Options{
		Wasm: wasm, Policy: "p", Text: []byte(policy), Requests: strings.NewReader(requests), Dir: t.TempDir(),
		Workers: 1, Seed: 1, CacheDir: buildtest.CacheDir(), Log: func(message string) { t.Log(message) },
	}, &out))
	return out.String()
}

// TestAnswers: the filter sees each part of an answer at its time, and the line that settles
// prints what it says.
func TestAnswers(t *testing.T) {
	wasm := settler(t)
	out := settle(t, wasm, `{"at_ms":0,"id":"a"}
{"at_ms":0,"id":"b"}
{"at_ms":0,"id":"never answered"}
{"at_ms":0}
{"at_ms":500,"answer":"a","status":200,"headers":{"x":"y"}}

{"at_ms":1500,"answer":"a","chunk":"hello"}
{"at_ms":1500,"id":"c"}
{"at_ms":2500,"answer":"a","chunk":"world!","end":true}
{"at_ms":2500,"answer":"c","reset":"client"}
{"at_ms":7500,"answer":"b","status":503,"chunk":"no","trailers":{"X-Cost":"7"},"end":true}
{"at_ms":7500,"id":"d"}
{"at_ms":7500,"answer":"d","reset":"upstream"}
{"at_ms":7500,"id":"e"}
{"at_ms":7500,"answer":"e","status":204,"end":true}
`)
	const passed = `"allowed":true,"status":200,"rules":[],"headers":{}}`
	require.Equal(t, []string{
		`{"at_ms":0,` + passed,
		`{"at_ms":0,` + passed,
		`{"at_ms":0,` + passed,
		`{"at_ms":0,` + passed,
		`{"at_ms":500,"answer":"a","headers":{}}`,
		`{"at_ms":1500,"answer":"a"}`,
		`{"at_ms":1500,` + passed,
		`{"at_ms":2500,"answer":"a","settled":[{"rule":"r","held":1,"cost":11,"by":"200,,2,3"}]}`,
		`{"at_ms":2500,"answer":"c","settled":[{"rule":"r","held":1,"cost":0,"by":",,1,2"}]}`,
		`{"at_ms":7500,"answer":"b","headers":{},"settled":[{"rule":"r","held":1,"cost":2,"by":"503,7,7,1"}]}`,
		`{"at_ms":7500,` + passed,
		`{"at_ms":7500,"answer":"d","settled":[{"rule":"r","held":1,"cost":85,"by":"503,,0,1"}]}`,
		`{"at_ms":7500,` + passed,
		`{"at_ms":7500,"answer":"e","headers":{},"settled":[{"rule":"r","held":1,"cost":0,"by":"204,,0,1"}]}`,
		``,
	}, strings.Split(out, "\n"))
}

// TestAnswerOfHours: the filter ticks each second while a request is open, and nothing takes
// long while none is.
func TestAnswerOfHours(t *testing.T) {
	out := settle(t, settler(t), `{"at":"2026-01-01T00:00:00Z","id":"a"}
{"at":"2026-01-01T06:00:00Z","answer":"a","status":101,"end":true}
{"at":"2126-01-01T00:00:00Z","id":"b"}
{"at":"2126-01-01T00:00:00Z","answer":"b","status":200,"end":true}
`)
	require.Contains(t, out, `"by":"101,,21600,1"`)
	require.Contains(t, out, `"by":"200,,1,1"`, "the one that is due")
}

// TestUnansweredRequestHolds: for as long as a rule holds units without a sign of life.
func TestUnansweredRequestHolds(t *testing.T) {
	out := settle(t, settler(t), `{"at_ms":0,"headers":{"x-rule":"r"}}
{"at_ms":0,"id":"never answered","headers":{"x-rule":"r"}}
{"at_ms":0,"headers":{"x-rule":"plain"}}
{"at_ms":9999,"id":"a"}
{"at_ms":9999,"answer":"a","reset":"client"}
{"at_ms":10001,"id":"b"}
{"at_ms":10001,"answer":"b","reset":"client"}
`)
	require.Contains(t, out, `{"at_ms":9999,"answer":"a","settled":[{"rule":"r","held":1,"cost":0,"by":",,0,3"}]}`)
	require.Contains(t, out, `{"at_ms":10001,"answer":"b","settled":[{"rule":"r","held":1,"cost":0,"by":",,0,1"}]}`)
}

// TestHeadersOfAnAnswer: what the filter adds to a response, the line with the status has; a
// denial has it at once, and its answer nothing.
func TestHeadersOfAnAnswer(t *testing.T) {
	out, err := run(t, "version: 1\nheaders: x-ratelimit\nrules: [{name: r, limits: [1/1s]}]\n", `{"at_ms":0,"id":"a"}
{"at_ms":0,"id":"b"}
{"at_ms":1,"answer":"a","status":200}
{"at_ms":1,"answer":"a","end":true}
{"at_ms":1,"answer":"b","status":200,"end":true}
`, 1)
	require.NoError(t, err)
	lines := strings.Split(out, "\n")
	require.Contains(t, lines[0], `"allowed":true,"status":200,`)
	require.Contains(t, lines[0], `"headers":{}}`)
	require.Contains(t, lines[1], `"headers":{"retry-after":"1","x-ratelimit-limit":"1`)
	require.Contains(t, lines[2], `{"at_ms":1,"answer":"a","headers":{"x-ratelimit-limit":"1`)
	require.Equal(t, []string{`{"at_ms":1,"answer":"a"}`, `{"at_ms":1,"answer":"b","headers":{}}`, ``}, lines[3:])
}

func TestBadAnswersWriteNothing(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{`{"at_ms":5,"answer":"x","status":200}`, `answer: no request before has the id "x"`},
		{`{"at_ms":5,"id":"a"}`, `id: "a" is that of line 1`},
		{`{"at_ms":5,"id":""}`, `id: it has 0 bytes, and must have from 1 to 256`},
		{`{"at_ms":5,"answer":"done","chunk":"x"}`, `answer: the answer to "done" has ended on line 3`},
		{`{"at_ms":5,"answer":"a","chunk":"x"}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"a","chunk":"x","reset":"client"}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"a","end":true}`, `status: the answer to "a" has none yet`},
		{`{"at_ms":5,"answer":"begun","status":200}`, `status: the answer to "begun" has one already`},
		{`{"at_ms":3,"answer":"begun","end":true}`, `at_ms: it is before that of the last line with "begun"`},
		{`{"at":"2000-01-01T00:00:00Z","answer":"begun","end":true}`, `at: an answer takes 7 days at most from its request`},
		{`{"at_ms":5,"answer":"a"}`, `answer: the line says nothing of it`},
		{`{"at_ms":5,"answer":"a","status":100}`, `status: 100 is no status of an answer`},
		{`{"at_ms":5,"answer":"a","status":"200"}`, `status: must be a whole number`},
		{`{"at_ms":5,"answer":"begun","headers":{"a":"b"},"end":true}`, `headers: they come with the answer's status`},
		{`{"at_ms":5,"answer":"a","status":200,"headers":{"a b":"c"}}`, `headers: "a b" is no header name`},
		{`{"at_ms":5,"answer":"begun","trailers":{"":"c"}}`, `trailers: "" is no header name`},
		{`{"at_ms":5,"answer":"begun","end":false}`, `end: must be true`},
		{`{"at_ms":5,"answer":"begun","end":1}`, `end: must be true, not number`},
		{`{"at_ms":5,"answer":"begun","reset":"server"}`, `reset: "server" must be client or upstream`},
		{`{"at_ms":5,"answer":"begun","end":true,"reset":"client"}`, `reset: the answer has ended on the same line`},
		{`{"at_ms":5,"answer":"begun","op":"get"}`, `op: an answer has none`},
		{`{"at_ms":5,"answer":"begun","end":true,"path":"/"}`, `path: an answer has none, but answer, status,`},
		{`{"at_ms":5,"status":200}`, `status: a request has none`},
		{`{"at_ms":5,"op":"stats","id":"z"}`, `id: op stats has none`},
	} {
		out, err := run(t, "version: 1\nrules: []\n", `{"at_ms":0,"id":"a"}
{"at_ms":0,"id":"done"}
{"at_ms":0,"answer":"done","reset":"client"}
{"at_ms":0,"id":"begun"}
{"at_ms":4,"answer":"begun","status":200}
`+c.line+"\n"+`{"at_ms":9}`+"\n", 1)
		require.ErrorContains(t, err, "line 6: "+c.want, c.line)
		require.Empty(t, out, c.line)
	}
}
