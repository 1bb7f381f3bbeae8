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

// filterStream connects a gRPC stream of the filter to a service.
type filterStream struct {
	in     *sim.Inbox
	cancel context.CancelFunc
	out    chan []byte // what the filter has sent
}

// unsent is how many messages of the filter may wait to be sent. The filter itself sends one,
// and waits for its answer.
const unsent = 64

// openStream opens a stream to a cluster. If the service cannot be reached, the stream ends.
func (p *Proxy) openStream(c sim.Call, in *sim.Inbox) (sim.Peer, error) {
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
	s := &filterStream{in: in, cancel: cancel, out: make(chan []byte, unsent)}
	go s.run(ctx, conn, "/"+c.Service+"/"+c.Method)
	return s, nil
}

// Send queues a message. It ends the stream if too many messages wait.
func (s *filterStream) Send(message []byte) {
	select {
	case s.out <- message:
	default:
		s.cancel()
	}
}

// CloseSend says that no message follows.
func (s *filterStream) CloseSend() { close(s.out) }

// Cancel ends the stream.
func (s *filterStream) Cancel() { s.cancel() }

// run receives until the service ends the stream.
func (s *filterStream) run(ctx context.Context, conn grpc.ClientConnInterface, method string) {
	defer s.cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	client, err := conn.NewStream(ctx, both, method, grpc.ForceCodec(rawCodec{}))
	if err == nil {
		go s.send(ctx, client)
	}
	for err == nil {
		var message []byte
		err = client.RecvMsg(&message)
		if err == nil {
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

// send passes on what the filter sends. An error ends the stream, and RecvMsg returns it to run.
func (s *filterStream) send(ctx context.Context, client grpc.ClientStream) {
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

// rawCodec leaves messages as they are: the filter encodes and decodes them itself.
type rawCodec struct{}

// Name is the content subtype that the service expects.
func (rawCodec) Name() string { return "proto" }

// Marshal takes a *[]byte.
func (rawCodec) Marshal(m any) ([]byte, error) { return *m.(*[]byte), nil }

// Unmarshal fills a *[]byte.
func (rawCodec) Unmarshal(b []byte, m any) error {
	*m.(*[]byte) = append([]byte{}, b...)
	return nil
}
