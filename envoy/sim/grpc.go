package sim

import (
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
	CloseSend()          // nothing follows
	Cancel()             // nobody listens any more
}

const grpcUnavailable = 14

// grpcStream is a stream that a configuration has opened.
type grpcStream struct {
	thread *thread
	root   *scope
	token  uint32
	peer   Peer // nil once it is of no more use

	finished     bool // the peer knows that nothing follows
	localClosed  bool
	remoteClosed bool
	lastDue      int64
}

// Tokens of streams are as Envoy's, where the kind of a call can be seen.
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
		VM: v.id, Cluster: to.GetEnvoyGrpc().GetClusterName(), Service: string(a.b[1]), Method: string(a.b[2]), Metadata: unmarshalPairs(a.b[3]),
	}
	if !stream.dial(call) {
		// The filter hears of the end of a stream whose token it never got.
		v.later(func() { stream.close(grpcUnavailable) })
		return internalFailure
	}
	if stream.root.grpc == nil {
		stream.root.grpc = map[uint32]*grpcStream{}
	}
	stream.root.grpc[stream.token] = stream
	return v.writeU32(a.s[8], stream.token)
}

func (s *grpcStream) dial(c Call) bool {
	if s.thread == nil || s.thread.host.o.Dial == nil { // the VM that tries a configuration calls nobody
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
	stream, st := v.grpcToken(a.s[0])
	if st != statusOK || stream.peer == nil || stream.finished {
		return st
	}
	stream.peer.Send(append([]byte(nil), a.b[0]...))
	if uint32(a.s[3]) != 0 {
		stream.peer.CloseSend()
		stream.finished = true
	}
	return statusOK
}

// grpcClose says that nothing follows. The filter hears on.
func (v *vm) grpcClose(a args) status {
	stream, st := v.grpcToken(a.s[0])
	if st != statusOK {
		return st
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
	stream, st := v.grpcToken(a.s[0])
	if st != statusOK {
		return st
	}
	stream.cancel()
	return statusOK
}

// cancel ends a stream. The filter hears no more of it.
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
