package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
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

// conversation is one stream: what serve's loop knows beside the session.
type conversation struct {
	*Server
	log       *slog.Logger
	noisy     *slog.Logger // for what a proxy can make it write as often as it likes
	stream    deltaStream
	peer      *listener.Peer
	address   string
	session   *session     // nil until the first request, which must carry the node
	untrusted <-chan error // why the certificate is not trusted any more, nil before the session
	awaited   push         // the one that waits for its reply, zero if none does
}

// push is a revision on its way to the proxy.
type push struct {
	nonce      string
	revision   uint64
	withdrawal bool // of a refused one
}

// serve talks to one proxy until either side ends.
func (s *Server) serve(stream deltaStream) error {
	peer, address := listener.PeerOf(stream.Context())
	c := &conversation{Server: s, log: s.Log, noisy: s.noisy, stream: stream, peer: peer, address: address}
	defer c.end()
	return c.run()
}

// run handles requests, and pushes whatever is due.
func (c *conversation) run() error {
	requests, failed := c.receive()
	late := time.NewTimer(firstWithin)
	defer late.Stop()
	for {
		// Taken before looking what is due, so that no change falls in between.
		moved := c.ledger.moves()
		if err := c.pushDue(); err != nil {
			return err
		}
		select {
		case <-c.stop.Done():
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
		case err := <-c.untrusted:
			return err
		case <-moved:
		}
	}
}

// receive reads requests until the stream ends.
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
		}
	}()
	return requests, failed
}

// handle handles a request. The first one says who the proxy is.
func (c *conversation) handle(r request) error {
	switch {
	case c.session == nil:
		if err := c.begin(r.node); err != nil {
			return err
		}
	case r.hasNode && r.node.Place.Node != c.session.Place.Node:
		return status.Error(codes.InvalidArgument, "the node id has changed: a stream is for one node")
	}
	if r.typeURL != "" && r.typeURL != TypeURL {
		return nil // an aggregated stream also asks for what is not served here
	}
	if r.nonce != "" {
		c.reply(r)
	}
	if r.unsubscribes {
		c.ledger.change(func() { c.session.Subscribed = false })
	}
	if r.subscribes {
		c.subscribe(r.held)
	}
	if len(r.unserved)+len(r.dropped) > 0 {
		c.ledger.asks(c.session, r.unserved, r.dropped)
	}
	// One line for all: how many there are is up to the proxy.
	if r.others > 0 {
		c.noisy.Warn("proxy asks for resources that are not served",
			"count", r.others, "first", r.unserved[0], "served", envoy.ResourceName)
	}
	return nil
}

func (c *conversation) verify() error { return c.peer.Verify(c.ClientCAs) }

// watchTrust sends why the certificate is not trusted any more. It does not wait for the loop,
// which a proxy that reads nothing can hold up: see listener.Peer.Verify.
func (c *conversation) watchTrust() <-chan error {
	untrusted := make(chan error, 1)
	if c.peer.Certificate() == nil {
		return untrusted
	}
	go func() {
		for {
			select {
			case <-c.stream.Context().Done():
				return
			case <-c.verifyAgain():
			}
			if err := c.verify(); err != nil {
				c.log.Warn("proxy cut off", "address", c.address, "error", status.Convert(err).Message())
				untrusted <- err
				return
			}
		}
	}()
	return untrusted
}

// verifyAgain fires when the certificate has to be verified again, never where
// there is none.
func (c *conversation) verifyAgain() <-chan time.Time {
	certificate := c.peer.Certificate()
	if certificate == nil {
		return nil
	}
	expiry := time.Until(certificate.NotAfter) + time.Millisecond // it is valid at NotAfter itself
	return time.After(min(c.verifyEvery, expiry))
}

// identify finds the name in the proxy's certificate, if any, that grants its node id.
func (c *conversation) identify(n *node) (err error) {
	if err := c.verify(); err != nil {
		return err
	}
	certificate := c.peer.Certificate()
	if certificate == nil {
		return nil
	}
	n.Place.SAN, err = c.Identify(certificate, n.Place.Node)
	if err != nil {
		c.Foreign.Add(1)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}

// begin opens the session of a proxy that may have its node id.
func (c *conversation) begin(n node) error {
	if err := n.check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := c.identify(&n); err != nil {
		c.noisy.Warn("proxy refused", "address", c.address, "error", status.Convert(err).Message())
		return err
	}
	c.peer.LetIn()
	session, dropped := c.ledger.open(ownIDs+c.streamIDs.Add(1), n, c.address)
	c.session = session
	if err := c.ledger.forgetStored(c.stream.Context(), dropped); err != nil {
		c.log.Error("forget proxies", "error", err)
	}
	c.log, c.noisy = c.log.With("proxy", n.Place.Node), c.noisy.With("proxy", n.Place.Node)
	c.untrusted = c.watchTrust()
	c.log.Info("proxy connected", "san", n.Place.SAN, "address", c.address, "envoy", n.Version)
	return nil
}

func (c *conversation) end() {
	if c.session != nil {
		c.ledger.close(c.session)
		c.log.Info("proxy disconnected", "san", c.session.Place.SAN, "address", c.session.Peer)
	}
}

// subscribe notes what the proxy reports to hold, which it does only in the first
// request of a stream. A proxy that subscribes again has dropped the resource in
// between and gets it again.
func (c *conversation) subscribe(reported string) {
	known, last := c.ledger.knownOf(c.session)
	held, ahead := uint64(0), uint64(0)
	switch number, has, own := c.held(reported); {
	case number == 0:
	case own && number > last:
		ahead = number
		c.log.Error("this serve is behind: a proxy runs a newer revision of this store and keeps it",
			"revision", number)
	case c.isNow(number, has):
		held = number
	case !own:
		c.noisy.Warn("a proxy comes with a revision of another store, and gets the one of this", "revision", number)
	}
	// What it holds now counts more than what it once refused.
	if held > 0 && (known.Acked != held || slices.Contains(known.Refused, held)) {
		c.recordOrLog(store.Reply{Revision: held, Accepted: true}, false)
	}
	if !c.ledger.subscribe(c.session, held, ahead, reported == "") {
		c.noisy.Warn("no policy is for a proxy: it keeps what it has", "san", c.session.Place.SAN)
	}
}

// isNow says whether this server would push the proxy the revision with that digest.
func (c *conversation) isNow(number uint64, has string) bool {
	r, err := c.readPushable(c.stream.Context(), number)
	return err == nil && has == digest(r, c.plugin(r, &c.session.node))
}

// reply records the ACK or NACK of the push with its nonce. Any other nonce is of another
// stream or made up, and proves nothing.
func (c *conversation) reply(r request) {
	of := c.awaited
	if r.nonce != of.nonce {
		c.noisy.Warn("reply to an unknown push ignored", "nonce", printable.Cut(r.nonce, maxShown))
		return
	}
	c.awaited = push{}
	log := c.log.With("revision", of.revision, "withdrawal", of.withdrawal, "nonce", of.nonce)
	if r.refused {
		c.Nacks.Add(1)
		log.Warn("NACK", "text", r.text)
	} else {
		c.Acks.Add(1)
		log.Info("ACK")
	}
	c.recordOrLog(store.Reply{Revision: of.revision, Accepted: !r.refused, Text: r.text}, true)
}

// recordOrLog records a reply, see Ledger.record, and logs an error of that.
func (c *conversation) recordOrLog(r store.Reply, toPush bool) {
	if err := c.ledger.record(c.stream.Context(), c.session, r, toPush); err != nil {
		c.log.Error("save reply", "revision", r.Revision, "error", err)
	}
}

// pushDue sends what is due, one resource in one response.
func (c *conversation) pushDue() error {
	if c.session == nil {
		return nil
	}
	number, withdrawal := c.ledger.wanted(c.session)
	if number == 0 {
		return nil
	}
	nonce := c.newNonce()
	written, err := c.write(number, nonce)
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
	c.awaited = push{nonce, number, withdrawal}
	c.ledger.change(func() {
		s := c.session
		s.Pushed, s.InFlight = number, true
		s.Unsendable, s.Problem = 0, ""
	})
	c.Pushes.Add(1)
	text := "pushed"
	if withdrawal {
		text = "refused revision withdrawn, pushed the last good one"
	}
	c.log.Info(text, "revision", number, "version", written.version, "nonce", nonce)
	return c.stream.SendMsg(written)
}

// write writes a revision for the proxy. The nonce is also its tag: so no push has the bytes of
// another.
func (c *conversation) write(number uint64, nonce string) (response, error) {
	r, err := c.readPushable(c.stream.Context(), number)
	if err != nil {
		return response{}, err
	}
	return newResponse(c.plugin(r, &c.session.node), r, nonce)
}

// unsent notes why a revision cannot be written for the proxy.
func (c *conversation) unsent(number uint64, why error) {
	if errors.Is(why, envoy.ErrNoWasm) {
		why = errors.New("no path of the filter's wasm binary: " +
			"give serve --wasm, apply --wasm, or sluice.wasm in the node's metadata")
	}
	c.log.Error("cannot push", "revision", number, "error", why)
	c.ledger.change(func() { c.session.Unsendable, c.session.Problem = number, why.Error() })
}
