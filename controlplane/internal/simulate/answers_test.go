package simulate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

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
`+c.line+"\n"+`{"at_ms":9}`+"\n", simulate.Options{})
		require.ErrorContains(t, err, "line 6: "+c.want, c.line)
		require.Empty(t, out, c.line)
	}
}
