package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// stream is the way from a gRPC stream of the filter to a service.
type stream struct {
	in     *sim.Inbox
	cancel context.CancelFunc
	out    chan []byte // what the filter has sent
}

// unsent is how many messages of the filter may wait to be sent. It lets one wait for
// an answer.
const unsent = 64

// dial opens a stream to one of the clusters. A service that cannot be reached
// ends it.
func (p *Proxy) dial(c sim.Call, in *sim.Inbox) (sim.Peer, error) {
	var conn grpc.ClientConnInterface
	if p.options.Cluster != nil {
		conn = p.options.Cluster(c.Cluster)
	}
	if conn == nil {
		return nil, fmt.Errorf("open a stream: there is no cluster %q", c.Cluster)
	}
	ctx, cancel := context.WithCancel(context.Background())
	for _, pair := range c.Metadata {
		if !strings.HasPrefix(pair[0], ":") {
			ctx = metadata.AppendToOutgoingContext(ctx, pair[0], pair[1])
		}
	}
	s := &stream{in: in, cancel: cancel, out: make(chan []byte, unsent)}
	go s.run(ctx, conn, "/"+c.Service+"/"+c.Method)
	return s, nil
}

// Send queues a message. A service that takes none for so long loses the stream.
func (s *stream) Send(message []byte) {
	select {
	case s.out <- message:
	default:
		s.cancel()
	}
}

// CloseSend says that nothing follows.
func (s *stream) CloseSend() { close(s.out) }

// Cancel ends the stream.
func (s *stream) Cancel() { s.cancel() }

// run receives until the service ends the stream.
func (s *stream) run(ctx context.Context, conn grpc.ClientConnInterface, method string) {
	defer s.cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	client, err := conn.NewStream(ctx, both, method, grpc.ForceCodec(rawCodec{}))
	if err == nil {
		go s.send(ctx, client)
	}
	for err == nil {
		var message []byte
		if err = client.RecvMsg(&message); err == nil {
			s.in.Message(0, message)
			s.in.Deliver()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s.in.Close(0, uint32(status.Code(err)))
	s.in.Deliver()
}

// send passes on what the filter sends. What goes wrong ends the stream, which run
// hears.
func (s *stream) send(ctx context.Context, client grpc.ClientStream) {
	for {
		select {
		case message, more := <-s.out:
			if !more {
				_ = client.CloseSend()
				return
			}
			if client.SendMsg(&message) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// rawCodec passes messages as the bytes they are: the filter has its own codec.
type rawCodec struct{}

// Name is the format that the service expects.
func (rawCodec) Name() string { return "proto" }

// Marshal takes a *[]byte.
func (rawCodec) Marshal(m any) ([]byte, error) { return *m.(*[]byte), nil }

// Unmarshal fills a *[]byte.
func (rawCodec) Unmarshal(b []byte, m any) error {
	*m.(*[]byte) = append([]byte{}, b...)
	return nil
}
