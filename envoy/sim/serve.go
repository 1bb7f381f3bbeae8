package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// Request is one request as the connection manager hands it to the filter:
// trusted addresses known, path normalised. Empty fields have the defaults
// named.
type Request struct {
	Method string // GET
	Scheme string // http
	Host   string // localhost
	Path   string // /

	// Headers keep their order and may repeat; those that Envoy folds into
	// one are folded.
	Headers [][2]string
	HasBody bool // the headers do not end the request

	ClientIP   string // 127.0.0.1
	ClientPort uint16

	Route string // name of the route, empty if it has none

	// Metadata is dynamic metadata that filters before this one have set, by
	// namespace.
	Metadata map[string]*structpb.Struct

	// Properties are what else Envoy would know. Segments of a path are joined
	// with dots or zero bytes. They win over those derived from the request.
	Properties map[string][]byte

	Faults *Faults

	// Upstream answers a request that the filter let through, as the filter left
	// it. The worker serves others meanwhile. Nil = 200.
	Upstream func(*Request) (*Response, error)
}

// Faults make host calls of one request fail.
type Faults struct {
	Get   bool // reads of shared data: internal failure
	Set   bool // writes of shared data: internal failure
	CAS   int  // number of compare-and-swap writes that mismatch first
	Clock bool // reads of the time: internal failure
}

// Response is what the client gets.
type Response struct {
	Local   bool // the filter answered, or its VM failed; not the upstream
	Reset   bool // the filter closed the stream, there is no response
	Status  int
	Headers [][2]string // without :status
	Body    []byte
	Details string // response code details, of a local reply

	GRPCStatus int               // of the header grpc-status, -1 if there is none
	State      map[string]string // properties the filter set, by path joined with dots
}

// ErrPaused is the error of a request that the filter stopped and did not answer.
// Nothing here could resume it.
var ErrPaused = errors.New("the filter paused the request, which the simulator does not support")

// Serve takes a request through a worker: its headers, the upstream unless the
// filter answers, the response headers, and the end. It fails only before the
// first Configure, for an unknown worker, and with ErrPaused.
func (h *Host) Serve(worker int, r *Request) (*Response, error) {
	t, err := h.worker(worker)
	if err != nil {
		return nil, err
	}
	t.Lock()
	defer t.Unlock()
	root := t.root
	if root == nil {
		if !t.started {
			return nil, fmt.Errorf("serve on worker %d: nothing is configured", worker)
		}
		return refuse(r), nil
	}
	v := root.vm
	if v.failed != nil {
		return refuse(r), nil
	}
	v.deliver()
	sc := v.open(root, r)
	st := sc.stream
	res, err := v.requestHeaders(sc)
	if res == nil && err == nil {
		res, err = v.respond(t, sc)
	}
	if res != nil {
		st.status, st.details = res.Status, res.Details
	}
	v.end(sc)
	if res != nil && len(st.state) > 0 {
		res.State = make(map[string]string, len(st.state))
		for path, value := range st.state {
			res.State[strings.ReplaceAll(path, "\x00", ".")] = value
		}
	}
	return res, err
}

// refuse is the answer where there is no VM to ask.
func refuse(r *Request) *Response {
	st := &stream{in: r}
	st.fill()
	return st.failed()
}

// fill makes the header map of the request.
func (st *stream) fill() {
	r := st.in
	st.request = append(st.request,
		[2]string{":authority", or(r.Host, "localhost")}, [2]string{":path", or(r.Path, "/")},
		[2]string{":method", or(r.Method, "GET")}, [2]string{":scheme", or(r.Scheme, "http")})
	for _, f := range r.Headers {
		st.request.add(f[0], f[1])
	}
	st.grpc = isGRPC(st.request)
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// requestHeaders asks the filter. No response and no error: the request goes
// on to the upstream.
func (v *vm) requestHeaders(sc *scope) (*Response, error) {
	st := sc.stream
	st.fill()
	st.showRequest = true
	if v.dead() {
		return st.failed(), nil
	}
	action := v.enter(sc, callRequestHeaders, uint64(sc.id), uint64(len(st.request)), boolean(!st.in.HasBody))
	switch {
	case v.dead():
		return st.failed(), nil
	case st.reply != nil:
		return v.sendReply(sc)
	case st.reset:
		return st.closed(), nil
	case (action != 0 || v.stopIteration) && !st.resumed:
		return nil, ErrPaused
	}
	st.showRequest = false
	return nil, nil
}

// sendReply takes a local reply through the filter's own response callback.
func (v *vm) sendReply(sc *scope) (*Response, error) {
	st := sc.stream
	reply := st.reply
	st.reply = nil
	h, body := reply.build(st.grpc)
	if method, _ := st.request.get(":method"); method == "HEAD" {
		body = nil
	}
	res := &Response{Local: true, Body: body, Details: reply.details}
	return v.responseHeaders(sc, h, res)
}

// respond gets the upstream's response, the thread being free meanwhile, and
// takes it through the filter.
func (v *vm) respond(t *thread, sc *scope) (*Response, error) {
	st := sc.stream
	up := &Response{Status: 200}
	if call := st.in.Upstream; call != nil {
		out := st.outgoing()
		var err error
		if up, err = t.wait(call, out); err != nil {
			reply := &localReply{status: 503, body: []byte("upstream connect error: " + err.Error())}
			h, body := reply.build(st.grpc)
			return v.responseHeaders(sc, h, &Response{Body: body, Details: "upstream_reset_before_response_started"})
		}
	}
	h := make(headers, 0, len(up.Headers)+4)
	h.add(":status", strconv.Itoa(up.Status))
	for _, f := range up.Headers {
		h.add(f[0], f[1])
	}
	return v.responseHeaders(sc, h, &Response{Body: up.Body, Details: "via_upstream"})
}

// wait calls the upstream with the thread free for others.
func (t *thread) wait(call func(*Request) (*Response, error), out *Request) (*Response, error) {
	t.Unlock()
	defer t.Lock()
	res, err := call(out)
	if err == nil && res == nil {
		err = errors.New("no response")
	}
	return res, err
}

// outgoing is the request as the filter left it.
func (st *stream) outgoing() *Request {
	out := *st.in
	out.Headers = make([][2]string, 0, len(st.request))
	for _, f := range st.request {
		switch f[0] {
		case ":method":
			out.Method = f[1]
		case ":scheme":
			out.Scheme = f[1]
		case ":authority":
			out.Host = f[1]
		case ":path":
			out.Path = f[1]
		default:
			out.Headers = append(out.Headers, f)
		}
	}
	return &out
}

func (v *vm) responseHeaders(sc *scope, h headers, res *Response) (*Response, error) {
	st := sc.stream
	if v.dead() {
		return st.failed(), nil
	}
	st.response, st.showResponse = h, true
	status, _ := h.get(":status")
	st.status, _ = strconv.Atoi(status)
	st.details = res.Details
	action := v.enter(sc, callResponseHeaders, uint64(sc.id), uint64(len(st.response)), boolean(len(res.Body) == 0))
	st.showResponse = false
	switch {
	case v.dead():
		return st.failed(), nil
	case st.reply != nil:
		// A reply in place of a response goes out as it is.
		reply := st.reply
		st.reply = nil
		return st.direct(reply), nil
	case st.reset:
		return st.closed(), nil
	case (action != 0 || v.stopIteration) && !st.resumed:
		return nil, ErrPaused
	}
	res.finish(st.response)
	return res, nil
}

// direct makes a response that no callback sees.
func (st *stream) direct(reply *localReply) *Response {
	h, body := reply.build(st.grpc)
	st.response = h
	res := &Response{Local: true, Body: body, Details: reply.details}
	res.finish(h)
	return res
}

func (st *stream) failed() *Response { return st.direct(failure()) }

func (st *stream) closed() *Response {
	return &Response{Local: true, Reset: true, Details: "wasm_close_stream", GRPCStatus: -1}
}

// finish sets what follows from the final headers, which it copies: the guest
// may still read its own when it logs.
func (r *Response) finish(h headers) {
	r.GRPCStatus = -1
	r.Headers = make([][2]string, 0, len(h))
	for _, f := range h {
		switch f[0] {
		case ":status":
			r.Status, _ = strconv.Atoi(f[1])
			continue
		case "grpc-status":
			if code, err := strconv.Atoi(f[1]); err == nil {
				r.GRPCStatus = code
			}
		}
		r.Headers = append(r.Headers, f)
	}
}

func boolean(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
