package sim

import (
	"math"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// Call is what a filter opens a gRPC stream to.
type Call struct {
	VM       int // the worker, or Main
	Cluster  string
	Service  string
	Method   string
	Metadata [][2]string
}

// Peer is the other end of a stream. The host calls it on the thread of the VM: it
// must not wait, and must not call the host. It may use its Inbox.
type Peer interface {
	Send(message []byte) // the bytes are its own
	CloseSend()          // no message follows
	Cancel()             // the filter takes no more messages
}

const grpcUnavailable = 14

// grpcStream is a stream that a configuration has opened.
type grpcStream struct {
	thread *thread
	root   *scope
	token  uint32
	peer   Peer // nil once the stream has ended

	finished     bool // the peer knows that nothing follows
	localClosed  bool
	remoteClosed bool
	lastDue      int64
}

// Tokens of streams are numbered as in Envoy, where they show the kind of a call.
const (
	tokenStep  = 4
	tokenFirst = 2
)

func (v *vm) grpcStream(a args) status {
	to := &corev3.GrpcService{}
	if err := proto.Unmarshal(a.b[0], to); err != nil || to.GetEnvoyGrpc() == nil {
		return badArgument
	}
	v.nextToken += tokenStep
	stream := &grpcStream{thread: v.thread, root: v.scope().root, token: v.nextToken}
	call := Call{
		VM:       v.id,
		Cluster:  to.GetEnvoyGrpc().GetClusterName(),
		Service:  string(a.b[1]),
		Method:   string(a.b[2]),
		Metadata: unmarshalPairs(a.b[3]),
	}
	if !stream.dial(call) {
		// The filter gets the end of a stream whose token it never got.
		v.later(func() { stream.close(grpcUnavailable) })
		return internalFailure
	}
	if stream.root.grpc == nil {
		stream.root.grpc = map[uint32]*grpcStream{}
	}
	stream.root.grpc[stream.token] = stream
	return v.writeU32(a.n[0], stream.token)
}

func (s *grpcStream) dial(c Call) bool {
	if s.thread == nil || s.thread.host.o.Dial == nil { // a trial has no thread
		return false
	}
	peer, err := s.thread.host.o.Dial(c, &Inbox{s})
	s.peer = peer
	return err == nil
}

// grpcToken finds a stream of the configuration that calls.
func (v *vm) grpcToken(token uint64) (*grpcStream, status) {
	if s := v.scope().root.grpc[uint32(token)]; s != nil {
		return s, statusOK
	}
	return nil, notFound
}

// grpcSend answers OK also for a stream that the other end has closed. Envoy then
// uses memory that it may have freed.
func (v *vm) grpcSend(a args) status {
	stream, found := v.grpcToken(a.n[0])
	if found != statusOK || stream.peer == nil || stream.finished {
		return found
	}
	stream.peer.Send(append([]byte(nil), a.b[0]...))
	if uint32(a.n[1]) != 0 {
		stream.peer.CloseSend()
		stream.finished = true
	}
	return statusOK
}

// grpcClose says that no message of the filter follows. It still gets those of the other end.
func (v *vm) grpcClose(a args) status {
	stream, found := v.grpcToken(a.n[0])
	if found != statusOK {
		return found
	}
	if stream.peer != nil && !stream.finished {
		stream.peer.CloseSend()
		stream.finished = true
	}
	stream.localClosed = true
	if stream.remoteClosed {
		delete(stream.root.grpc, stream.token)
	}
	return statusOK
}

func (v *vm) grpcCancel(a args) status {
	stream, found := v.grpcToken(a.n[0])
	if found != statusOK {
		return found
	}
	stream.cancel()
	return statusOK
}

// cancel ends a stream. The filter gets no more callbacks of it.
func (s *grpcStream) cancel() {
	if s.peer != nil {
		s.peer.Cancel()
		s.peer = nil
	}
	delete(s.root.grpc, s.token)
}

// hangUp cancels the streams of a configuration.
func (sc *scope) hangUp() {
	for _, s := range sc.grpc {
		s.cancel()
	}
}

// hear tells the filter what the other end has said.
func (s *grpcStream) hear(l letter) {
	if s.root.grpc[s.token] != s || s.remoteClosed {
		return
	}
	if l.ends {
		s.close(l.status)
		return
	}
	s.root.message = l.message
	s.root.vm.later(func() { s.root.message = nil })
	s.root.vm.enter(s.root, callGRPCReceive, uint64(s.root.id), uint64(s.token), uint64(len(l.message)))
}

// close tells the filter that the other end has closed.
func (s *grpcStream) close(status uint32) {
	s.remoteClosed = true
	root := s.root
	root.vm.later(func() {
		if s.localClosed {
			delete(root.grpc, s.token)
		}
	})
	root.vm.enter(root, callGRPCClose, uint64(root.id), uint64(s.token), uint64(status))
	s.peer = nil
}

// mail is what other ends of gRPC streams have said to the VMs of a thread, in the
// order in which it becomes due.
type mail struct {
	sync.Mutex
	letters []letter
}

type letter struct {
	due     int64 // by the monotonic clock
	stream  *grpcStream
	message []byte
	ends    bool // with this status, in place of a message
	status  uint32
}

func (m *mail) post(l letter) {
	m.Lock()
	defer m.Unlock()
	l.due = max(l.due, l.stream.lastDue) // a stream keeps its order
	l.stream.lastDue = l.due
	i, _ := slices.BinarySearchFunc(m.letters, l.due, func(other letter, due int64) int {
		if other.due <= due {
			return -1
		}
		return 1
	})
	m.letters = slices.Insert(m.letters, i, l)
}

// take returns the first letter that is due.
func (m *mail) take(now int64) (l letter, ok bool) {
	m.Lock()
	defer m.Unlock()
	if len(m.letters) == 0 || m.letters[0].due > now {
		return letter{}, false
	}
	l = m.letters[0]
	m.letters = m.letters[1:]
	return l, true
}

// due returns when the first letter is due.
func (m *mail) due() int64 {
	m.Lock()
	defer m.Unlock()
	if len(m.letters) == 0 {
		return math.MaxInt64
	}
	return m.letters[0].due
}

// Inbox takes what the other end of a stream says. It may be used in any goroutine, also in a
// call from the filter. The filter gets the messages in this order, after their delay, when
// Deliver or Host.TickDue delivers them.
type Inbox struct{ stream *grpcStream }

// Message is one message. It keeps the bytes.
func (i *Inbox) Message(after time.Duration, message []byte) {
	i.post(after, letter{message: message})
}

// Close ends the stream with a gRPC status.
func (i *Inbox) Close(after time.Duration, status uint32) {
	i.post(after, letter{ends: true, status: status})
}

func (i *Inbox) post(after time.Duration, l letter) {
	l.stream = i.stream
	l.due = i.stream.thread.host.elapsed() + int64(after)
	i.stream.thread.mail.post(l)
}

// Deliver tells the filter of all that is due on the stream's thread. It waits
// for the thread, so a call from the filter must not use it.
func (i *Inbox) Deliver() { i.stream.thread.deliver() }

func (t *thread) deliver() {
	t.Lock()
	defer t.Unlock()
	t.deliverDue()
}

func (t *thread) deliverDue() {
	now := t.host.elapsed()
	for {
		l, ok := t.mail.take(now)
		if !ok {
			return
		}
		l.stream.hear(l)
	}
}
