package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/conns"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// deltaStream is a stream of ECDS and of ADS alike.
type deltaStream interface {
	SendMsg(any) error // of a response
	RecvMsg(any) error // of a request
	Context() context.Context
}

// push is a response that waits for its reply.
type push struct {
	nonce      string
	number     uint64
	withdrawal bool
}

// conversation is one stream: what serve's loop knows beside the session.
type conversation struct {
	*Server
	log        *slog.Logger
	stream     deltaStream
	connection *connection
	address    net.Addr
	session    *session // nil until the first request, which must carry the node
	inFlight   push
	again      <-chan time.Time // when a push that was put off may be made
}

// serve talks to one proxy until either side ends.
func (s *Server) serve(stream deltaStream) error {
	p, ok := peer.FromContext(stream.Context())
	if !ok {
		return status.Error(codes.Internal, "no peer")
	}
	shared := connectionOf(p)
	c := &conversation{Server: s, log: shared.lines.Logger(s.log), stream: stream, connection: shared, address: p.Addr}
	from := conns.Origin(p.Addr.String())
	if err := s.ledger.admit(from); err != nil {
		return c.turnAway(err)
	}
	defer s.ledger.leave(from)
	defer c.end()
	return c.run()
}

// turnAway ends a stream for which there is no room.
func (c *conversation) turnAway(why error) error {
	c.turned.Add(1)
	c.log.Warn("proxy turned away", "address", c.address.String(), "error", why)
	return status.Error(codes.ResourceExhausted, why.Error())
}

func (c *conversation) run() error {
	requests, failed := c.receive()
	late := time.NewTimer(firstWithin)
	defer late.Stop()
	verify := c.verifyAgain()
	for {
		// Taken before looking what is due, so that no change falls in between.
		moved := c.ledger.moves()
		if err := c.pushDue(); err != nil {
			return err
		}
		select {
		case <-c.stop:
			return status.Error(codes.Unavailable, "control plane is shutting down")
		case <-c.stream.Context().Done():
			return nil
		case err := <-failed:
			if errors.Is(err, io.EOF) || c.stream.Context().Err() != nil {
				return nil
			}
			return err
		case r := <-requests:
			late.Stop()
			if err := c.handle(r); err != nil {
				return err
			}
		case <-late.C:
			return status.Errorf(codes.DeadlineExceeded, "no request within %s", firstWithin)
		case <-verify:
			if err := c.verify(); err != nil {
				c.log.Warn("proxy cut off", "address", c.address.String(), "error", status.Convert(err).Message())
				return err
			}
			verify = c.verifyAgain()
		case <-moved:
		case <-c.again:
		}
	}
}

// receive reads requests until the stream ends, as fast as the connection may
// send them.
func (c *conversation) receive() (<-chan request, <-chan error) {
	requests := make(chan request)
	failed := make(chan error, 1)
	ctx := c.stream.Context()
	go func() {
		for {
			var r request
			if err := c.stream.RecvMsg(&r); err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
			if c.connection.slowDown(ctx, r.size) != nil {
				return // the stream has ended
			}
		}
	}()
	return requests, failed
}

func (c *conversation) handle(r request) error {
	switch {
	case c.session == nil:
		if err := c.begin(r.node); err != nil {
			return err
		}
	case r.hasNode && r.node.id != c.session.who.Node:
		return status.Error(codes.InvalidArgument, "the node id has changed: a stream is for one node")
	}
	if r.typeURL != "" && r.typeURL != TypeURL {
		return nil // an aggregated stream also asks for what is not served here
	}
	if r.nonce != "" {
		c.replied(r)
	}
	if r.unsubscribes {
		c.ledger.unsubscribe(c.session)
	}
	if r.subscribes {
		c.subscribe(r.held)
	}
	if len(r.unserved)+len(r.dropped) > 0 {
		c.ledger.asks(c.session, r.unserved, r.dropped)
	}
	// One line for all: how many there are is up to the proxy.
	if r.others > 0 {
		c.log.Warn("proxy asks for resources that are not served", "proxy", c.session.who.Node,
			"count", r.others, "first", r.unserved[0], "served", envoy.ResourceName)
	}
	return nil
}

func (c *conversation) verify() error { return c.connection.verify(c.clientCAs) }

// verifyAgain fires when the certificate has to be verified again, never where
// there is none.
func (c *conversation) verifyAgain() <-chan time.Time {
	chain := c.connection.certificates()
	if chain == nil {
		return nil
	}
	expiry := time.Until(chain[0].NotAfter) + time.Millisecond // it is valid at NotAfter itself
	return time.After(min(c.verifyEvery, expiry))
}

// identity is the proxy's, unless its certificate does not grant the node id.
func (c *conversation) identity(node string) (store.Identity, error) {
	if err := c.verify(); err != nil {
		return store.Identity{}, err
	}
	chain := c.connection.certificates()
	if chain == nil {
		return store.Identity{Node: node}, nil
	}
	name, err := c.identify(chain[0], node)
	if err != nil {
		c.foreign.Add(1)
		return store.Identity{}, status.Error(codes.PermissionDenied, err.Error())
	}
	return store.Identity{Node: node, SAN: name}, nil
}

func (c *conversation) begin(n node) error {
	if err := n.check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	address := c.address.String()
	who, err := c.identity(n.id)
	if err != nil {
		c.log.Warn("proxy refused", "address", address, "error", status.Convert(err).Message())
		return err
	}
	session, dropped, err := c.ledger.open(ownIDs+c.streamIDs.Add(1), who, n, address)
	if err != nil {
		return c.turnAway(err)
	}
	c.session = session
	c.connection.place.Keep(1)
	if err := c.ledger.forgetStored(c.stream.Context(), dropped); err != nil {
		c.log.Error("forget proxies", "error", err)
	}
	c.log.Info("proxy connected", "proxy", who.Node, "san", who.SAN, "address", address, "envoy", n.version)
	return nil
}

func (c *conversation) end() {
	if c.session != nil {
		c.connection.place.Keep(-1)
		c.ledger.close(c.session)
		c.log.Info("proxy disconnected", "proxy", c.session.who.Node, "san", c.session.who.SAN, "address", c.session.peer)
	}
}

// subscribe notes what the proxy reports to hold, which it does only in the first
// request of a stream. A proxy that subscribes again has dropped the resource in
// between and gets it again.
func (c *conversation) subscribe(reported string) {
	held, ahead := uint64(0), uint64(0)
	number, from := heldRevision(reported), c.lineage(reported)
	id := c.session.who.Node
	switch {
	case number > 0 && from == own && c.ledger.isBeyond(number):
		ahead = number
		c.log.Error("this serve is behind: a proxy runs a newer revision of this store and keeps it", "proxy", id, "revision", number)
	case number > 0 && from == foreign:
		c.log.Warn("a proxy comes with a revision of another store, and gets the one of this", "proxy", id, "revision", number)
	}
	if number > 0 && ahead == 0 {
		now, err := c.versionNow(c.stream.Context(), c.session.node, number)
		if err == nil && sameContent(reported, now) {
			held = number
		}
	}
	// What it holds now counts more than what it once refused.
	known := c.ledger.knownOf(c.session)
	if held > 0 && (known.Acked != held || slices.Contains(known.Refused, held)) {
		if err := c.ledger.reported(c.stream.Context(), c.session, held); err != nil {
			c.log.Error("save reply", "proxy", id, "revision", held, "error", err)
		}
	}
	if !c.ledger.subscribe(c.session, held, ahead, reported == "") {
		c.log.Warn("no policy is for a proxy: it keeps what it has", "proxy", id, "san", c.session.who.SAN)
	}
}

// replied counts an ACK or NACK for the push with its nonce. Any other nonce is of
// another stream or made up, and proves nothing.
func (c *conversation) replied(r request) {
	p, id := c.inFlight, c.session.who.Node
	if r.nonce != p.nonce {
		c.log.Warn("reply to an unknown push ignored", "proxy", id, "nonce", printable.Cut(r.nonce, maxShown))
		return
	}
	c.inFlight = push{}
	a := store.Reply{
		SAN: c.session.who.SAN, Node: id, Revision: p.number, Accepted: !r.refused, Text: r.text, At: time.Now().UTC(),
	}
	if a.Accepted {
		c.acks.Add(1)
		c.log.Info("ACK", "proxy", id, "revision", p.number, "withdrawal", p.withdrawal, "nonce", r.nonce)
	} else {
		c.nacks.Add(1)
		c.log.Warn("NACK", "proxy", id, "revision", p.number, "withdrawal", p.withdrawal, "nonce", r.nonce,
			"text", a.Text)
	}
	if err := c.ledger.replied(c.stream.Context(), c.session, a); err != nil {
		c.log.Error("save reply", "proxy", id, "revision", p.number, "error", err)
	}
}

// pushDue sends what is due, one resource in one response.
func (c *conversation) pushDue() error {
	if c.session == nil {
		return nil
	}
	number, ok := c.ledger.wanted(c.session)
	if !ok {
		return nil
	}
	if wait := c.connection.reservePush(number); wait > 0 {
		c.again = time.After(wait)
		return nil
	}
	due, ok := c.ledger.startPush(c.session)
	if !ok {
		return nil
	}
	number = due.number
	id, nonce := c.session.who.Node, c.nonces.next()
	p, err := c.payload(c.stream.Context(), c.session.node, number, c.nonces.tag(due.era, due.times))
	var message response
	if err == nil {
		message, err = newResponse(p, nonce)
	}
	switch {
	case errors.Is(err, store.ErrDamaged):
		if c.ledger.withdraw(number) {
			c.logDamage(number)
		}
		return nil
	case err != nil:
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
	c.log.Info(text, "proxy", id, "revision", number, "version", p.version, "nonce", nonce)
	return c.stream.SendMsg(message)
}

func (c *conversation) unsent(number uint64, why error) {
	if errors.Is(why, envoy.ErrNoWasm) {
		why = errors.New("no path of the filter's wasm binary: " +
			"give serve --wasm, apply --wasm, or sluice.wasm in the node's metadata")
	}
	c.log.Error("cannot push", "proxy", c.session.who.Node, "revision", number, "error", why)
	c.ledger.unsent(c.session, number, why)
}
