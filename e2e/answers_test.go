package e2e

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const failedLogins = `
version: 1
` + managed + `rules:
  - {name: failed-logins, match: {paths: [/login]}, limits: [5/366d], settle: {when: {status: [401, 403]}}}
  - {name: some-fail, match: {paths: [/some]}, limits: [5/366d], settle: {when: {status: [401, 403]}}}
`

// TestFailedLogins: exactly those that fail count in the end, and never more than the limit
// run or have failed. Whom only others in flight deny may try again after 1 s.
func TestFailedLogins(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d driver) {
		log, upstream := filepath.Join(t.TempDir(), "access"), startAnswering(t)
		upstream.took = 40 * time.Millisecond
		p := d.start(t, proxyOptions{policy: failedLogins, upstream: upstream.URL, edit: func(b []byte) []byte {
			return logged(b, log, "%RESPONSE_CODE% %FILTER_STATE(wasm.sluice.verdict:PLAIN)%")
		}})
		held := p.succeedAtOnce(t, 40)
		require.Positive(t, held)
		require.Zero(t, used(t, p, "failed-logins"))
		if d.envoy != "" {
			eventually(t, 20*time.Second, "the access log", func() bool {
				return strings.Count(read(t, log), "429 failed-logins=denied:held\n") == held
			})
		}
		requireOver := func(path, rule string) {
			require.EqualValues(t, 5, used(t, p, rule))
			require.Equal(t, 20, count(p.load(4).send(t, 20, func(int) request { return request{path, "x-do", "200"} }), denied))
			require.Equal(t, 5, upstream.failed)
			require.LessOrEqual(t, upstream.most, 5)
		}
		upstream.forget(t)
		statuses := p.load(100).send(t, 100, func(int) request { return request{"/login", "x-do", "401"} })
		require.Equal(t, []int{5, 95}, []int{count(statuses, 401), count(statuses, denied)})
		require.Equal(t, 5, upstream.reached)
		requireOver("/login", "failed-logins")

		upstream.forget(t)
		for round := 0; upstream.failed < 5; round++ {
			require.Less(t, round, 50)
			p.load(12).send(t, 24, func(i int) request { return request{"/some", "x-do", []string{"200", "401", "401"}[i%3]} })
		}
		requireOver("/some", "some-fail")
	})
}

// logged has an Envoy write a line of that format about each request.
func logged(bootstrap []byte, path, format string) []byte {
	const prefix = "          stat_prefix: ingress\n"
	return replacing(prefix, prefix+
		"          access_log: [{name: file, typed_config: {\n"+
		"            '@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog,\n"+
		"            path: "+path+
		`, log_format: {text_format_source: {inline_string: "`+format+`\n"}}}}]`+"\n")(bootstrap)
}

// succeedAtOnce sends logins that all succeed, and returns how many were told to try again.
func (p *proxy) succeedAtOnce(t *testing.T, n int) (held int) {
	told := make([]string, n)
	atOnce(n, func(i int) {
		if res, _, err := p.try("/login", "x-do", "200"); err != nil {
			told[i] = err.Error()
		} else if res.StatusCode == denied {
			told[i] = res.Header.Get("retry-after")
		}
	})
	for _, after := range told {
		if after != "" {
			require.Equal(t, "1", after)
			held++
		}
	}
	return held
}

const (
	// withoutBodies waits for answers and reads none.
	withoutBodies = `
version: 1
` + managed + `rules:
  - {name: counted, match: {paths: [/edges]}, key: [{header: x-user-id}], limits: [100/` + far + `], settle: {}}
  - {name: in-flight, match: {paths: [/flight, /flight/*]}, algorithm: concurrency, limits: [10], hold: 10s}
`
	withBodies = withoutBodies + `  - {name: tokens, match: {paths: [/edges]}, key: [{header: x-user-id}],
    limits: [1000/` + far + `], cost: 10, settle: {to: tokens}}
`
	usageOf34 = `200 {"usage":{"prompt_tokens":30,"completion_tokens":4}}`
)

// TestPushedBodies: answers are read from the push on of a policy that needs them, and until
// one that does not; counters stay, and what a policy held is charged as it says.
func TestPushedBodies(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		control := startControlPlane(t)
		r := newAnswerRig(t, d, proxyOptions{node: "edge", xds: control.xds})
		control.awaitConnected(t, "edge")
		r.pushes(t, control)
		r.pushesUnderLoad(t, control)
		r.noTraps(t)
	})
}

// answer asks for 34 tokens, and returns the encodings that the upstream was told of.
func (r *answerRig) answer(t *testing.T, id string) (accepted string) {
	res, body := r.get(t, "/edges", "x-do", usageOf34, "x-id", id, "x-send", "content-type: application/json",
		"accept-encoding", "gzip", "x-user-id", "u")
	require.Equal(t, usageOf34[len("200 "):], body)
	return res.Header.Get("x-accepted")
}

var lacksBodies = regexp.MustCompile(`"without [^"]*proxy_on_response_body`)

func (r *answerRig) pushes(t *testing.T, control *controlPlane) {
	begin := func() (end func()) { // a request that is at the upstream until then
		arrived := make(chan struct{})
		over := make(chan struct{})
		done := make(chan struct{})
		undo := r.upstream.onArrival("held", func() {
			close(arrived)
			<-over
		})
		go func() {
			defer close(done)
			r.answer(t, "held") //nolint:testifylint // a failure ends this goroutine, and the test sees it
		}()
		<-arrived
		undo()
		return func() { close(over); <-done }
	}
	requireCharged := func(rule string, n int64) { require.Equal(t, n, used(t, r.proxy, rule+"&key=u"), rule) }
	counted, tokens := int64(0), int64(0)
	during := func() {} // ends what the policy before has begun
	for _, step := range []struct {
		policy   string
		reads    bool
		accepted string
	}{{withoutBodies, false, "gzip"}, {withBodies, true, ""}, {withoutBodies, false, "gzip"}, {withBodies, true, ""}} {
		control.apply(t, step.policy)
		dump, err := r.envoy.Get(t.Context(), "/config_dump?resource=ecds_filters")
		require.NoError(t, err)
		require.Equal(t, step.reads, !lacksBodies.Match(dump), "%s", dump)
		require.Equal(t, step.accepted, r.answer(t, ""))
		during()
		if counted++; step.reads {
			tokens += 34
		}
		requireCharged("counted", counted)
		if step.reads {
			requireCharged("tokens", tokens)
			tokens += 34 // of what is begun now
		}
		counted++
		during = begin()
	}
	during()
	requireCharged("counted", counted)
	requireCharged("tokens", tokens)
}

func (r *answerRig) pushesUnderLoad(t *testing.T, control *controlPlane) {
	const lasts = 8 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			control.apply(t, []string{withoutBodies, withBodies}[i%2]) //nolint:testifylint // the same
			time.Sleep(2 * time.Second)
		}
	}()
	// A push frees slots that linger, so here nobody ends a request on which the upstream works on.
	waited := slices.DeleteFunc(slices.Clone(visits), func(v visit) bool { return v.lingers() })
	f := r.fly(ctx, t, 200, waited)
	<-done
	t.Logf("%s: %d requests reached the upstream, at most %d at once, %.1f %% of the slots used", t.Name(),
		r.upstream.reached, r.upstream.most,
		100*f.share(t, f.begin.Add(time.Second), f.begin.Add(lasts)))
	require.LessOrEqual(t, r.upstream.most, slots)
	r.requireAllFree(t)
}

func TestWithheldBodies(t *testing.T) { eachEnvoy(t, rows("withheld")) }

type modelAnswer buildtest.ModelAnswer

const (
	modelHeld    = 10  // by each request
	questionSize = 400 // bytes
)

// charge is what the answer costs: what it says, else the estimate.
func (a *modelAnswer) charge() (input, output int64, known bool) {
	if a.Total > 0 {
		return 0, a.Total, true // however that divides
	}
	input, output = a.Input, a.Output
	if !a.InputKnown {
		input = max(input, questionSize/4)
	}
	if !a.OutputKnown {
		output = max(output, a.TextEvents, a.TextBytes/4)
	}
	return input, output, a.InputKnown && a.OutputKnown
}

// models is an upstream that speaks the APIs of models. A request's headers say which answer
// it gets, after how many empty lines and in chunks of how many bytes.
type models map[string]*modelAnswer

func (m models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a := m[r.Header.Get("x-answer")]
	if a == nil {
		return
	}
	number := func(name string) (n int) {
		n, _ = strconv.Atoi(r.Header.Get(name))
		return n
	}
	body := append(bytes.Repeat([]byte{'\n'}, number("x-pad")), a.Body...)
	w.Header().Set("content-type", a.ContentType)
	size := number("x-chunk")
	if size == 0 {
		w.Header().Set("content-length", strconv.Itoa(len(body)))
	}
	size = cmp.Or(size, len(body))
	w.(http.Flusher).Flush()
	for from := 0; from < len(body); from += size {
		_, _ = w.Write(body[from:min(from+size, len(body))])
		w.(http.Flusher).Flush()
	}
}

// used waits until nothing is held of a counter, and returns what is used.
func used(t *testing.T, p *proxy, counter string) (units int64) {
	eventually(t, 5*time.Second, "the holds of "+counter+" to end", func() bool {
		got := p.operate(t, "get", "rule="+counter)
		require.NotNil(t, got.Held)
		units = got.Value
		return *got.Held == 0
	})
	return units
}

const modelPolicy = `
version: 1
` + managed + `rules:
  - {name: tokens, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far +
	`], cost: 10, settle: {to: tokens, when: {status: ["2xx"]}}}
  - {name: input, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far +
	`], cost: 10, settle: {to: input_tokens}}
  - {name: output, match: {paths: [/v1]}, key: [{header: x-user-id}], limits: [10000000/` + far +
	`], cost: 10, settle: {to: output_tokens}}
`

// modelChunks are the sizes of an answer's chunks, and how many empty lines come before it.
var modelChunks = []struct {
	name, size, pad string
}{{"whole", "", ""}, {"of 1 byte", "1", ""}, {"of 700 bytes", "700", "100000"}, {"of 64 KiB", "65536", "200000"}}

// TestModels: answers of each API are charged what they say, whole and in chunks of any size,
// and those that say nothing what is estimated.
func TestModels(t *testing.T) {
	t.Parallel()
	m := models{}
	for _, a := range buildtest.ModelAnswers(t) {
		m[a.Name] = (*modelAnswer)(&a)
	}
	everyEnvoy(t, func(t *testing.T, d driver) {
		upstream := httptest.NewServer(m)
		defer upstream.Close()
		p := d.start(t, proxyOptions{policy: modelPolicy, upstream: upstream.URL})
		for name, a := range m {
			for _, c := range modelChunks {
				if strings.Contains(a.ContentType, "amazon") {
					c.pad = "" // frames have no empty ones
				}
				m.charged(t, p, name, c.name, "x-chunk", c.size, "x-pad", c.pad)
			}
		}
	})
}

func (m models) charged(t *testing.T, p *proxy, name, chunks string, headers ...string) {
	a, user := m[name], strings.ReplaceAll(name+"-"+chunks, " ", "_")
	res, body := p.get(t, "/v1", append(headers, ":method", http.MethodPost, ":body", strconv.Itoa(questionSize),
		"x-answer", name, "x-user-id", user, "connection", "close")...)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, a.Body, strings.TrimLeft(body, "\n"), "it is not changed")
	input, output, known := a.charge()
	total := input + output
	if !known {
		total = max(total, modelHeld)
	}
	require.Equal(t, total, used(t, p, "tokens&key="+user), user)
	if a.InputKnown {
		require.Equal(t, input, used(t, p, "input&key="+user), user)
	}
	if a.OutputKnown {
		require.Equal(t, output, used(t, p, "output&key="+user), user)
	}
}
