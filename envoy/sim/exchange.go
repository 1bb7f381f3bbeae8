package sim

import (
	"errors"
	"fmt"
)

// ErrPaused is the error of a request that the filter has paused and that nothing
// can resume: its VM has neither ticks nor a gRPC stream, or the filter paused the response.
var ErrPaused = errors.New("the filter paused the request, and nothing can resume it")

// Exchange is a request on its way through a worker. Start begins one. Its answer comes
// from Request.Upstream by Finish, or in parts by Answer, Chunk, Trailers and Reset.
type Exchange struct {
	in       *Request
	host     *Host
	thread   *thread
	scope    *scope
	phase    phase
	resumed  chan struct{} // closed when it is no longer paused, nil if it never was
	idleDue  int64
	response *Response // what the client has got so far
	err      error
}

// phase is where an exchange is. Its thread's lock guards it.
type phase uint8

const (
	inCallback phase = iota // the callback's caller decides how it goes on
	paused
	onward    // on its way to the upstream, or there
	answering // the headers of its response are out
	ended
)

// Serve takes a request through a worker: its headers, the upstream unless the
// filter answers, the response headers, and the end. One that the filter pauses
// waits until the filter resumes or answers it, its client disconnects or the stream has been
// idle for too long. It fails only before the first Configure, for an unknown worker, and with
// ErrPaused.
func (h *Host) Serve(worker int, r *Request) (*Response, error) {
	x, err := h.Start(worker, r)
	if err != nil {
		return nil, err
	}
	x.Wait()
	return x.Finish()
}

// Wait waits while the filter pauses the request, at most until its client disconnects.
func (x *Exchange) Wait() {
	if x.resumed == nil {
		return
	}
	if x.in.OnPause != nil {
		x.in.OnPause()
	}
	select {
	case <-x.resumed:
	case <-x.in.Gone:
		_ = x.Reset(ClientGone)
	}
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
	x := &Exchange{host: h, thread: t, in: r}
	if t.root != nil && t.root.vm.failed != nil {
		t.reload()
	}
	root := t.root
	switch {
	case root == nil && !t.started:
		return nil, fmt.Errorf("serve on worker %d: nothing is configured", worker)
	case root == nil || root.vm.failed != nil:
		x.move(ended)
		x.response = refuse(r)
		return x, nil
	}
	x.scope = root.vm.open(root, x, r)
	if r.Answered != nil {
		x.unseen(r.Answered)
	} else {
		x.requestHeaders()
	}
	return x, nil
}

// Paused reports whether the filter has paused the request.
func (x *Exchange) Paused() bool {
	x.thread.Lock()
	defer x.thread.Unlock()
	return x.phase == paused
}

// Ended reports whether the exchange is over: the filter gets no more callbacks of it.
func (x *Exchange) Ended() bool {
	x.thread.Lock()
	defer x.thread.Unlock()
	return x.phase == ended
}

// Finish is the rest of Serve for a request that is not paused, or is no longer.
func (x *Exchange) Finish() (*Response, error) {
	x.thread.Lock()
	defer x.thread.Unlock()
	switch x.phase {
	case paused:
		return nil, errors.New("finish a request: the filter has paused it")
	case answering:
		return nil, errors.New("finish a request: its answer has begun")
	case onward:
		x.askUpstream()
	case inCallback, ended:
	}
	return x.response, x.err
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
	case (action != 0 || v.stopIteration) && !st.resumed:
		x.pause()
	default:
		st.showRequest = false
		x.move(onward)
	}
}

func (x *Exchange) pause() {
	if x.host.o.StreamIdle == 0 && !x.scope.vm.active() {
		x.end(nil, ErrPaused)
		return
	}
	x.move(paused)
	x.resumed = make(chan struct{})
	x.idleDue = x.host.elapsed() + int64(x.host.o.StreamIdle)
	x.thread.paused = append(x.thread.paused, x)
	x.host.change()
}

// active reports whether the filter will get other callbacks than those of requests.
func (v *vm) active() bool {
	for _, root := range v.roots {
		if v.failed == nil && (root.tickPeriod != 0 || len(root.grpc) > 0) {
			return true
		}
	}
	return false
}

// move takes the exchange to another phase. Nothing else sets its phase, so a pause that ends is
// always seen by Wait.
func (x *Exchange) move(to phase) {
	if x.phase == paused {
		x.thread.forget(x)
		close(x.resumed)
	}
	x.phase = to
}

// goOn does what the filter asked for in another callback than the request's own.
func (x *Exchange) goOn() {
	if x.phase == paused && x.scope.stream.resumed {
		x.move(onward)
	}
}

// handleReply does what the filter asked for with a local reply.
func (x *Exchange) handleReply(reply *localReply) {
	switch {
	case x.phase == paused || x.phase == onward:
		x.sendReply(reply)
	case x.phase == answering: // too late for another answer
		x.cut(reply.details, 0)
	case x.phase == inCallback && x.scope.stream.reply == nil: // one that comes second does not count
		x.scope.stream.reply = reply
	}
}

// end closes the context of the request. Only then the response is there.
func (x *Exchange) end(res *Response, err error) {
	x.move(inCallback)
	st := x.scope.stream
	st.took = x.host.elapsed() - st.began
	if res != nil {
		st.status = res.Status
		st.tell(res.Details, res.Flags)
	}
	x.scope.vm.end(x.scope)
	if res != nil {
		res.State = st.properties()
	}
	x.move(ended)
	x.response, x.err = res, err
	x.scope = nil
}
