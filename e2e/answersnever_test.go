package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ofNever = `match: {paths: [/never]}, key: [{header: x-user-id}], limits: [4000000000/` + far + `], cost: 10`

// neverPolicy has rules that are charged for answers which may never come, each of whose requests
// holds 10, and rules about logins that fail.
const neverPolicy = `
version: 1
` + managed + `rules:
  - {name: tokens, ` + ofNever + `, settle: {to: tokens, when: {status: [2xx]}}}
  - {name: uploads, ` + ofNever + `, settle: {to: request_bytes, when: {status: [2xx]}}}
  - {name: time, ` + ofNever + `, settle: {to: milliseconds}}
  - {name: sent, ` + ofNever + `, settle: {to: response_bytes}}
  - {name: answered, ` + ofNever + `, settle: {to: tokens, when: {no_answer: false}}}
  - {name: logins, match: {paths: [/login]}, limits: [5/` + far + `], settle: {when: {status: [401]}}}
  - name: cookies
    match: {paths: [/cookie]}
    limits: [5/` + far + `]
    settle: {when: {headers: {set-cookie: "failed=*"}}}
  - {name: beyond, match: {paths: [/beyond]}, limits: [1000/` + far + `], settle: {to: tokens}}
  - name: bodies
    match: {paths: [/body]}
    key: [{header: x-user-id}]
    limits: [100000/` + far + `]
    cost: {request_bytes: {per_unit: 2, min: 500, max: 8000}}
    settle: {}
`

// TestAnswersThatNeverCame: a client is charged what the proxy knows of its request, whoever has
// ended it before there was an answer, and an answer that came by what it says.
func TestAnswersThatNeverCame(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		r := newAnswerRig(t, d, proxyOptions{policy: neverPolicy})
		c := newClients(t, r.address, r.upstream)
		for _, version := range d.versions() {
			t.Run(version, func(t *testing.T) {
				r.unanswered(t, c, version)
				r.left(t, c, version)
				r.withoutBody(t, c, version)
			})
		}
		r.random(t, c, d.versions())
		r.deadlines(t, c)
		r.repeated(t)
		r.beyond(t)
		r.noTraps(t)
		r.slowToAsk(t, d)
		r.heldBack(t, d)
	})
}

// unanswered: the proxy's own answer is none, whatever time was up. Nor is it the text that is
// charged. What an upstream says is an answer.
func (r *answerRig) unanswered(t *testing.T, c *clients, version string) {
	const size = 2000 // with the headers in one packet, before any time is up
	for _, step := range []struct {
		name, do, route, header    string
		status                     int
		tokens, uploads, ms, plain int64
	}{
		{"route timeout", "200", "timeout", "", 504, size / 4, size, 150, 10},
		{"idle timeout", "200", "idle", "", 504, size / 4, size, 150, 10},
		{"stream duration", "200", "longest", "", 504, size / 4, size, 150, 10},
		{"client's deadline", "200", "deadline", "grpc-timeout: 200m", 504, size / 4, size, 150, 10},
		{"deadline of a gRPC call", "200", "deadline", "grpc-timeout: 200m; " + grpcType, 4, size / 4, size, 150, 10},
		{"tries that all time out", "200", "per-try", "", 504, size / 4, size, 1500, 10},
		{"a try that times out, and a good one", "slow-once", "per-try", "", 200, size / 4, size, 350, 0},
		{"upstream resets", "reset", "", "", 503, size / 4, size, 10, 10},
		{"upstream says 504", "504 hello", "", "", 504, 0, 0, 10, 5},
		{"upstream says 200", "200 " + strings.Repeat("x", 400), "", "", 200, size/4 + 100, size, 10, 400},
		{"a filter says 418", "", "", "x-envoy-fault-abort-request: 418", 418, 0, 0, 0, 18},
	} {
		user := "u-" + strings.NewReplacer(" ", "-", ",", "", "'", "", "/", "").Replace(step.name+version)
		request := c.request(t.Context(), t, "/never", size, "x-user-id: "+user, "x-do: "+step.do, "x-route: "+step.route)
		request.Header.Set("x-ms", "2000")
		for line := range strings.SplitSeq(step.header, "; ") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				request.Header.Set(name, value)
			}
		}
		require.Equal(t, step.status, c.send(version, request), step.name)
		key := "&key=" + user
		require.Equal(t, step.tokens, used(t, r.proxy, "tokens"+key), step.name)
		require.Equal(t, step.uploads, used(t, r.proxy, "uploads"+key), step.name)
		require.GreaterOrEqual(t, used(t, r.proxy, "time"+key), step.ms, step.name)
		require.Equal(t, step.plain, used(t, r.proxy, "sent"+key), step.name)
		isAnswer := step.do != "reset" && step.status != 504 && step.status != 4 || step.do == "504 hello"
		require.Equal(t, isAnswer, used(t, r.proxy, "answered"+key) > 0, step.name)
	}
}

// left: whoever leaves early pays what has come and run until then, and not what was only announced.
func (r *answerRig) left(t *testing.T, c *clients, version string) {
	const size = 3_000_000
	for _, step := range []struct {
		name            string
		announced, came int64
	}{{"one byte early", size, size - 1}, {"a chunked body", -1, size}, {"at once", 4_000_000_000, 1000}} {
		user := "l-" + strings.ReplaceAll(step.name+version, " ", "-")
		user = strings.ReplaceAll(user, "/", "")
		status := r.leaves(t, c, version, user, user, step.announced, step.came, 300*time.Millisecond)
		require.Zero(t, status, step.name)
		key := "&key=" + user
		require.Equal(t, step.came, used(t, r.proxy, "uploads"+key), step.name)
		require.Equal(t, step.came/4, used(t, r.proxy, "tokens"+key), step.name)
		require.GreaterOrEqual(t, used(t, r.proxy, "time"+key), int64(300), step.name)
		require.EqualValues(t, 10, used(t, r.proxy, "sent"+key), step.name)
		require.Zero(t, used(t, r.proxy, "answered"+key), step.name)
	}
}

// random: whatever becomes of requests at once, all together are charged what each is.
func (r *answerRig) random(t *testing.T, c *clients, versions []string) {
	var tokens, uploads atomic.Int64
	unanswered := func(size int) {
		tokens.Add(int64(max(size/4, 10)))
		uploads.Add(int64(max(size, 10)))
	}
	atOnce(20, func(i int) {
		dice := rand.New(rand.NewPCG(3, uint64(i)))
		for j := range 8 {
			id, version := fmt.Sprint("r-", i, "-", j), versions[dice.IntN(len(versions))]
			size, said := dice.IntN(2000), dice.IntN(2000)
			ask := func(do, route, more string) {
				request := c.request(t.Context(), t, "/never", size, "x-user-id: random", "x-ms: 1500", "x-do: "+do, more)
				request.Header.Set("x-route", route)
				c.send(version, request)
			}
			switch dice.IntN(6) {
			case 0:
				ask("200", []string{"timeout", "idle", "longest", "per-try"}[dice.IntN(4)], "")
				unanswered(size)
			case 1:
				ask("200", "deadline", "grpc-timeout: 150m")
				unanswered(size)
			case 2:
				ask("reset", "", "")
				unanswered(size)
			case 3:
				ask("504 no", "", "")
			case 4:
				ask("200 "+strings.Repeat("x", said), "", "")
				tokens.Add(int64(max(size/4+said/4, 10)))
				uploads.Add(int64(size)) // an answer costs what it says, also less than was held
			default:
				size *= 50
				r.leaves(t, c, version, "random", id, int64(size+1+said), int64(size), 0)
				unanswered(size)
			}
		}
	})
	require.Equal(t, tokens.Load(), used(t, r.proxy, "tokens&key=random"))
	require.Equal(t, uploads.Load(), used(t, r.proxy, "uploads&key=random"))
}

// leaves sends a request of which only so much of the body comes, and leaves so long after it has.
func (r *answerRig) leaves(
	t *testing.T, c *clients, version, user, id string, announced, came int64, after time.Duration,
) (status int) {
	ctx, leave := context.WithCancel(t.Context())
	request := c.request(ctx, t, "/never", 0, "x-user-id: "+user, "x-id: "+id, "x-do: 200", "x-ms: 5000")
	request.ContentLength = announced
	request.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", int(came))), ending(func() {
		for begin := time.Now(); r.upstream.came(id).Load() < came && time.Since(begin) < time.Minute; {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(after)
		leave()
		<-ctx.Done()
	})))
	return c.send(version, request)
}

// ending is a reader that does something in place of its first read, and then fails.
type ending func()

func (e ending) Read([]byte) (int, error) {
	e()
	return 0, io.ErrUnexpectedEOF
}

// closing is a body that says when it is closed.
type closing struct {
	io.Reader
	closed func()
}

func (c closing) Close() error {
	c.closed()
	return nil
}

// slowToAsk: a client that does not send its body in time is answered 408 by the proxy, and pays for
// what it sent.
func (r *answerRig) slowToAsk(t *testing.T, d driver) {
	const manager = "          stat_prefix: ingress\n"
	r = &answerRig{upstream: r.upstream, accessLog: r.accessLog, proxy: r.another(t, d, proxyOptions{
		policy: neverPolicy, edit: replacing(manager, manager+"          request_timeout: 0.5s\n"),
	})}
	c := newClients(t, r.address, r.upstream)
	for _, version := range d.versions() {
		user := "s-" + version[len("HTTP/"):]
		// The body fails once the answer was read, or the transport closes it: one that fails before
		// takes the answer's place, and HTTP/2 waits for it.
		ctx, end := context.WithCancel(t.Context())
		request := c.request(t.Context(), t, "/never", 0, "x-user-id: "+user, "x-do: 200")
		request.ContentLength = 3000
		request.Body = closing{
			io.MultiReader(strings.NewReader(strings.Repeat("x", 2000)), ending(func() { <-ctx.Done() })), end,
		}
		status := c.send(version, request)
		end()
		require.Equal(t, http.StatusRequestTimeout, status, version)
		require.EqualValues(t, 2000, used(t, r.proxy, "uploads&key="+user))
		require.EqualValues(t, 500, used(t, r.proxy, "tokens&key="+user))
		require.Zero(t, used(t, r.proxy, "answered&key="+user))
	}
	r.noTraps(t)
}

// withoutBody: what the headers end has a body of 0 bytes, and what comes in chunks may have any.
func (r *answerRig) withoutBody(t *testing.T, c *clients, version string) {
	for _, step := range []struct {
		method string
		length int64 // -1 = in chunks
		charge int64
	}{
		{http.MethodGet, 0, 500}, {http.MethodOptions, 0, 500}, {http.MethodDelete, 0, 500}, {http.MethodPost, 0, 500},
		{http.MethodPost, 3000, 1500}, {http.MethodPost, -1, 8000},
	} {
		user := fmt.Sprint("b-", step.method, step.length, "-", version[len("HTTP/"):])
		request := c.request(t.Context(), t, "/body", int(max(step.length, -step.length)), "x-user-id: "+user)
		request.Method, request.ContentLength = step.method, step.length
		if step.length == 0 {
			request.Body = nil
		}
		require.Equal(t, http.StatusOK, c.send(version, request), user)
		require.Equal(t, step.charge, used(t, r.proxy, "bodies&key="+user), user)
	}
}

// deadlines: a client that sets the deadline has as many wrong passwords as everybody else.
func (r *answerRig) deadlines(t *testing.T, c *clients) {
	r.upstream.forget(t)
	var timedOut, limited atomic.Int32
	atOnce(40, func(i int) {
		version := []string{"HTTP/1", "HTTP/2"}[i%2]
		login := c.request(t.Context(), t, "/login", 10, "x-do: 401", "x-ms: 500", "x-route: deadline", "grpc-timeout: 100m")
		switch c.send(version, login) {
		case http.StatusGatewayTimeout:
			timedOut.Add(1)
		case denied:
			limited.Add(1)
		}
	})
	require.EqualValues(t, 5, used(t, r.proxy, "logins"))
	require.EqualValues(t, 5, timedOut.Load())
	require.EqualValues(t, 35, limited.Load())
	r.upstream.forget(t)
	require.Equal(t, denied, c.send("HTTP/1", c.request(t.Context(), t, "/login", 10, "x-do: 401")))
}

// repeated: any value of a header of the answer meets the condition.
func (r *answerRig) repeated(t *testing.T) {
	const first, second = "set-cookie: a=1; expires=Thu, 01 Jan 2026 00:00:00 GMT", "set-cookie: failed=1"
	for i := range 12 {
		want := allowed
		if i >= 5 {
			want = denied
		}
		require.Equal(t, want, r.status(t, "/cookie", "x-do", "200", "x-send", first, "x-send", second), i)
		used(t, r.proxy, "cookies")
	}
	require.EqualValues(t, 5, used(t, r.proxy, "cookies"))
}

// beyond: what an answer takes beyond the limit is not forgiven.
func (r *answerRig) beyond(t *testing.T) {
	const usage = `200 {"usage":{"prompt_tokens":50000,"completion_tokens":10}}`
	require.Equal(t, http.StatusOK, r.status(t, "/beyond", "x-do", usage, "x-send", "content-type: application/json"))
	require.EqualValues(t, 50_010, used(t, r.proxy, "beyond"))
	require.Equal(t, denied, r.status(t, "/beyond"))
}

// request is a POST with a body of so many bytes and these headers.
func (c *clients) request(ctx context.Context, t *testing.T, path string, size int, headers ...string) *http.Request {
	t.Helper()
	body := strings.NewReader(strings.Repeat("x", size))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+path, body)
	require.NoError(t, err)
	for _, line := range headers {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	return r
}

// send returns the status of the answer, that of its gRPC status if it has one, and 0 if none came.
func (c *clients) send(version string, r *http.Request) (status int) {
	res, err := c.transport(version == "HTTP/2").RoundTrip(r)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	if code, err := strconv.Atoi(res.Header.Get("grpc-status")); err == nil {
		return code
	}
	return res.StatusCode
}

// heldBack: an answer that another filter holds back has not come either, if a time is up or the
// upstream breaks off meanwhile and the client gets the proxy's own. What it said counts.
func (r *answerRig) heldBack(t *testing.T, d driver) {
	const filters = "\n          http_filters:"
	r = &answerRig{upstream: r.upstream, accessLog: r.accessLog, proxy: r.another(t, d, proxyOptions{
		policy: neverPolicy, edit: replacing(filters, filters+`
          - name: buffers
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code: {inline_string: "function envoy_on_response(h) h:body() end"}`),
	})}
	c := newClients(t, r.address, r.upstream)
	const size, said = 4000, "hello"
	for _, version := range d.versions() {
		for _, step := range []struct {
			do, route     string
			status        int
			tokens, plain int64
		}{
			{"chunks", "timeout", 504, size/4 + int64(len(said))/4, 10},
			{"chunks", "idle", 504, size/4 + int64(len(said))/4, 10},
			{"chunks", "longest", 504, size/4 + int64(len(said))/4, 10},
			{"chunks", "deadline", 504, size/4 + int64(len(said))/4, 10},
			{"chunk-reset", "", 502, size/4 + 3*int64(len(said))/4, 10},
			{"chunks", "", 200, size/4 + 3*int64(len(said))/4, 3 * int64(len(said))},
		} {
			user := "h-" + step.do + step.route + version[len("HTTP/"):]
			request := c.request(t.Context(), t, "/never", size, "x-user-id: "+user, "x-do: "+step.do, "x-ms: 1500",
				"x-route: "+step.route, "grpc-timeout: 200m")
			require.Equal(t, step.status, c.send(version, request), user)
			key := "&key=" + user
			require.Equal(t, step.tokens, used(t, r.proxy, "tokens"+key), user)
			require.EqualValues(t, size, used(t, r.proxy, "uploads"+key), user)
			require.Equal(t, step.plain, used(t, r.proxy, "sent"+key), user)
			require.Equal(t, step.status == 200, used(t, r.proxy, "answered"+key) > 0, user)
		}
	}
	r.noTraps(t)
}
