package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// deltaStream is a stream of ECDS and of ADS alike.
type deltaStream interface {
	SendMsg(any) error // of a response
	Recv() (*discoveryv3.DeltaDiscoveryRequest, error)
	Context() context.Context
}

// push is a response that waits for its answer.
type push struct {
	nonce      string
	number     uint64
	withdrawal bool
}

// maxNackText bounds what is kept of a proxy's words; Envoy cuts them there too.
const maxNackText = 4096

// conversation is one stream: what serve's loop knows besides the session.
type conversation struct {
	*Server
	stream   deltaStream
	session  *session // nil until the first request, which alone must carry the node
	inFlight push
}

// serve talks to one proxy until either side ends.
func (s *Server) serve(stream deltaStream) error {
	c := &conversation{Server: s, stream: stream}
	defer c.end()
	requests, failed := receive(stream)
	for {
		// Taken before looking what is due, so that no change falls in between.
		moved := s.ledger.moves()
		if err := c.pushDue(); err != nil {
			return err
		}
		select {
		case <-s.stop:
			return status.Error(codes.Unavailable, "control plane is shutting down")
		case <-stream.Context().Done():
			return nil
		case err := <-failed:
			if errors.Is(err, io.EOF) || stream.Context().Err() != nil {
				return nil
			}
			return err
		case r := <-requests:
			if err := c.handle(r); err != nil {
				return err
			}
		case <-moved:
		}
	}
}

// receive reads requests until the stream ends.
func receive(stream deltaStream) (<-chan *discoveryv3.DeltaDiscoveryRequest, <-chan error) {
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	failed := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return requests, failed
}

func (c *conversation) handle(r *discoveryv3.DeltaDiscoveryRequest) error {
	if c.session == nil {
		if err := c.begin(r.GetNode()); err != nil {
			return err
		}
	}
	if t := r.GetTypeUrl(); t != "" && t != TypeURL {
		return nil // an aggregated stream also asks for what is not served here
	}
	if nonce := r.GetResponseNonce(); nonce != "" {
		c.answer(r, nonce)
	}
	if slices.Contains(r.GetResourceNamesUnsubscribe(), envoy.ResourceName) {
		c.ledger.unsubscribe(c.session)
	}
	served := func(name string) bool { return name == envoy.ResourceName || name == "*" }
	names := r.GetResourceNamesSubscribe()
	if slices.ContainsFunc(names, served) {
		c.subscribe(r.GetInitialResourceVersions()[envoy.ResourceName])
	}
	// One line for all: how many there are is up to the proxy.
	if others := slices.DeleteFunc(slices.Clone(names), served); len(others) > 0 {
		c.log.Warn("proxy asks for resources that are not served", "proxy", c.session.node.id,
			"count", len(others), "first", brief(others[0]), "served", envoy.ResourceName)
	}
	return nil
}

// brief cuts what a proxy made up to what a log line can bear.
func brief(text string) string { return strings.ToValidUTF8(text[:min(len(text), 100)], "") }

func (c *conversation) begin(n *corev3.Node) error {
	d, err := nodeOf(n)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	address := ""
	if p, ok := peer.FromContext(c.stream.Context()); ok {
		address = p.Addr.String()
	}
	session, dropped, err := c.ledger.open(c.streamIDs.Add(1), d, address)
	if err != nil {
		c.log.Warn("proxy turned away", "proxy", d.id, "address", address, "error", err)
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	c.session = session
	if err := c.ledger.forgetStored(c.stream.Context(), dropped); err != nil {
		c.log.Error("forget proxies", "error", err)
	}
	c.log.Info("proxy connected", "proxy", d.id, "address", address, "envoy", d.version)
	return nil
}

func (c *conversation) end() {
	if c.session != nil {
		c.ledger.close(c.session)
		c.log.Info("proxy disconnected", "proxy", c.session.node.id, "address", c.session.peer)
	}
}

// subscribe takes what the proxy says it holds, which it says only in the
// first request of a stream. A name that is subscribed again was dropped in
// between, and is sent again.
func (c *conversation) subscribe(reported string) {
	held := uint64(0)
	if number := heldRevision(reported); number > 0 {
		now, err := c.versionNow(c.stream.Context(), c.session.node, number)
		if err == nil && sameContent(reported, now) {
			held = number
		}
	}
	known := c.ledger.knownOf(c.session)
	if held > 0 && !known.Unsettled && known.Acked != held {
		if err := c.ledger.reported(c.stream.Context(), c.session, held); err != nil {
			c.log.Error("book answer", "proxy", c.session.node.id, "revision", held, "error", err)
		}
	}
	c.ledger.subscribe(c.session, held, reported == "")
}

// answer books an ACK or NACK against the push with its nonce. Any other nonce
// is of another stream or made up, and proves nothing.
func (c *conversation) answer(r *discoveryv3.DeltaDiscoveryRequest, nonce string) {
	p, id := c.inFlight, c.session.node.id
	if nonce != p.nonce {
		c.log.Warn("answer to an unknown push ignored", "proxy", id, "nonce", brief(nonce))
		return
	}
	c.inFlight = push{}
	a := store.Answer{Node: id, Revision: p.number, Accepted: r.GetErrorDetail() == nil, At: time.Now().UTC()}
	if a.Accepted {
		c.acks.Add(1)
		c.log.Info("ACK", "proxy", id, "revision", p.number, "withdrawal", p.withdrawal, "nonce", nonce)
	} else {
		a.Text = r.GetErrorDetail().GetMessage()
		a.Text = strings.ToValidUTF8(a.Text[:min(len(a.Text), maxNackText)], "")
		c.nacks.Add(1)
		c.log.Warn("NACK", "proxy", id, "revision", p.number, "withdrawal", p.withdrawal, "nonce", nonce,
			"text", a.Text)
	}
	if err := c.ledger.answered(c.stream.Context(), c.session, a); err != nil {
		c.log.Error("book answer", "proxy", id, "revision", p.number, "error", err)
	}
}

// pushDue sends what is due, one resource in one response.
func (c *conversation) pushDue() error {
	if c.session == nil {
		return nil
	}
	due, ok := c.ledger.due(c.session)
	if !ok {
		return nil
	}
	id, number, nonce := c.session.node.id, due.number, c.nonces.next()
	e, err := c.edition(c.stream.Context(), c.session.node, number, c.nonces.stamp(due.era, due.times))
	if errors.Is(err, store.ErrDamaged) {
		if c.ledger.withdraw(number) {
			c.logDamage(number)
		}
		return nil
	}
	if err != nil {
		c.unsent(number, err)
		return nil
	}
	message, err := newResponse(e, nonce)
	if err != nil {
		c.unsent(number, err)
		return nil
	}
	c.inFlight = push{nonce: nonce, number: number, withdrawal: due.withdrawal}
	c.ledger.sent(c.session, number)
	c.pushes.Add(1)
	text := "pushed"
	if due.withdrawal {
		text = "refused revision withdrawn, pushed the last good one"
	}
	c.log.Info(text, "proxy", id, "revision", number, "version", e.version, "nonce", nonce)
	return c.stream.SendMsg(message)
}

func (c *conversation) unsent(number uint64, why error) {
	if errors.Is(why, envoy.ErrNoWasm) {
		why = errors.New("no path of the filter's wasm binary: give serve --wasm, apply --wasm, or sluice.wasm in the node's metadata")
	}
	c.log.Error("cannot push", "proxy", c.session.node.id, "revision", number, "error", why)
	c.ledger.unsent(c.session, number, why)
}
