// Package talk is one worker's talk with the quota service: which requests wait for which units, what is asked when,
// and when the service counts as silent. What is asked for, and what becomes of a grant, is package lease's.
//
// Its invariant: every request that waits is decided within the timeout and a tick, whatever the service,
// the network or the client does. It calls nobody but the proxy's stream (Transport) and package lease with its
// accounts: the host calls it, and asks it by Next who goes on. Each now is of the monotonic clock.
//
// After a message with asks, Flush sends nothing until a message of the service comes, and asks gather meanwhile. Which
// asks that answers does not matter: a key whose store is slow delays no other. So the asks of several messages may be
// without a result at once.
//
//	host            Client                              service
//
//	Wait     ---->  a Waiter; it joins an ask
//	Flush    ---->  all queued asks, in a message  ---->
//	Receive  ---->  each result ends an ask        <----
//	Next     <----  the Waiter is ready, and is decided again
//	Done     ---->  what it has not taken goes back
//	Tick     ---->  the Waiter's time is over: ready, to be decided without the service
//
// What may go wrong meanwhile:
//
//	the client leaves     Forget ends the wait. What it has got goes back. What its ask gets goes into the lease.
//	an answer comes late  makeLate lets others ask anew. takeGrants puts late units into the lease, and decides nobody.
//	the stream ends       StreamEnded queues its asks again. Units of its grants cannot go back.
//	no answer comes       noteSilence makes the worker silent, and expireOverdue all requests ready. Tick asks on.
//
// To read it, begin with Client. Most of its tests are in package lease, which plays workers, their talk and a service
// together: see harness_test.go there.
//
//	client.go   Client        has requests wait, and ticks
//	waiters.go  Waiter        a request that waits
//	asks.go     ask, askList  what some requests need of some keys, while it is queued or sent
//	send.go                   what is sent when
//	receive.go                what a message with results does to asks and their requests
//	stream.go   stream        whether there is one
//	            owed          whether the service answers
//
// A Waiter, an ask and the stream have a life, which is drawn where they change. While the first request waits:
//
//	by                      Waiter  ask     stream   the service
//	Wait                    waits   queued  closed   owes nothing
//	Flush                   waits   flying  greeted  owes an answer
//	Receive                 ready   over    greeted  owes nothing
//	Next, Decide, Done      done
//	or Tick, after the      ready   over    closed   owes nothing, and is silent
//	timeout: no answer
package talk

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
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

// Client is one worker's side of the talk. Its zero value is not ready: use NewClient. A callback that has called it
// ends with Flush. One that has only called StreamEnded or Forget need not: the next callback sends what is to be sent.
type Client struct {
	transport Transport
	worker    *lease.Worker
	stream    stream
	owed      owed
	waiters   waiterList // requests that wait
	asks      askList    // for which they wait, and others
	lastID    uint32     // of the ask that was sent last

	// Memory:
	packed     []*ask             // for pack
	due        []*account.Account // for queueReports
	verdicts   []*decide.Verdict  // for takeGrants
	outMessage quota.Asks
	inMessage  quota.Results
	message    []byte // as it is sent
}

// NewClient returns a client of a worker with cluster rules, whose requests wait for the timeout.
func NewClient(t Transport, w *lease.Worker, timeoutNs int64) *Client {
	w.BeginTalk(timeoutNs, uint64(t.Random())<<32|uint64(t.Random()))
	return &Client{
		transport: t, worker: w,
		stream:  stream{defined: map[uint32]bool{}, pauseNs: firstPauseNs},
		waiters: waiterList{byContext: map[uint32]*Waiter{}}, asks: newAskList(),
	}
}

// HasWaiters reports whether some request waits.
func (c *Client) HasWaiters() bool { return len(c.waiters.byContext) > 0 }

// Wait makes a request wait for the units of its pending verdict, which stays as it is until
// Done or Forget: Engine.Keep must have kept it. A request that Next has returned may have to
// wait again.
func (c *Client) Wait(contextID uint32, v *decide.Verdict, now int64) {
	req := c.waiters.byContext[contextID]
	if req == nil {
		req = &Waiter{ContextID: contextID, Verdict: v}
		c.begin(req, now)
		lease.StartWaiting(v)
	}
	c.asks.join(req, lease.BeginAsk(v)) // at most quota.MaxParts: package decide lets no more be Pending
}

// begin begins the wait of a request.
func (c *Client) begin(req *Waiter, now int64) {
	req.deadlineNs = now + c.worker.Service.TimeoutNs
	c.waiters.add(req)
	c.worker.Service.Crowded = c.waiters.isFull()
}

// MaxResumed is how many requests one callback may let go on: Envoy resumes a request
// inside the call, and 300 of them have overflowed a VM's stack.
const MaxResumed = 64

// Next returns a request that has its grant, or has waited for too long, to be decided
// again: then it is Done, or has to Wait again. nil if there is none.
func (c *Client) Next() *Waiter { return c.waiters.next() }

// Done ends the wait of a request. What it has got and not taken goes back.
func (c *Client) Done(req *Waiter) {
	if req.Verdict != nil {
		lease.GiveBackUnused(req.Verdict)
	}
	c.asks.leave(req)
	c.waiters.remove(req)
	c.worker.Service.Crowded = c.waiters.isFull()
}

// Forget is Done for a request that has ended, if it waits. It returns the verdict that is not needed any more, nil if
// there is none.
func (c *Client) Forget(contextID uint32) *decide.Verdict {
	req := c.waiters.byContext[contextID]
	if req == nil {
		return nil
	}
	c.Done(req)
	return req.Verdict
}

// maxLooked is how many keys may be looked at at once. One look alone may have more.
const maxLooked = 4096

// WaitLook makes a request wait for what the service says of the look's keys, of which there must be one: else only its
// timeout would end the wait. It returns false if nobody is asked, because the service is silent, or too many requests
// or keys wait.
func (c *Client) WaitLook(contextID uint32, l *lease.Look, now int64) bool {
	looked := c.waiters.lookedKeys
	tooMany := looked > 0 && looked+l.Size() > maxLooked
	if c.worker.Service.Silent || c.worker.Service.Crowded || tooMany {
		return false
	}
	req := &Waiter{ContextID: contextID, Look: l}
	c.begin(req, now)
	for from := 0; from < l.Size(); from += quota.MaxParts {
		c.asks.join(req, l.Parts(from))
	}
	return true
}

// ExpireAll has all requests be decided without the service: the configuration ends.
func (c *Client) ExpireAll() {
	for _, req := range c.waiters.all() {
		c.expire(req)
	}
}

// expireOverdue makes requests ready whose time is over, all of them while the service is silent.
func (c *Client) expireOverdue(now int64) {
	for _, req := range c.waiters.all() {
		if req.isOverdue(now) || req.state == waits && c.worker.Service.Silent {
			c.expire(req)
		}
	}
}

// expire makes a request ready, to be decided without the service. One that is ready already must not wait again,
// should its grant not suffice.
func (c *Client) expire(req *Waiter) {
	req.stopWaiting(cluster.TimedOut)
	if req.state == waits {
		c.asks.leave(req)
		c.waiters.makeReady(req)
	}
}

// Tick finds requests whose time is over and units that are idle, and finds out whether the service is silent. PeriodMs
// says when to call it next. The order of its steps matters:
//
//	noteTick       before noteSilence, which goes by the time that it gives the service
//	noteSilence    before expireOverdue, so that all requests are decided in the tick that finds the service silent
//	expireOverdue  before makeLate: no request waits for an ask that is late
func (c *Client) Tick(now int64) {
	c.worker.CollectIdle(now)
	timeoutNs := c.worker.Service.TimeoutNs
	c.noteTick(now)
	c.noteSilence(now)
	c.expireOverdue(now)
	c.asks.makeLate(now, timeoutNs)
	c.worker.Book.Sweep(now, timeoutNs)
	if c.worker.Service.Silent && !c.serviceOwes() {
		c.asks.askForNobody([]lease.Part{c.worker.ProbePart()})
	}
}

// PeriodMs is how soon Tick must be called.
func (c *Client) PeriodMs() uint32 {
	switch {
	case c.waiters.mayHaveNext():
		return 1 // for those that MaxResumed has left
	case c.HasWaiters() || c.serviceOwes():
		return 10
	}
	if ns := c.worker.Returns.PeriodNs(); ns > 0 {
		return uint32(min(ns/1e6, 1000))
	}
	return 1000
}

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet.
func (c *Client) Inherit(from *Client) { c.worker.Inherit(from.worker) }
