// Package lease is the source of units of rules that hold over all proxies. It asks the quota
// service for units, keeps those that may be spent later in a table of leases (Source), or
// reports what running requests hold (HoldSource). Client is one worker's talk with the
// service: which requests wait for which units, what is asked when, and when the service
// counts as silent.
//
// A grant has four types on its way: quota.Grant on the wire, grant while requests take from it,
// decide.Grant as one of these requests has it, and state.GrantLeft for what is left in the table.
//
// There are two clocks. now is always the monotonic one, by which leases end and requests wait.
// wallNs is the wall clock, by which windows are counted: it is what package decide calls now.
//
// Its invariant: a unit is spent once, and before its lease ends by the monotonic clock.
// Every request that waits is decided within the timeout and a tick, whatever the service,
// the network or the client does. What a request carries from one call to the next is in its
// decide.Subject. The package calls nobody but the proxy's stream (Transport) and the tables:
// it must never import packages engine or host.
//
// A request: Source.Check finds too few units, Client.Wait queues an ask, Client.Flush sends
// it, Client.Receive writes the grant to the waiting Subjects and the rest to the table, and
// Client.Next returns the request to be decided again.
//
// To read it, follow such a request:
//
//	source.go    check and take
//	client.go    requests that wait
//	ask.go       the life of an ask, and what it is made of
//	stream.go    what is sent when, and whether the service answers
//	grant.go     what becomes of a grant
//	returns.go   idle units go back
//	worker.go    what all this has in common, and how a proxy decides while the service is silent
//
// For rules that hold units, holds.go is in the place of source.go, and accounts.go in that of the
// table: what a worker holds, and reports.
//
// Each type has one name for its variables: c is a Client, w a Worker, src a source of either kind,
// req a request that waits, a an ask, p a Part of it, g a grant, acc an account, accs the accounts,
// ret a returnable grant, s a decide.Subject, l a state.Lease and e its entry.
package lease

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Transport is the proxy's stream to the quota service.
type Transport interface {
	// Open opens a stream and reports whether it may be used.
	Open() bool
	// Send sends a message on the open stream and reports whether the proxy took it.
	Send(message []byte) bool
	// Cancel ends the open stream; no callback of it follows.
	Cancel()
	// Random returns a random number.
	Random() uint32
}

const (
	maxWaiters = 1024 // requests that wait
	maxRefills = 1024 // asks that are queued when one for requests to come is dropped
	maxReturns = 1024 // grants of which one message returns units
	// MaxResumed is how many requests one callback may let go on: Envoy resumes a request
	// inside the call, and 300 of them have overflowed a VM's stack.
	MaxResumed = 64

	firstPauseNs = 10_000_000     // between the first two tries to open a stream
	maxPauseNs   = 1_000_000_000  // between later ones
	minReturnNs  = 50_000_000     // between two ticks that look for idle units
	lateNs       = 10_000_000_000 // after which the result of an ask counts no longer
)

// Client is one worker's side of the talk. Its zero value is not ready: use NewClient. Every
// callback that has called it ends with Flush.
type Client struct {
	transport Transport
	worker    *Worker

	stream   stream
	reopenNs int64 // while it is closed: when the next may be opened
	pauseNs  int64 // until then, from the next close on: see backOff
	tickNs   int64 // when the last tick was
	stalled  bool  // a late tick has given the service more time, and nothing has come since

	// An ask is in one of these two, until it has its result.
	queue   askQueue
	sent    sentAsks
	lastID  uint32         // of the ask that was sent last
	returns []quota.Return // to be sent

	// A request is in waiters until it is decided. In this time it either waits for an ask
	// (Waiter.ask), or is among the ready ones.
	waiters map[uint32]*Waiter // by their contexts
	order   []*Waiter          // the same, as they came; Tick removes those that are over
	ready   []*Waiter          // to be decided; Next passes over those that are over
	next    int                // index in ready: Next has returned those before it

	// Memory:
	packed  []*ask // asks in the message that is being made
	asks    quota.Asks
	grants  quota.Results
	message []byte
	want    []byte
}

// Waiter is a request that waits.
type Waiter struct {
	Context uint32
	Verdict *decide.Verdict

	deadlineNs int64
	parts      []Part // what it has asked for
	ask        *ask   // that it waits for, nil once it is ready
	over       bool   // it is decided, or has ended
}

// NewClient returns a client of a worker with cluster rules.
func NewClient(t Transport, w *Worker) *Client {
	w.accounts.worker = uint64(t.Random())<<32 | uint64(t.Random())
	return &Client{
		transport: t, worker: w, stream: stream{defined: map[uint32]bool{}}, pauseNs: firstPauseNs,
		queue: askQueue{byWant: map[string]*ask{}}, sent: sentAsks{flying: map[string]*ask{}},
		waiters: map[uint32]*Waiter{},
	}
}

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waiters) > 0 }

// Wait makes a request wait for the units of its pending verdict, which stays as it is until
// Done or Forget: Engine.Keep must have kept it. A request that Next has returned may have to
// wait again.
func (c *Client) Wait(context uint32, v *decide.Verdict, now int64) {
	req := c.waiters[context]
	if req == nil {
		req = &Waiter{Context: context, Verdict: v, deadlineNs: now + c.worker.TimeoutNs}
		c.waiters[context] = req
		c.order = append(c.order, req)
		c.worker.crowded = len(c.waiters) >= maxWaiters
		req.setWait(decide.Waits)
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending {
				s.Rule.Metrics.Waited++
			}
		}
	}
	kept := c.keepGranted(req.parts)
	req.parts = c.worker.AppendParts(kept, v)
	c.queueAsk(req.parts[len(kept):], req)
}

// keepGranted returns the parts of a request that waits again, without those that it must not hold.
func (c *Client) keepGranted(parts []Part) []Part {
	kept := parts[:0]
	for i := range parts {
		switch p := &parts[i]; {
		case p.subject.Outcome == decide.Pending: // its grant did not suffice: it is asked for anew
			c.release(p)
			p.subject.Quota.Grant.Received = false
		case p.grant != nil: // the request takes its units once the other parts have theirs
			kept = append(kept, *p)
		default: // it needs no grant any more: the rule has found units elsewhere, or does without
		}
	}
	return kept
}

// setWait says what the request may still wait for.
func (req *Waiter) setWait(to decide.Wait) {
	for _, s := range req.Verdict.Subjects {
		s.Quota.Wait = to
	}
}

// Next returns a request that has its grant, or has waited for too long, to be decided
// again: then it is Done, or has to Wait again. nil if there is none.
func (c *Client) Next() *Waiter {
	for c.next < len(c.ready) {
		req := c.ready[c.next]
		c.next++
		if !req.over {
			return req
		}
	}
	clear(c.ready)
	c.ready, c.next = c.ready[:0], 0
	return nil
}

// Done ends the wait of a request that is decided. What it has got and not taken goes back.
func (c *Client) Done(req *Waiter) {
	for i := range req.parts {
		c.release(&req.parts[i])
	}
	req.over = true
	delete(c.waiters, req.Context)
	c.worker.crowded = len(c.waiters) >= maxWaiters
}

// Forget ends the wait of a request that has ended. It returns its verdict, nil if it does
// not wait.
func (c *Client) Forget(context uint32) *decide.Verdict {
	req := c.waiters[context]
	if req == nil {
		return nil
	}
	c.Done(req)
	c.leave(req)
	return req.Verdict
}

// release lets go of what the request has got by one part and not taken.
func (c *Client) release(p *Part) {
	if p.grant == nil || p.grant.Denied {
		return
	}
	own := &p.subject.Quota.Grant
	units := own.Units
	own.Units = 0
	if p.account != nil {
		p.account.Given -= units
		c.worker.accounts.markDue(p.account)
		return
	}
	c.giveBack(p.grant.release(units), p.grant.stream)
}

// giveBack gives units back with the next message, on the stream that got them or not at
// all.
func (c *Client) giveBack(r quota.Return, stream uint32) {
	if r.Grant > 0 && r.Units > 0 && stream == c.stream.number {
		c.returns = append(c.returns, r)
	}
}

// leave has a request wait for its ask no longer.
func (c *Client) leave(req *Waiter) {
	a := req.ask
	if a == nil {
		return
	}
	req.ask = nil
	a.waiters = slices.DeleteFunc(a.waiters, func(other *Waiter) bool { return other == req })
	if len(a.waiters) == 0 && c.queue.byWant[a.want] == a {
		c.unqueue(a)
	}
}

// expire makes a request ready that has waited for too long.
func (c *Client) expire(req *Waiter) {
	c.leave(req)
	req.setWait(decide.TimedOut)
	c.ready = append(c.ready, req)
}

// expireAll makes requests ready whose time is over, all of them while the service is silent.
func (c *Client) expireAll(now int64) {
	c.order = slices.DeleteFunc(c.order, func(req *Waiter) bool {
		if req.ask != nil && (c.worker.Silent || now >= req.deadlineNs) {
			c.expire(req)
		}
		return req.over
	})
}

// End makes all requests ready, to be decided without the service: the configuration ends.
func (c *Client) End() {
	for _, req := range c.order {
		if req.ask != nil {
			c.expire(req)
		}
	}
}

// Close ends the stream.
func (c *Client) Close() {
	if c.stream.number != 0 {
		c.transport.Cancel()
		c.stream.number = 0
	}
}
