package quotaservice

import (
	"context"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// maxStreams bounds the memory for streams.
const maxStreams = 10_000

// Stream is one worker's stream, as its transport uses it: it calls Receive for each message that comes, and
// takes what is to be sent from Next. It reads a message once all asks of the last one have
// begun, so that a stream has one message decoded.
//
// There are two transports: gRPC, and the simulated one of package fleet. The errors of Open and Receive are gRPC
// statuses, because both tell the worker their codes.
type Stream struct {
	service   *Service
	peer      Peer
	onAnswers func()
	domain    string        // empty before the first message; Receive alone uses it
	begun     chan struct{} // see WaitUntilBegun
	worker    worker        // part of the core
}

// Open begins a stream. onAnswers is called when Next has something; it must not wait.
func (s *Service) Open(p Peer, onAnswers func()) (*Stream, error) {
	st := &Stream{service: s, peer: p, onAnswers: onAnswers, begun: make(chan struct{}, 1)}
	st.worker = worker{
		core: &s.core, stream: st, definitions: newDefinitions(), rate: rate.NewLimiter(asksPerSecond, burstAsks),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.core.draining:
		return nil, status.Error(codes.Unavailable, ErrClosed.Error())
	case len(s.core.workers) >= maxStreams:
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are served", maxStreams)
	}
	s.core.workers[&st.worker] = struct{}{}
	return st, nil
}

// Receive takes a message: its definitions, what it returns, and its asks, which wait for the
// stream's turn. An error ends the stream.
func (st *Stream) Receive(message []byte) error {
	var m quota.Asks
	if err := m.Decode(message); err != nil {
		return status.Errorf(codes.InvalidArgument, "read a message of %d bytes: %v", len(message), err)
	}
	if err := st.checkDomain(m.Domain); err != nil {
		return err
	}
	if err := st.accept(&m); err != nil {
		return err
	}
	st.service.pump()
	return nil
}

// checkDomain refuses a message of a domain that the peer may not ask for, or of another one than the stream's.
func (st *Stream) checkDomain(domain string) error {
	switch {
	case st.domain == "" && domain == "":
		return status.Error(codes.InvalidArgument, "the first message of a stream must name its domain")
	case st.domain == "":
		if err := st.service.o.Allow(st.peer, domain); err != nil {
			return status.Errorf(codes.PermissionDenied, "domain %q: %v", domain, err)
		}
		st.domain = domain
	case domain != "" && domain != st.domain:
		return status.Errorf(codes.InvalidArgument, "the stream is of domain %q: another needs a stream of its own",
			st.domain)
	}
	return nil
}

// accept takes the definitions, returns and asks of a message.
func (st *Stream) accept(m *quota.Asks) error {
	s, w := st.service, &st.worker
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.domain == nil {
		w.join(m)
		if w.closed { // leave has come before
			w.leaveDomain()
		}
	}
	if s.core.draining {
		return status.Error(codes.Unavailable, ErrClosed.Error())
	}
	if s.apart.Load() {
		return status.Error(codes.Unavailable, errOtherSecret.Error())
	}
	w.hasher = w.hasher.withSecret(s.secret.Load())
	for i := range m.Definitions {
		w.define(&m.Definitions[i])
	}
	for _, r := range m.Returns {
		w.takeReturn(r)
	}
	w.enqueue(m.Asks)
	return nil
}

// WaitUntilBegun returns once all asks have begun, or ctx ends.
func (st *Stream) WaitUntilBegun(ctx context.Context) {
	for st.hasPending() {
		select {
		case <-st.begun:
		case <-ctx.Done():
			return
		}
	}
}

// hasPending reports whether asks have not begun.
func (st *Stream) hasPending() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return len(st.worker.pending) > 0
}

// Next returns the bytes of the next message; ok says that there is one. The caller sends it before it
// calls Next again, and that next call counts it as sent.
func (st *Stream) Next() (message []byte, ok bool) {
	st.noteSent()
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.worker.next()
}

// noteSent notes that the message which Next returned last is sent. A stream that had too many unsent
// answers may have a turn again now.
func (st *Stream) noteSent() {
	st.service.mu.Lock()
	isQueued := st.worker.noteSent()
	st.service.mu.Unlock()
	if isQueued {
		st.service.pump()
	}
}

// Idle reports whether all asks are answered and the answers taken.
func (st *Stream) Idle() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.worker.open == 0 && len(st.worker.unsent) == 0
}

// Ending reports whether the stream is to end: see Service.Watch.
func (st *Stream) Ending() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.worker.ending
}

// Close ends the stream. What is being granted to it is given back.
func (st *Stream) Close() {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	st.worker.leave()
}
