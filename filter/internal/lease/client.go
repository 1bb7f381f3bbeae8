// Package lease is the source of units of rules that hold over all proxies. It asks the quota
// service for units, keeps those that may be spent later in a table of leases (Source), or
// reports what running requests hold (HoldSource). Client is one worker's talk with the
// service: which requests wait for which units, what is asked when, and when the service
// counts as silent.
//
// A grant has four types on its way: quota.Grant on the wire, grant while requests take from it,
// decide.Grant as one of these requests has it, and state.Grant for what is left in the table.
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
package lease

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	lateNs       = 10_000_000_000 // after which a result is no longer awaited
)

// Client is one worker's side of the talk. Its zero value is not ready: use NewClient. Every
// callback that has called it ends with Flush.
//
// An ask is queued, packed into a message and sent, and gets its result. Requests join a queued ask for
// the same units. While an ask flies, no other for the same units is sent; after the timeout it
// flies no longer, but a late result still counts.
type Client struct {
	transport Transport
	worker    *Worker

	stream   stream // number 0 = none is open
	reopenNs int64  // not before
	pauseNs  int64  // between tries to open
	heardNs  int64  // when the last message of the service came
	sentNs   int64  // when the last message with asks left to which nothing has come; 0 = none
	tickNs   int64  // when the last tick was
	stalled  bool   // a late tick has given the service more time

	queue   []*ask          // asks to be sent, in their order
	queued  map[string]*ask // the same, by what they want
	sending []*ask          // memory for those of one message
	sent    []*ask          // without a result, by their numbers
	flying  map[string]*ask // those of them that are not abandoned, by what they want
	lastID  uint32          // of the newest that was sent
	returns []quota.Return  // to be sent

	waiters map[uint32]*Waiter // by their contexts
	order   []*Waiter          // as they came, some of them decided since
	ready   []*Waiter          // to be decided, some of them forgotten since
	next    int                // of the ready ones: those before it are decided

	// Memory:
	asks    quota.Asks
	grants  quota.Results
	message []byte
	key     []byte
}

// ask is what the service is asked for by requests that want the same units. If nobody
// waits for it, it is for requests to come, or a report.
type ask struct {
	id      uint32
	key     string // what it wants: see Client.keyOf
	parts   []Part
	waiters []*Waiter
	sentNs  int64
	stream  uint32 // on which it was sent
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
		queued: map[string]*ask{}, flying: map[string]*ask{}, waiters: map[uint32]*Waiter{},
	}
}

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waiters) > 0 }

// Wait makes a request wait for the units of its pending verdict, which stays as it is until
// Done or Forget: Engine.Keep must have kept it. A request that Next has returned may have to
// wait again.
func (c *Client) Wait(context uint32, v *decide.Verdict, now int64) {
	w := c.waiters[context]
	if w == nil {
		w = &Waiter{Context: context, Verdict: v, deadlineNs: now + c.worker.TimeoutNs}
		c.waiters[context] = w
		c.order = append(c.order, w)
		c.worker.crowded = len(c.waiters) >= maxWaiters
		w.setWait(decide.Waits)
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending {
				s.Rule.Metrics.Waited++
			}
		}
	}
	kept := c.keepGranted(w.parts)
	w.parts = c.worker.AppendParts(kept, v)
	c.want(w.parts[len(kept):], w)
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
func (w *Waiter) setWait(to decide.Wait) {
	for _, s := range w.Verdict.Subjects {
		s.Quota.Wait = to
	}
}

// Next returns a request that has its grant, or has waited for too long, to be decided
// again: then it is Done, or has to Wait again. nil if there is none.
func (c *Client) Next() *Waiter {
	for c.next < len(c.ready) {
		w := c.ready[c.next]
		c.next++
		if !w.over {
			return w
		}
	}
	clear(c.ready)
	c.ready, c.next = c.ready[:0], 0
	return nil
}

// Done ends the wait of a request that is decided. What it has got and not taken goes back.
func (c *Client) Done(w *Waiter) {
	for i := range w.parts {
		c.release(&w.parts[i])
	}
	w.over = true
	delete(c.waiters, w.Context)
	c.worker.crowded = len(c.waiters) >= maxWaiters
}

// Forget ends the wait of a request that has ended. It returns its verdict, nil if it does
// not wait.
func (c *Client) Forget(context uint32) *decide.Verdict {
	w := c.waiters[context]
	if w == nil {
		return nil
	}
	c.Done(w)
	c.leave(w)
	return w.Verdict
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

// want queues an ask for the parts of a waiter, of nil for requests to come and reports, or
// joins the one that is queued.
func (c *Client) want(parts []Part, w *Waiter) {
	key := c.keyOf(parts)
	a := c.queued[string(key)]
	switch {
	case a == nil:
		a = &ask{key: string(key), parts: slices.Clone(parts)}
		c.enqueue(a, w == nil)
	case w != nil:
		a.join(parts)
	}
	if w != nil {
		a.waiters, w.ask = append(a.waiters, w), a
	}
}

// keyOf says what the parts want. Of rules that count denied requests that is also the cost.
func (c *Client) keyOf(parts []Part) []byte {
	c.key = c.key[:0]
	for i := range parts {
		p := &parts[i]
		c.key = binary.LittleEndian.AppendUint32(c.key, p.Definition)
		c.key = append(c.key, p.Key[:]...)
		if p.countsDenied() {
			c.key = binary.LittleEndian.AppendUint32(c.key, p.Cost)
		}
	}
	return c.key
}

// enqueue queues an ask, one for requests to come before first contacts.
func (c *Client) enqueue(a *ask, first bool) {
	c.queued[a.key], c.queue = a, append(c.queue, a)
	if first {
		copy(c.queue[1:], c.queue)
		c.queue[0] = a
	}
}

// join adds what another request needs to the ask.
func (a *ask) join(parts []Part) {
	for i := range a.parts {
		p := &a.parts[i]
		if len(a.waiters) == 0 { // the cost is that of the first
			p.Cost = parts[i].Cost
		}
		p.Waiting = limit.AddSaturating(p.Waiting, parts[i].Cost)
	}
}

// unqueue takes an ask from the queue. What it would have reported is reported otherwise.
func (c *Client) unqueue(a *ask) {
	delete(c.queued, a.key)
	c.queue = slices.DeleteFunc(c.queue, func(other *ask) bool { return other == a })
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.Changed() {
			c.worker.accounts.markDue(acc)
		}
	}
}

// requeue queues an ask again for which somebody waits.
func (c *Client) requeue(a *ask) {
	if len(a.waiters) == 0 {
		return
	}
	next := c.queued[a.key]
	if next == nil {
		c.enqueue(a, false)
		return
	}
	for _, w := range a.waiters {
		w.ask = next
	}
	for i := range next.parts {
		p, q := &next.parts[i], &a.parts[i]
		p.Cost, p.Waiting = q.Cost, limit.AddSaturating(p.Waiting, q.Waiting)
	}
	next.waiters = append(a.waiters, next.waiters...)
}

// leave has a request wait for its ask no longer.
func (c *Client) leave(w *Waiter) {
	a := w.ask
	if a == nil {
		return
	}
	w.ask = nil
	a.waiters = slices.DeleteFunc(a.waiters, func(other *Waiter) bool { return other == w })
	if len(a.waiters) == 0 && c.queued[a.key] == a {
		c.unqueue(a)
	}
}

// expire makes a request ready that has waited for too long.
func (c *Client) expire(w *Waiter) {
	c.leave(w)
	w.setWait(decide.TimedOut)
	c.ready = append(c.ready, w)
}

// expireAll makes requests ready whose time is over, all of them while the service is silent.
func (c *Client) expireAll(now int64) {
	c.order = slices.DeleteFunc(c.order, func(w *Waiter) bool {
		if w.ask != nil && (c.worker.Silent || now >= w.deadlineNs) {
			c.expire(w)
		}
		return w.over
	})
}

// End makes all requests ready, to be decided without the service: the configuration ends.
func (c *Client) End() {
	for _, w := range c.order {
		if w.ask != nil {
			c.expire(w)
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
