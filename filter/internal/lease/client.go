// Package lease is the source of units of rules that hold over all proxies: units that
// this proxy has leased from the quota service. It keeps the table of leases (Source), the
// grants that go back (Worker), and one worker's talk with the service (Client): which
// requests wait for which units, what is asked when, and when the service counts as silent.
//
// Its invariant: a unit is spent once, and before its lease ends by the monotonic clock.
// Every request that waits is decided within the timeout and a tick, whatever the service,
// the network or the client does. It knows the proxy as the small Host interface only.
package lease

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Host is what the client needs of the proxy.
type Host interface {
	// Open opens a stream to the quota service and reports whether it may be used.
	Open() bool
	// Send sends a message on the open stream and reports whether the proxy took it.
	Send(message []byte) bool
	// Cancel ends the open stream; no callback of it follows.
	Cancel()
	// Resume goes on with a request that has waited, where it stopped. It reports whether
	// the request is answered or goes on: otherwise it has to wait again.
	Resume(context uint32, v *decide.Verdict) bool
	// Free takes back the verdict of a request that waits no longer.
	Free(v *decide.Verdict)
	// Random returns a random number.
	Random() uint32
}

const (
	maxWaiters = 1024
	maxRefills = 1024
	// maxResumed is how many requests one callback resumes: Envoy resumes a request
	// inside the call, and 300 of them have overflowed a VM's stack.
	maxResumed = 64
	// maxReturns is how many grants one message returns.
	maxReturns = 1024

	firstPauseNs = 10_000_000
	maxPauseNs   = 1_000_000_000
	minReturnNs  = 50_000_000
	lateNs       = 10_000_000_000
)

// Client is one worker's side of the talk. Its zero value is not ready: use NewClient.
type Client struct {
	host   Host
	worker *Worker

	stream   stream // number 0 = none is open
	reopenNs int64  // not before
	pauseNs  int64  // between tries to open
	heardNs  int64  // when the service last said something
	sentNs   int64  // when the last message with asks left to which nothing has come; 0 = none
	tickNs   int64  // when the last tick was
	stalled  bool   // a late tick has given the service more time

	queue   []*ask          // to be sent
	sending []*ask          // memory for those of one message
	queued  map[string]*ask // of the queue, by what they want
	flying  map[string]*ask // sent and not abandoned, by what they want
	sent    []*ask          // by their numbers, without an answer
	lastID  uint32
	returns []quota.Return

	waiters  map[uint32]*waiter
	order    []*waiter // as they came, some of them decided since
	ready    []*waiter // to be decided
	resuming bool      // some of them are being decided: nothing is sent

	asks    quota.Asks
	answers quota.Grants
	message []byte
	key     []byte
}

// stream is a stream to the service.
type stream struct {
	number  uint32
	greeted bool            // it has had its first message
	heard   bool            // it has answered
	defined map[uint32]bool // definitions that it has had
}

// ask is what the service is asked for by requests that want the same units. One that
// nobody waits for is for requests to come.
type ask struct {
	id      uint32
	key     string
	parts   []Part
	waiters []*waiter
	sentNs  int64
	stream  uint32
}

// waiter is a request that waits.
type waiter struct {
	context    uint32
	verdict    *decide.Verdict // nil once it is decided
	deadlineNs int64
	parts      []Part         // what it has asked for
	ask        *ask           // nil once it is ready
	short      decide.Outcome // of what it has not got: Pending; once it goes on for want of an answer Silent or Contended
}

// NewClient returns a client of a worker with cluster rules.
func NewClient(host Host, w *Worker) *Client {
	w.id = uint64(host.Random())<<32 | uint64(host.Random())
	return &Client{
		host: host, worker: w, stream: stream{defined: map[uint32]bool{}},
		queued: map[string]*ask{}, flying: map[string]*ask{}, waiters: map[uint32]*waiter{}, pauseNs: firstPauseNs,
	}
}

// IsConnected reports whether a stream is open. A worker without one does not know whether
// the service is silent, unless it has found so.
func (c *Client) IsConnected() bool { return c.stream.number != 0 }

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waiters) > 0 }

// Wait makes a request wait for the units of its pending verdict. The client keeps the
// verdict until Host.Free.
func (c *Client) Wait(context uint32, v *decide.Verdict, now int64) {
	w := c.waiters[context]
	if w == nil {
		w = &waiter{context: context, verdict: v, deadlineNs: now + c.worker.TimeoutNs, short: decide.Pending}
		v.Keep()
		c.waiters[context] = w
		c.order = append(c.order, w)
		c.worker.crowded = len(c.waiters) >= maxWaiters
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending {
				s.Rule.Metrics.Waited++
			}
		}
	}
	kept := w.parts[:0]
	for i := range w.parts {
		switch p := &w.parts[i]; {
		case p.subject.Outcome == decide.Pending:
			c.release(p)
		case p.grant != nil:
			kept = append(kept, *p)
		}
	}
	w.parts = kept
	got := len(w.parts)
	w.parts = c.worker.AppendParts(w.parts, v)
	c.want(w.parts[got:], w)
	c.flush(now)
}

// AskAhead asks for what requests to come will soon need.
func (c *Client) AskAhead(now int64) {
	for i := range c.worker.ahead {
		if len(c.queue) < maxRefills {
			c.want(c.worker.ahead[i:i+1], nil)
		}
	}
	c.worker.ahead = c.worker.ahead[:0]
	c.flush(now)
}

// release has the units of a part go back that its request has got and not taken.
func (c *Client) release(p *Part) {
	switch {
	case p.grant == nil || p.grant.Denied:
	case p.level != nil:
		p.level.Given -= p.units
		c.worker.state(p.level)
	default:
		c.giveBack(p.grant.release(p.units), p.grant.stream)
	}
}

// giveBack gives units back with the next message, on the stream that got them or not at
// all.
func (c *Client) giveBack(r quota.Return, stream uint32) {
	if r.Grant > 0 && r.Units > 0 && stream == c.stream.number {
		c.returns = append(c.returns, r)
	}
}

// want queues an ask for the parts of a waiter, of nil for requests to come, or joins the
// one that is queued. Of rules that count denied requests the costs are the same, too.
func (c *Client) want(parts []Part, w *waiter) {
	c.key = c.key[:0]
	for i := range parts {
		p := &parts[i]
		c.key = binary.LittleEndian.AppendUint32(c.key, p.Definition)
		c.key = append(c.key, p.Key[:]...)
		if c.countsDenied(p) {
			c.key = binary.LittleEndian.AppendUint32(c.key, p.Cost)
		}
	}
	a := c.queued[string(c.key)]
	switch {
	case a == nil:
		a = &ask{key: string(c.key), parts: slices.Clone(parts)}
		c.queued[a.key], c.queue = a, append(c.queue, a)
		if w == nil {
			copy(c.queue[1:], c.queue) // before first contacts
			c.queue[0] = a
		}
	case w != nil:
		for i := range a.parts {
			p := &a.parts[i]
			if len(a.waiters) == 0 { // the cost is that of the first
				p.Cost = parts[i].Cost
			}
			p.Waiting = limit.AddSaturating(p.Waiting, parts[i].Cost)
		}
	}
	if w != nil {
		a.waiters, w.ask = append(a.waiters, w), a
	}
}

func (c *Client) unqueue(a *ask) {
	delete(c.queued, a.key)
	c.queue = slices.DeleteFunc(c.queue, func(other *ask) bool { return other == a })
	for i := range a.parts {
		if l := a.parts[i].level; l != nil && l.Due() {
			c.worker.state(l)
		}
	}
}

// stopWaiting has a request wait for its ask no longer.
func (c *Client) stopWaiting(w *waiter) {
	a := w.ask
	if w.ask = nil; a == nil {
		return
	}
	a.waiters = slices.DeleteFunc(a.waiters, func(other *waiter) bool { return other == w })
	if len(a.waiters) == 0 && c.queued[a.key] == a {
		c.unqueue(a)
	}
}

// Resume decides requests that are ready, at most maxResumed of them.
func (c *Client) Resume(now int64) {
	c.resuming = true
	done := 0
	for n := 0; done < len(c.ready) && n < maxResumed; done++ {
		if w := c.ready[done]; w.verdict != nil {
			n++
			c.resume(w)
		}
	}
	c.resuming, c.ready = false, slices.Delete(c.ready, 0, done)
	c.flush(now)
}

// resume goes on with one request.
func (c *Client) resume(w *waiter) {
	c.worker.resumed = w
	done := c.host.Resume(w.context, w.verdict)
	if c.worker.resumed = nil; done && w.verdict != nil {
		c.remove(w)
	}
}

func (c *Client) remove(w *waiter) {
	for i := range w.parts {
		c.release(&w.parts[i])
	}
	c.host.Free(w.verdict)
	w.verdict = nil
	delete(c.waiters, w.context)
	c.worker.crowded = len(c.waiters) >= maxWaiters
}

// Forget is called when a request has ended. It is never resumed.
func (c *Client) Forget(context uint32) {
	if w := c.waiters[context]; w != nil {
		c.remove(w)
		c.stopWaiting(w)
	}
}
