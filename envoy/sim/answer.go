package sim

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
)

// Envoy's flags of a response, as the attribute response.flags has them.
const (
	flagUpstreamTimeout = 0x4
	flagUpstreamReset   = 0x10
	flagConnectFailure  = 0x20
	flagClientGone      = 0x4000
	flagStreamIdle      = 0x10000
)

// Cause is why a stream ends before its answer does.
type Cause uint8

const (
	// ClientGone is a client that closes its connection.
	ClientGone Cause = iota
	// UpstreamReset is an upstream that resets the stream.
	UpstreamReset
	// UpstreamTimeout is an upstream that has not answered within the route's time.
	UpstreamTimeout
)

// causes say what Envoy makes of each: a local reply of status and body before the
// headers, and a reset behind them.
var causes = [...]struct {
	before, after string // details
	flags         uint64
	status        int
	body          string
}{
	ClientGone: {
		before: "downstream_remote_disconnect",
		after:  "downstream_remote_disconnect",
		flags:  flagClientGone,
	},
	UpstreamReset: {
		before: "upstream_reset_before_response_started{remote_reset}",
		after:  "upstream_reset_after_response_started{remote_reset}",
		flags:  flagUpstreamReset,
		status: 503,
		body:   "upstream connect error or disconnect/reset before headers. reset reason: remote reset",
	},
	UpstreamTimeout: {
		before: "response_timeout",
		after:  "response_timeout",
		flags:  flagUpstreamTimeout,
		status: 504,
		body:   "upstream request timeout",
	},
}

var (
	errPaused  = errors.New("answer a request: the filter has paused it")
	errNoHead  = errors.New("answer a request: its headers come first")
	errHead    = errors.New("answer a request: it has headers already")
	errCut     = errors.New("the answer goes no further: the stream was reset")
	errNothing = errors.New("answer a request: its answer has ended")
)

// Outgoing returns the request as the filter left it, nil if it goes to no upstream.
func (x *Exchange) Outgoing() *Request {
	x.thread.Lock()
	defer x.thread.Unlock()
	if x.phase != onward {
		return nil
	}
	return x.scope.stream.outgoing()
}

// Answer takes the headers of the upstream's answer through the filter: Status, Headers and,
// if it is the answer of another filter, Details and Flags. end says that nothing follows.
// It returns what the client gets: the headers as the filter left them, or the filter's own
// answer if it gave one meanwhile.
func (x *Exchange) Answer(up *Response, end bool) (*Response, error) {
	x.thread.Lock()
	defer x.thread.Unlock()
	switch x.phase {
	case paused:
		return nil, errPaused
	case answering:
		return nil, errHead
	case onward:
		x.answerHead(up, end)
	case inCallback, ended: // the filter has answered, or the client has gone
	}
	return x.response, x.err
}

// Chunk takes a part of the body through the filter. end says that nothing follows. It fails if
// the exchange has ended, for any reason.
func (x *Exchange) Chunk(b []byte, end bool) error {
	return x.part(func() { x.answerBody(b, end) })
}

// Trailers ends the answer with trailers.
func (x *Exchange) Trailers(fields [][2]string) error {
	return x.part(func() { x.answerTrailers(fields) })
}

func (x *Exchange) part(do func()) error {
	x.thread.Lock()
	defer x.thread.Unlock()
	switch x.phase {
	case paused:
		return errPaused
	case onward:
		return errNoHead
	case answering:
		do()
		if x.phase == ended && (x.err != nil || x.response.Reset) {
			return errCut
		}
		return x.err
	case inCallback, ended:
	}
	if x.response != nil && x.response.Reset {
		return errCut
	}
	return errNothing
}

// Reset ends the exchange before its answer has ended. A paused request has no upstream yet,
// so only its client can reset it. An exchange that has ended stays as it is.
func (x *Exchange) Reset(why Cause) error {
	x.thread.Lock()
	defer x.thread.Unlock()
	c := causes[why]
	switch {
	case x.phase == ended:
	case x.phase == answering:
		x.cut(c.after, c.flags)
	case why == ClientGone:
		x.cut(c.before, c.flags)
	case x.phase == paused:
		return errPaused
	default:
		x.reply(&localReply{status: c.status, body: []byte(c.body), details: c.before, flags: c.flags, grpcStatus: -1}, false)
	}
	return nil
}

// Redirect ends the exchange as one whose answer is a redirect that the proxy follows itself:
// the filter sees the answer when it logs, and then another request.
func (x *Exchange) Redirect(up *Response) error {
	x.thread.Lock()
	defer x.thread.Unlock()
	if x.phase != onward {
		return errors.New("redirect a request: it is not at the upstream")
	}
	x.scope.stream.response = up.head()
	x.end(&Response{Status: up.Status, Details: "internal_redirect", GRPCStatus: -1}, nil)
	return nil
}

// State returns the properties that the filter has set so far, by path joined with dots.
func (x *Exchange) State() map[string]string {
	x.thread.Lock()
	defer x.thread.Unlock()
	switch {
	case x.scope != nil:
		return x.scope.stream.properties()
	case x.response != nil:
		return x.response.State
	}
	return nil
}

func (st *stream) properties() map[string]string {
	if len(st.state) == 0 {
		return nil
	}
	all := make(map[string]string, len(st.state))
	for path, value := range st.state {
		all[strings.ReplaceAll(path, "\x00", ".")] = value
	}
	return all
}

// unseen ends a request that a filter before this one has answered: this one sees it only when
// it logs.
func (x *Exchange) unseen(up *Response) {
	st := x.scope.stream
	st.fill()
	st.response = up.head()
	st.sent = len(up.Body)
	res := *up
	x.end(&res, nil)
}

// askUpstream gets the upstream's answer, the thread being free meanwhile, and
// takes it through the filter, which may have answered by then.
func (x *Exchange) askUpstream() {
	up := &Response{Status: 200}
	if call := x.scope.stream.in.Upstream; call != nil {
		out := x.scope.stream.outgoing()
		var err error
		up, err = x.thread.wait(call, out)
		if x.phase == ended {
			return
		}
		if err != nil {
			x.reply(&localReply{status: 503, body: []byte("upstream connect error: " + err.Error()), flags: flagConnectFailure,
				details: "upstream_reset_before_response_started{connection_failure}", grpcStatus: -1}, false)
			return
		}
	}
	body, fields := up.Body, up.Trailers
	x.answerHead(up, len(body) == 0 && fields == nil)
	if x.phase == answering && len(body) > 0 {
		x.response.Body = body
		x.answerBody(body, fields == nil)
	}
	if x.phase == answering {
		x.answerTrailers(fields)
	}
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

// sendReply takes a local reply of the filter through its own response callbacks.
func (x *Exchange) sendReply(reply *localReply) { x.reply(reply, true) }

// reply takes a local reply through the filter's response callbacks.
func (x *Exchange) reply(reply *localReply, local bool) {
	st := x.scope.stream
	st.reply = nil
	h, body := reply.build(st.grpc)
	if method, _ := st.request.get(":method"); method == "HEAD" {
		body = nil
	}
	st.status = reply.status // to a gRPC request another is sent
	x.responseHeaders(h, &Response{Local: local, Details: reply.details, Flags: reply.flags}, len(body) == 0)
	if x.phase == answering {
		x.response.Body = body
		x.answerBody(body, true)
	}
}

// answerHead takes the headers of an answer through the filter.
func (x *Exchange) answerHead(up *Response, end bool) {
	res := &Response{Details: cmp.Or(up.Details, "via_upstream"), Flags: up.Flags}
	x.scope.stream.status = up.Status
	x.responseHeaders(up.head(), res, end)
}

// head is the header map of a response.
func (r *Response) head() headers {
	h := make(headers, 0, len(r.Headers)+4)
	h.add(":status", strconv.Itoa(r.Status))
	for _, f := range r.Headers {
		h.add(strings.ToLower(f[0]), f[1])
	}
	return h
}

// responseHeaders asks the filter. It leaves the exchange answering, or ends it.
func (x *Exchange) responseHeaders(h headers, res *Response, end bool) {
	sc := x.scope
	st, v := sc.stream, sc.vm
	x.move(inCallback)
	st.response, st.showResponse = h, true
	st.tell(res.Details, res.Flags)
	if v.dead() {
		x.end(st.failed(), nil)
		return
	}
	action := v.enter(sc, callResponseHeaders, uint64(sc.id), uint64(len(st.response)), boolean(end))
	st.showResponse = false
	switch {
	case st.trapped:
		x.end(st.failed(), nil)
	case v.dead() && !end:
		// A callback inside trapped. The headers are out, and the body does not follow.
		res.finish(st.response)
		x.response = res
		x.move(answering)
		x.cut(res.Details, res.Flags)
	case st.reply != nil:
		// A reply in place of a response goes out as it is.
		x.end(st.direct(st.reply), nil)
	case (action != 0 || v.stopIteration) && !st.resumed:
		x.end(nil, ErrPaused)
	default:
		res.finish(st.response)
		x.response = res
		if end {
			x.end(res, nil)
			return
		}
		st.status = res.Status
		x.move(answering)
	}
}

// answerBody shows the filter a part of the body, and ends the exchange with the last one, or where
// the filter does not let it through.
func (x *Exchange) answerBody(b []byte, end bool) {
	sc := x.scope
	st, v := sc.stream, sc.vm
	x.move(inCallback)
	st.chunk = b
	action := v.enter(sc, callResponseBody, uint64(sc.id), uint64(len(b)), boolean(end))
	st.chunk = nil
	switch {
	case v.dead():
		x.cut(FailedDetails, 0)
	case st.reply != nil: // too late for another answer
		x.cut(st.reply.details, 0)
	case action != 0 && !st.resumed:
		x.end(nil, ErrPaused)
	default:
		st.sent += len(b)
		if end {
			x.end(x.response, nil)
			return
		}
		x.move(answering)
	}
}

// answerTrailers ends the exchange. The filter sees them when it logs.
func (x *Exchange) answerTrailers(fields [][2]string) {
	st := x.scope.stream
	for _, f := range fields {
		st.trailers.add(strings.ToLower(f[0]), f[1])
	}
	x.response.Trailers = append([][2]string(nil), st.trailers...)
	if code, err := strconv.Atoi(first(st.trailers.get("grpc-status"))); err == nil {
		x.response.GRPCStatus = code
	}
	x.end(x.response, nil)
}

// cut ends the exchange where it is, without more of an answer.
func (x *Exchange) cut(details string, flags uint64) {
	res := closed(details)
	if x.response != nil {
		res = x.response
		res.Reset = true
		res.Body = nil
		res.Details = details
	}
	res.Flags = flags
	x.end(res, nil)
}

func first(value string, _ bool) string { return value }
