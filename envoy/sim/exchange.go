package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPaused is the error of a request that the filter has paused and that nothing
// can resume: its VM has neither ticks nor a gRPC stream, or it was the response.
var ErrPaused = errors.New("the filter paused the request, and nothing can resume it")

// Exchange is a request on its way through a worker.
type Exchange struct {
	host     *Host
	thread   *thread
	scope    *scope
	phase    phase
	resumed  chan struct{} // closed when it is no longer paused, nil if it never was
	idleDue  int64
	response *Response
	err      error
}

// phase is where an exchange is. Its thread's lock guards it.
type phase uint8

const (
	inCallback phase = iota // of its request or its response, which looks itself what came of it
	paused
	onward // to the upstream, or there
	ended
)

// Serve takes a request through a worker: its headers, the upstream unless the
// filter answers, the response headers, and the end. One that the filter pauses
// waits until the filter resumes or answers it, its client goes or the stream has
// been idle for too long. It fails only before the first Configure, for an unknown worker, and
// with ErrPaused.
func (h *Host) Serve(worker int, r *Request) (*Response, error) {
	x, err := h.Start(worker, r)
	if err != nil {
		return nil, err
	}
	if x.resumed != nil {
		if r.OnPause != nil {
			r.OnPause()
		}
		select {
		case <-x.resumed:
		case <-r.Gone:
			x.Cancel()
		}
	}
	return x.Finish()
}

// Start is the first part of Serve: until the request is paused or on its way to
// the upstream. It never waits.
func (h *Host) Start(worker int, r *Request) (*Exchange, error) {
	t, err := h.worker(worker)
	if err != nil {
		return nil, err
	}
	t.Lock()
	defer t.Unlock()
	x := &Exchange{host: h, thread: t}
	if t.root != nil && t.root.vm.failed != nil {
		t.reload()
	}
	root := t.root
	switch {
	case root == nil && !t.started:
		return nil, fmt.Errorf("serve on worker %d: nothing is configured", worker)
	case root == nil || root.vm.failed != nil:
		x.phase, x.response = ended, refuse(r)
		return x, nil
	}
	root.vm.deliver()
	x.scope = root.vm.open(root, x, r)
	x.requestHeaders()
	return x, nil
}

// Paused reports whether the filter has paused the request.
func (x *Exchange) Paused() bool {
	x.thread.Lock()
	defer x.thread.Unlock()
	return x.phase == paused
}

// Finish is the rest of Serve for a request that is not paused, or is no longer.
func (x *Exchange) Finish() (*Response, error) {
	x.thread.Lock()
	defer x.thread.Unlock()
	if x.phase == paused {
		return nil, errors.New("finish a request: the filter has paused it")
	}
	if x.phase == onward {
		x.askUpstream()
	}
	return x.response, x.err
}

// Cancel ends a paused request whose client has gone.
func (x *Exchange) Cancel() {
	x.thread.Lock()
	defer x.thread.Unlock()
	if x.phase == paused {
		x.end(closed("downstream_remote_disconnect"), nil)
	}
}

// requestHeaders asks the filter.
func (x *Exchange) requestHeaders() {
	sc := x.scope
	st, v := sc.stream, sc.vm
	st.fill()
	st.showRequest = true
	if v.dead() {
		x.end(st.failed(), nil)
		return
	}
	action := v.enter(sc, callRequestHeaders, uint64(sc.id), uint64(len(st.request)), boolean(!st.in.HasBody))
	switch {
	case st.trapped:
		x.end(st.failed(), nil)
	case st.reply != nil:
		x.sendReply(st.reply)
	case st.reset:
		x.end(closed("wasm_close_stream"), nil)
	case (action != 0 || v.stopIteration) && !st.resumed:
		x.pause()
	default:
		st.showRequest = false
		x.phase = onward
	}
}

func (x *Exchange) pause() {
	if x.host.streamIdle == 0 && !x.scope.vm.active() {
		x.end(nil, ErrPaused)
		return
	}
	x.phase, x.resumed = paused, make(chan struct{})
	x.idleDue = x.host.elapsed() + x.host.streamIdle
	x.thread.paused = append(x.thread.paused, x)
	x.host.change()
}

// active reports whether the filter will hear of anything but requests.
func (v *vm) active() bool {
	for _, root := range v.roots {
		if v.failed == nil && (root.tickPeriod != 0 || len(root.grpc) > 0) {
			return true
		}
	}
	return false
}

// move ends a pause.
func (x *Exchange) move(to phase) {
	if x.phase == paused {
		x.thread.forget(x)
		close(x.resumed)
	}
	x.phase = to
}

// settle does what the filter asked for in another callback than the request's own.
func (x *Exchange) settle() {
	if x.phase != paused && x.phase != onward {
		return
	}
	switch st := x.scope.stream; {
	case st.reset:
		x.end(closed("wasm_close_stream"), nil)
	case st.resumed:
		x.move(onward)
	}
}

// answer does what the filter asked for with a local reply.
func (x *Exchange) answer(reply *localReply) {
	switch {
	case x.phase == paused || x.phase == onward:
		x.sendReply(reply)
	case x.phase == inCallback && x.scope.stream.reply == nil: // one that comes second does not count
		x.scope.stream.reply = reply
	}
}

// sendReply takes a local reply through the filter's own response callback.
func (x *Exchange) sendReply(reply *localReply) {
	st := x.scope.stream
	st.reply = nil
	h, body := reply.build(st.grpc)
	if method, _ := st.request.get(":method"); method == "HEAD" {
		body = nil
	}
	x.responseHeaders(h, &Response{Local: true, Body: body, Details: reply.details})
}

// askUpstream gets the upstream's response, the thread being free meanwhile, and
// takes it through the filter, which may have answered by then.
func (x *Exchange) askUpstream() {
	st := x.scope.stream
	up := &Response{Status: 200}
	if call := st.in.Upstream; call != nil {
		out := st.outgoing()
		var err error
		up, err = x.thread.wait(call, out)
		if x.phase == ended {
			return
		}
		if err != nil {
			reply := &localReply{status: 503, body: []byte("upstream connect error: " + err.Error())}
			h, body := reply.build(st.grpc)
			x.responseHeaders(h, &Response{Body: body, Details: "upstream_reset_before_response_started"})
			return
		}
	}
	h := make(headers, 0, len(up.Headers)+4)
	h.add(":status", strconv.Itoa(up.Status))
	for _, f := range up.Headers {
		h.add(f[0], f[1])
	}
	x.responseHeaders(h, &Response{Body: up.Body, Details: "via_upstream"})
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

// responseHeaders asks the filter, and ends the exchange.
func (x *Exchange) responseHeaders(h headers, res *Response) {
	sc := x.scope
	st, v := sc.stream, sc.vm
	x.move(inCallback)
	st.response, st.showResponse = h, true
	status, _ := h.get(":status")
	st.status, _ = strconv.Atoi(status)
	st.details = res.Details
	if v.dead() {
		x.end(st.failed(), nil)
		return
	}
	action := v.enter(sc, callResponseHeaders, uint64(sc.id), uint64(len(st.response)), boolean(len(res.Body) == 0))
	st.showResponse = false
	switch {
	case st.trapped:
		x.end(st.failed(), nil)
	case v.dead() && len(res.Body) > 0:
		// A callback inside trapped. The headers are out, and the body does not follow.
		res.finish(st.response)
		res.Body, res.Reset = nil, true
		x.end(res, nil)
	case st.reply != nil:
		// A reply in place of a response goes out as it is.
		x.end(st.direct(st.reply), nil)
	case st.reset:
		x.end(closed("wasm_close_stream"), nil)
	case (action != 0 || v.stopIteration) && !st.resumed:
		x.end(nil, ErrPaused)
	default:
		res.finish(st.response)
		x.end(res, nil)
	}
}

// end closes the context of the request. Only then the response is there.
func (x *Exchange) end(res *Response, err error) {
	x.move(inCallback)
	st := x.scope.stream
	if res != nil {
		st.status, st.details = res.Status, res.Details
	}
	x.scope.vm.end(x.scope)
	if res != nil && len(st.state) > 0 {
		res.State = make(map[string]string, len(st.state))
		for path, value := range st.state {
			res.State[strings.ReplaceAll(path, "\x00", ".")] = value
		}
	}
	x.phase, x.response, x.err, x.scope = ended, res, err, nil
}
