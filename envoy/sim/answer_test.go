package sim_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// asked is a request and what becomes of it, in steps parted by "|":
//
//	answer STATUS [NAME=VALUE]…   the upstream answers with headers
//	chunk TEXT                    it sends a part of the body
//	trailers NAME=VALUE…          it ends with trailers
//	end                           it ends
//	reset                         it resets the stream, or closes its connection
//	leave                         the client does
//	wait                          neither does anything
//
// A step that ends in the word end ends the answer too. One that ends in quiet is nothing that
// the filter hears of.
type asked struct {
	name, steps string
	path        string
	headers     [][2]string
	method      string
	body        string
}

var (
	grpcKind = [][2]string{{"content-type", "application/grpc"}}
	abort    = [][2]string{{"x-envoy-fault-abort-request", "403"}}
	before   = [][2]string{{"x-before", "1"}}
)

var answers = []asked{
	{name: "no body", steps: "answer 204 end"},
	{name: "body at once", steps: "answer 200|chunk hello end"},
	{name: "chunks", steps: "answer 200|chunk hello|chunk world|end"},
	{name: "trailers", steps: "answer 200|chunk hello|trailers x-trailer=t"},
	{name: "trailers without a body", steps: "answer 200|trailers x-trailer=t"},
	{name: "a body from the client", method: "POST", body: "question", steps: "answer 201|chunk hello|end"},
	{name: "HEAD", method: "HEAD", steps: "answer 200 content-length=5 end"},
	{
		name:    "gRPC",
		method:  "POST",
		headers: grpcKind,
		body:    "question",
		steps:   "answer 200 content-type=application/grpc|chunk hello|trailers grpc-status=5",
	},
	{
		name:    "gRPC, headers alone",
		method:  "POST",
		headers: grpcKind,
		body:    "question",
		steps:   "answer 200 content-type=application/grpc grpc-status=5 end",
	},
	{
		name:    "gRPC, upstream resets",
		method:  "POST",
		headers: grpcKind,
		body:    "question",
		steps:   "answer 200 content-type=application/grpc|chunk hello|reset",
	},
	{name: "deny", steps: "wait"},
	{name: "deny gRPC", method: "POST", headers: grpcKind, body: "question", steps: "wait"},
	{name: "the client leaves before the headers", steps: "leave"},
	{name: "the client leaves after the headers", steps: "answer 200|leave"},
	{name: "the client leaves after a chunk", steps: "answer 200|chunk hello|leave"},
	{name: "the upstream resets before the headers", steps: "reset"},
	{name: "the upstream resets after the headers", steps: "answer 200|reset"},
	{name: "the upstream resets after a chunk", steps: "answer 200|chunk hello|reset"},
	{name: "timeout before the headers", path: "/timeout", steps: "wait"},
	{name: "timeout after the headers", path: "/timeout", steps: "answer 200|wait"},
	{name: "retried", path: "/retry", steps: "answer 503 end quiet|answer 200|chunk hello|end"},
	{name: "retried after a reset", path: "/retry", steps: "reset quiet|answer 200|chunk hello|end"},
	{
		name:  "redirected inside",
		path:  "/redirect",
		steps: "answer 302 location=http://a/ end quiet|answer 200|chunk hello|end",
	},
	{name: "a later filter answers", headers: abort, steps: "wait"},
	{name: "an earlier filter answers", headers: before, steps: "wait"},
}

func (a asked) has(name string) bool {
	for _, f := range a.headers {
		if f[0] == name {
			return true
		}
	}
	return false
}

// step is one of asked.steps.
type step struct {
	verb       string
	words      []string
	end, quiet bool
}

func (a asked) all() (all []step) {
	for _, text := range strings.Split(a.steps, "|") {
		words := strings.Fields(text)
		s := step{verb: words[0], words: words[1:]}
		last := func(word string) bool {
			is := len(s.words) > 0 && s.words[len(s.words)-1] == word
			if is {
				s.words = s.words[:len(s.words)-1]
			}
			return is
		}
		s.quiet = last("quiet")
		s.end = last("end") || s.verb == "end" || s.verb == "reset" || s.verb == "trailers"
		all = append(all, s)
	}
	return all
}

// fields are the words NAME=VALUE.
func (s step) fields() (list [][2]string) {
	for _, word := range s.words {
		if name, value, ok := strings.Cut(word, "="); ok {
			list = append(list, [2]string{name, value})
		}
	}
	return list
}

// courier takes requests and their answers through a proxy.
type courier interface {
	log() []string // the filter's lines
	send(a asked, name string) conveyed
}

type conveyed interface {
	do(s step)   // of the upstream, and leave
	got() string // what the client got
}

// requireConveyed has a courier take what is recorded, and compares or writes it.
func requireConveyed(t *testing.T, c courier, wanted func(asked) bool, anew bool) {
	t.Helper()
	r := openRecord(t, "answers.txt", anew)
	for _, a := range answers {
		if wanted(a) {
			r.hold(a.name, convey(t, c, a))
		}
	}
	r.close()
}

func convey(t *testing.T, c courier, a asked) string {
	t.Helper()
	name := "r." + strings.ReplaceAll(a.name, " ", "_")
	from := len(c.log())
	await := func(line string, n int) {
		t.Helper()
		seen := func() bool {
			return strings.Count("\n"+strings.Join(c.log()[from:], "\n"), "\n"+line) >= n
		}
		require.Eventually(t, seen, time.Minute, 2*time.Millisecond, "%s: %s", a.name, line)
	}
	x := c.send(a, name)
	if !a.has("x-before") {
		await("request_headers "+name, 1)
	}
	chunks, passes := 0, 1
	for _, s := range a.all() {
		x.do(s)
		switch {
		case s.quiet && a.path == "/redirect":
			passes++
			await("request_headers "+name, passes)
		case s.quiet:
		case s.verb == "answer":
			await("response_headers "+name, 1)
		case s.verb == "chunk":
			chunks++
			await(`response_body `+name+` 5 `, chunks)
		}
	}
	got := x.got()
	await("delete ", passes)
	lines := strings.Join(c.log()[from:], "\n")
	return strings.ReplaceAll(lines, name, "a") + "\n= " + got + "\n"
}

func (c simCourier) send(a asked, name string) conveyed {
	x := &simConveyed{c: c, a: a}
	x.request = &sim.Request{
		Method:  a.method,
		Headers: append([][2]string{{"x-name", name}}, a.headers...),
		HasBody: a.body != "",
	}
	x.request.Upstream = func(*sim.Request) (*sim.Response, error) {
		return &sim.Response{Status: 200, Body: []byte("from the upstream")}, nil
	}
	if a.body != "" {
		x.request.Headers = append(x.request.Headers, [2]string{"content-length", strconv.Itoa(len(a.body))})
	}
	if a.has("x-before") {
		x.request.Answered = &sim.Response{
			Status:  403,
			Details: "rbac_access_denied_matched_policy[p]",
			Body:    []byte("RBAC: access denied"),
		}
	}
	x.start()
	return x
}

type simConveyed struct {
	c       simCourier
	a       asked
	request *sim.Request
	x       *sim.Exchange
	body    string
}

func (x *simConveyed) start() {
	var err error
	x.x, err = x.c.Start(0, x.request)
	require.NoError(x.c.t, err)
}

func (x *simConveyed) do(s step) {
	err := error(nil)
	const faultInjected = 0x400
	switch {
	case s.quiet && x.a.path == "/redirect":
		status, _ := strconv.Atoi(s.words[0])
		err = x.x.Redirect(&sim.Response{Status: status, Headers: s.fields()})
		x.start()
	case s.quiet: // the router keeps it to itself
	case s.verb == "answer":
		status, _ := strconv.Atoi(s.words[0])
		_, err = x.x.Answer(&sim.Response{Status: status, Headers: s.fields()}, s.end)
	case s.verb == "chunk":
		x.body += s.words[0]
		err = x.x.Chunk([]byte(s.words[0]), s.end)
	case s.verb == "end":
		err = x.x.Chunk(nil, true)
	case s.verb == "trailers":
		err = x.x.Trailers(s.fields())
	case s.verb == "reset":
		err = x.x.Reset(sim.UpstreamReset)
	case s.verb == "leave":
		err = x.x.Reset(sim.ClientGone)
	case x.a.path == "/timeout":
		time.Sleep(time.Millisecond)
		err = x.x.Reset(sim.UpstreamTimeout)
	case x.a.has(abort[0][0]):
		abort := &sim.Response{Status: 403, Details: "fault_filter_abort", Flags: faultInjected}
		_, err = x.x.Answer(abort, false)
		if err == nil {
			x.body = "fault filter abort"
			err = x.x.Chunk([]byte(x.body), true)
		}
	}
	require.NoError(x.c.t, err)
}

func (x *simConveyed) got() string {
	x.x.Wait()
	res, err := x.x.Finish()
	if err != nil {
		return err.Error()
	}
	if res.Reset && res.Status == 0 {
		return "reset"
	}
	text := fmt.Sprintf("%d %s", res.Status, x.body+string(res.Body))
	if res.Reset {
		return text + ", then reset"
	}
	for _, f := range res.Trailers {
		text += " " + f[0] + "=" + f[1]
	}
	return text
}
