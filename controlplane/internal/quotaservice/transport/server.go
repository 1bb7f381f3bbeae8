// Package transport serves the quota service to proxies: each worker's stream over gRPC is a quotaservice.Stream.
//
// Its invariant: one goroutine receives a stream's messages and another sends its answers, so a proxy that reads
// nothing holds up no answers of others. It must not know what the messages say: they pass as bytes.
package transport

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// streamAge is how long a stream lasts at most, give or take a tenth, so that
	// streams spread over services that were added.
	streamAge = 5 * time.Minute
	// firstWithin is the deadline of a stream's first message.
	firstWithin = 10 * time.Second
	// verifyEvery is how often a stream's certificate is verified again.
	verifyEvery = time.Minute
)

// message is one message as its bytes.
type message []byte

// codec passes messages as they are, and leaves all else to the codec of the other
// services on the listener.
type codec struct{ encoding.CodecV2 }

// NewCodec returns a codec for a listener that serves quotas beside what rest is for.
func NewCodec(rest encoding.CodecV2) encoding.CodecV2 { return codec{rest} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(message); ok {
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	*m = data.Materialize()
	return nil
}

// Server serves streams over gRPC.
type Server struct {
	service     *quotaservice.Service
	age         time.Duration
	verifyEvery time.Duration
	// clientCAs vouch for proxies' certificates; nil = proxies need none.
	clientCAs func() *x509.CertPool
}

// NewServer returns a server for the service. clientCAs vouch for proxies' certificates
// while a stream is open; nil = proxies need none.
func NewServer(s *quotaservice.Service, clientCAs func() *x509.CertPool) *Server {
	return &Server{service: s, age: streamAge, verifyEvery: verifyEvery, clientCAs: clientCAs}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: quota.Service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: quota.Method, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
		Metadata: "quota.proto",
	}, nil)
}

// Run has the service look after its store until ctx ends. What it does there waits for the store, so no task waits
// for another one.
func (s *Server) Run(ctx context.Context) {
	go every(ctx, quotaservice.WatchEvery, s.service.Watch)
	go every(ctx, quotaservice.HeartbeatEvery, s.service.NoteProcesses)
	every(ctx, quotaservice.HeartbeatEvery, s.service.Heartbeat)
}

func every(ctx context.Context, period time.Duration, do func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// conversation is one stream over gRPC: receiveAll takes messages, while sendAll, in another goroutine, sends answers
// and ends the stream. sendAll has the goroutine of the gRPC handler: once that returns, gRPC ends the stream, and with
// it a RecvMsg that waits in receiveAll.
type conversation struct {
	grpc.ServerStream
	asks         *quotaservice.Stream // what the worker asks, and is to be answered
	ready        chan struct{}        // asks.Next may have something
	firstCame    chan struct{}        // closed when the first message has come
	receiveEnded chan error           // why receiveAll has ended
}

func (s *Server) serve(stream grpc.ServerStream) error {
	proxy, address := listener.PeerOf(stream.Context())
	c := conversation{
		ServerStream: stream,
		ready:        make(chan struct{}, 1), firstCame: make(chan struct{}), receiveEnded: make(chan error, 1),
	}
	var err error
	c.asks, err = s.service.Open(quotaservice.Peer{Address: address, Certificate: proxy.Certificate()}, c.signalReady)
	if err != nil {
		return err
	}
	defer c.asks.Close()
	go c.receiveAll()
	return s.sendAll(&c, proxy)
}

// signalReady has the sending goroutine look at Next.
func (c *conversation) signalReady() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// receiveAll takes messages until the stream ends, each when all asks of the last have begun.
func (c *conversation) receiveAll() {
	err := c.receive()
	if err == nil {
		close(c.firstCame)
	}
	for err == nil {
		err = c.receive()
	}
	c.receiveEnded <- err
}

// receive takes the next message.
func (c *conversation) receive() error {
	c.asks.WaitUntilBegun(c.Context())
	var m message
	if err := c.RecvMsg(&m); err != nil {
		return err
	}
	return c.asks.Receive(m)
}

// sendAll sends answers until the stream ends, and returns why.
func (s *Server) sendAll(c *conversation, proxy *listener.Peer) error {
	firstDue := time.NewTimer(firstWithin)
	defer firstDue.Stop()
	tooOld := time.NewTimer(s.age*9/10 + rand.N(s.age/5)) //nolint:gosec // any spread will do
	defer tooOld.Stop()
	untrusted := s.watchTrust(c.Context(), proxy)
	firstCame := c.firstCame
	for {
		select {
		case <-c.ready:
			if err := c.flush(); err != nil {
				return err
			}
			if c.asks.Ending() || s.service.Draining() {
				return c.sendRest(s.service)
			}
		case err := <-c.receiveEnded:
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case s.service.Draining(): // it takes no message more, but has to answer what it took before
				return c.sendRest(s.service)
			}
			return err
		case <-firstCame:
			firstDue.Stop()
			proxy.LetIn()
			firstCame = nil // a closed channel would be chosen again
		case <-firstDue.C:
			return status.Errorf(codes.DeadlineExceeded, "no message within %s", firstWithin)
		case err := <-untrusted:
			return err
		case <-tooOld.C:
			return c.sendRest(s.service)
		case <-c.Context().Done():
			return nil
		}
	}
}

// watchTrust sends why the certificate is not trusted any more. It does not wait for sendAll, which
// a proxy that reads nothing can hold up: see listener.Peer.Verify.
func (s *Server) watchTrust(ctx context.Context, proxy *listener.Peer) <-chan error {
	untrusted := make(chan error, 1)
	if proxy.Certificate() == nil {
		return untrusted
	}
	go every(ctx, s.verifyEvery, func() {
		err := proxy.Verify(s.clientCAs)
		if err == nil {
			return
		}
		select {
		case untrusted <- err:
		default: // it was sent before
		}
	})
	return untrusted
}

// flush sends all answers that there are.
func (c *conversation) flush() error {
	for {
		b, ok := c.asks.Next()
		if !ok {
			return nil
		}
		if err := c.SendMsg(message(b)); err != nil {
			return err
		}
		c.asks.Sent()
	}
}

// sendRest ends the stream once its open asks are answered, or after quotaservice.LastWithin.
func (c *conversation) sendRest(s *quotaservice.Service) error {
	end := time.NewTimer(quotaservice.LastWithin)
	defer end.Stop()
	for !c.asks.Idle() {
		select {
		case <-c.ready:
			if err := c.flush(); err != nil {
				return err
			}
		case <-end.C:
			return goodbye(s)
		case <-c.Context().Done():
			return nil
		}
	}
	return goodbye(s)
}

// goodbye is the status of a stream that the service ends.
func goodbye(s *quotaservice.Service) error {
	if s.Draining() {
		return status.Error(codes.Unavailable, quotaservice.ErrClosed.Error())
	}
	return nil
}
