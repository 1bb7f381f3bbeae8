package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// scripted are rules of a path each, and what their upstream answers.
var scripted = []struct {
	rules   []string
	answers []scriptedAnswer
}{
	{[]string{"key: [{header: u}], algorithm: concurrency, limits: [3], linger: 0s"}, plainAnswers},
	{[]string{"key: [{header: u}], algorithm: concurrency, limits: [12], linger: 1m"}, plainAnswers},
	{[]string{
		"key: [{header: u}], algorithm: concurrency, limits: [3], linger: 0s",
		`key: [{header: u}], limits: [600/366d], cost: 10, settle: {to: tokens, when: {status: ["2xx"]}}`,
	}, tokenAnswers},
	{[]string{
		"algorithm: token_bucket, limits: [{requests: 400, per: 366d, burst: 900}], cost: {request_bytes: {per_unit: 2, min: 3, max: 90}}, settle: {to: output_tokens, unknown: cost}",
	}, tokenAnswers},
	{[]string{"key: [{header: u}], algorithm: sliding_window_log, limits: [9/366d], settle: {when: {status: [401, 403]}}"}, plainAnswers},
	{[]string{
		"key: [{header: u}], algorithm: sliding_window_counter, limits: [300/366d], cost: {header: x-reserve, max: 20}, settle: {to: {header: x-cost}, unknown: 0, max: 25}",
	}, plainAnswers},
	{[]string{
		"key: [{header: u}], algorithm: fixed_window_per_key, limits: [200/366d], cost: 5, settle: {to: {trailer: x-cost}, when: {headers: {content-type: text/plain}}}",
	}, plainAnswers},
	{[]string{
		"limits: [3000/366d], cost: 50, settle: {to: response_bytes, when: {no_answer: false}}",
		"limits: [2000/366d], settle: {to: request_bytes}, mode: shadow",
	}, tokenAnswers},
}

// scriptedAnswer has all its parts if its upstream and client stay.
type scriptedAnswer struct {
	Status   int               `json:"status"`
	Headers  map[string]string `json:"headers"`
	chunks   []string
	trailers map[string]string
}

var (
	plainAnswers = []scriptedAnswer{
		{200, map[string]string{"x-cost": "3", "content-type": "text/plain"}, []string{"hello", "world"}, map[string]string{"x-cost": "17"}},
		{200, map[string]string{"content-type": "text/plain"}, []string{"hello"}, nil},
		{401, map[string]string{"x-cost": "70"}, []string{"who are you?"}, nil},
		{403, map[string]string{"x-cost": "no number"}, nil, nil},
		{503, map[string]string{"x-cost": "9", "content-type": "text/html"}, []string{"<p>", "</p>"}, map[string]string{"x-cost": "-1"}},
		{204, nil, nil, nil},
	}
	tokenAnswers = []scriptedAnswer{
		{200, map[string]string{"content-type": "application/json"}, []string{`{"usage":{"prompt_tok`, `ens":3,"completion_tokens":14}}`}, nil},
		{200, map[string]string{"content-type": "text/event-stream"}, []string{
			"data: {\"choices\":[{\"delta\":{\"content\":\"a word\"}}]}\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"compl",
			"etion_tokens\":21}}\n\ndata: [DONE]\n\n",
		}, nil},
		{200, map[string]string{"content-type": "text/event-stream"}, []string{"data: {\"choices\":[{\"delta\":{\"content\":\"a word, and some more of them\"}}]}\n\n", "data: [DONE]\n\n"}, nil},
		{200, map[string]string{"content-type": "application/json"}, []string{`{"no": "usage", "but": `, `"so many bytes that they are some tokens"}`}, nil},
		{200, map[string]string{"content-type": "application/json", "content-encoding": "br"}, []string{strings.Repeat("x", 80)}, nil},
		{500, map[string]string{"content-type": "application/json"}, []string{`{"usage":{"prompt_tokens":30,"completion_tokens":14}}`}, nil},
		{204, nil, nil, nil},
	}
)

// scriptedRun is an Envoy of one worker and an upstream, which do one line of simulate's input
// after the other.
type scriptedRun struct {
	*answerRig
	t       *testing.T
	dice    *rand.Rand
	client  *http.Transport
	arrived chan *scriptedRequest
	open    []*scriptedRequest
	lines   []string // of simulate's input
}

// scriptedRequest is a request of it that is at the upstream.
type scriptedRequest struct {
	id     string
	answer *scriptedAnswer
	sent   int // parts of it
	leave  func()
	res    chan *http.Response // the client's, nil where it has none
	body   io.ReadCloser       // of that
	left   <-chan struct{}     // closed once the upstream has heard that the client has left
	do     chan func(w http.ResponseWriter) (over bool)
	did    chan struct{}
}

func (s *scriptedRun) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("x-id") == "" {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	q := &scriptedRequest{left: r.Context().Done(), do: make(chan func(http.ResponseWriter) bool), did: make(chan struct{})}
	s.arrived <- q
	for over := false; !over; {
		if over = (<-q.do)(w); !over {
			w.(http.Flusher).Flush()
			q.did <- struct{}{}
		}
	}
}

// line notes a line of simulate's input.
func (s *scriptedRun) line(fields map[string]any) {
	fields["at_ms"] = time.Now().UnixMilli()
	text, err := json.Marshal(fields)
	require.NoError(s.t, err)
	s.lines = append(s.lines, string(text))
}

// request sends a request, and waits until the upstream has it or it is denied.
func (s *scriptedRun) request() {
	n := s.dice.IntN(len(scripted))
	id, path, length := fmt.Sprint(len(s.lines)), fmt.Sprint("/", n), 10+s.dice.IntN(200)
	headers := map[string]string{"u": []string{"a", "b"}[s.dice.IntN(2)], "x-reserve": fmt.Sprint(1 + s.dice.IntN(30)), "x-id": id}
	ctx, leave := context.WithCancel(s.t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+path, strings.NewReader(strings.Repeat("x", length)))
	require.NoError(s.t, err)
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("x-route", "http2")
	headers["content-length"] = fmt.Sprint(length)
	s.line(map[string]any{"id": id, "method": "POST", "path": path, "headers": headers})
	got := make(chan *http.Response, 1)
	go func() {
		res, err := s.client.RoundTrip(r)
		if err != nil {
			res = nil
		}
		got <- res
	}()
	select {
	case q := <-s.arrived:
		q.id, q.leave, q.res = id, leave, got
		q.answer = &scripted[n].answers[s.dice.IntN(len(scripted[n].answers))]
		s.open = append(s.open, q)
	case res := <-got:
		require.NotNil(s.t, res)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		require.Equal(s.t, denied, res.StatusCode)
		leave()
	}
}

// goOn does the next part of an answer. Some clients leave before it, and some upstreams reset it.
func (s *scriptedRun) goOn(q *scriptedRequest) (over bool) {
	a, line := q.answer, map[string]any{"answer": q.id}
	defer func() { s.line(line) }()
	switch whim := s.dice.IntN(24); {
	case whim == 0:
		line["reset"] = "client"
		q.leave()
		<-q.left
		q.do <- func(http.ResponseWriter) bool { return true }
		return true
	case whim == 1:
		line["reset"] = "upstream"
		q.do <- func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) }
	case q.sent == 0:
		line["status"], line["headers"] = a.Status, a.Headers
		if over = len(a.chunks) == 0; over {
			line["end"] = true
		}
		q.do <- func(w http.ResponseWriter) bool {
			for name, value := range a.Headers {
				w.Header().Set(name, value)
			}
			w.WriteHeader(a.Status)
			return over
		}
	case q.sent <= len(a.chunks):
		chunk := a.chunks[q.sent-1]
		line["chunk"] = chunk
		q.do <- func(w http.ResponseWriter) bool {
			_, _ = io.WriteString(w, chunk)
			return false
		}
	case a.trailers != nil:
		line["trailers"] = a.trailers
		q.do <- func(w http.ResponseWriter) bool {
			for name, value := range a.trailers {
				w.Header().Set(http.TrailerPrefix+name, value)
			}
			return true
		}
	default:
		line["end"] = true
		q.do <- func(http.ResponseWriter) bool { return true }
	}
	return s.see(q, over || line["reset"] != nil || q.sent > len(a.chunks))
}

// see waits until the client has what the upstream has sent.
func (s *scriptedRun) see(q *scriptedRequest, over bool) bool {
	if !over {
		<-q.did
	}
	if q.body == nil {
		res := <-q.res
		require.NotNil(s.t, res)
		q.body = res.Body
	}
	if over {
		_, _ = io.Copy(io.Discard, q.body) // which a reset ends, too
		_ = q.body.Close()
		q.leave()
	} else if q.sent > 0 {
		_, err := io.ReadFull(q.body, make([]byte, len(q.answer.chunks[q.sent-1])))
		require.NoError(s.t, err)
	}
	q.sent++
	return over
}

// run has so many requests come and end.
func (s *scriptedRun) run(requests int) {
	for requests > 0 || len(s.open) > 0 {
		if requests > 0 && (len(s.open) == 0 || len(s.open) < 16 && s.dice.IntN(3) == 0) {
			requests--
			s.request()
			continue
		}
		if i := s.dice.IntN(len(s.open)); s.goOn(s.open[i]) {
			s.open = append(s.open[:i], s.open[i+1:]...)
		}
	}
}

// logOf returns what the filter has reported of each request, by its id: the verdict, and what
// was settled.
func (s *scriptedRun) logOf(n int) map[string][2]string {
	eventually(s.t, 10*time.Second, "the access log", func() bool {
		return strings.Count(read(s.t, s.accessLog), "\n") > n // and the probe
	})
	all := map[string][2]string{}
	for line := range strings.Lines(read(s.t, s.accessLog)) {
		parts := strings.Split(strings.TrimSpace(line), "\t")
		require.Len(s.t, parts, 3, line)
		all[parts[0]] = [2]string{parts[1], parts[2]}
	}
	return all
}

// timeless leaves out of a verdict times, which each of both has in another unit.
func timeless(t *testing.T, text string) map[string]any {
	v := decoded[map[string]any](t, text)
	verdict := map[string]any{"allowed": v["allowed"], "denied_by": v["denied_by"], "rules": v["rules"]}
	for _, r := range v["rules"].([]any) {
		for _, w := range r.(map[string]any)["windows"].([]any) {
			maps.DeleteFunc(w.(map[string]any), func(name string, _ any) bool {
				return strings.HasPrefix(name, "reset_") || strings.HasPrefix(name, "per_")
			})
		}
	}
	return verdict
}

// TestAnswersAsSimulated: requests and their answers, one after the other, are decided and
// settled by an Envoy as simulate says.
func TestAnswersAsSimulated(t *testing.T) {
	t.Parallel()
	const requests = 400
	var policy strings.Builder
	policy.WriteString("version: 1\nrules:\n")
	for i, c := range scripted {
		for j, rule := range c.rules {
			fmt.Fprintf(&policy, "  - {name: r%d-%d, match: {paths: [/%d]}, %s}\n", i, j, i, rule)
		}
	}
	eachEnvoy(t, func(t *testing.T, d driver) {
		s := &scriptedRun{t: t, dice: rand.New(rand.NewPCG(1, 2)), arrived: make(chan *scriptedRequest)}
		s.client = &http.Transport{Protocols: protocols(1), DisableCompression: true, MaxIdleConnsPerHost: 100}
		defer s.client.CloseIdleConnections()
		upstream := &answering{Server: httptest.NewUnstartedServer(s)}
		upstream.Config.Protocols = protocols(1, 2)
		upstream.Start()
		defer upstream.Close()
		s.answerRig = &answerRig{upstream: upstream, accessLog: filepath.Join(t.TempDir(), "access")}
		s.proxy = s.another(t, d, proxyOptions{policy: policy.String(), workers: 1, wasm: buildtest.Filter(t, "sluice_faults"), edit: reporting})
		s.run(requests)

		told := s.logOf(requests)
		lines := strings.Join(s.lines, "\n") + "\n"
		out := sluiceOK(t, "simulate", "--wasm", built.filter, "--workers", "1", "-f", file(t, "policy.yaml", policy.String()), "-r", file(t, "requests.jsonl", lines))
		var denied, settled int
		for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
			in := decoded[struct{ ID, Answer string }](t, s.lines[i])
			if in.ID != "" {
				require.Equal(t, timeless(t, line), timeless(t, told[in.ID][0]), "line %d: %s\n%s\n%s", i+1, s.lines[i], line, told[in.ID][0])
				if strings.Contains(line, `"allowed":false,"status"`) {
					denied++
				}
				continue
			}
			simulated := decoded[struct{ Settled json.RawMessage }](t, line)
			if simulated.Settled != nil {
				require.Equal(t, string(simulated.Settled), told[in.Answer][1], "line %d: %s", i+1, s.lines[i])
				settled++
			}
		}
		t.Logf("%d lines, %d denied, %d settled", len(s.lines), denied, settled)
		require.Positive(t, denied)
		require.Greater(t, settled, requests/2)
	})
}

// reporting has the filter report whole verdicts, and Envoy log them.
func reporting(bootstrap []byte) []byte {
	text := string(bootstrap)
	from := strings.Index(text, "inline_string: ")
	text = text[:from] + `inline_string: "%REQ(X-ID)%\t%FILTER_STATE(wasm.sluice.report:PLAIN)%\t%FILTER_STATE(wasm.sluice.settled:PLAIN)%\n"` +
		text[from+strings.Index(text[from:], `\n"`)+len(`\n"`):]
	return []byte(text + "\nnode: {id: edge, cluster: edge, metadata: {sluice: {report: whole}}}\n")
}
