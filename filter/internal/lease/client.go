// Package lease is the source of units of rules that hold over all proxies. It asks the quota
// service for units, keeps those that may be spent later in a table of leases (Source), or
// reports what running requests hold (HoldSource). Client is one worker's talk with the
// service: which requests wait for which units, what is asked when, and when the service
// counts as silent.
//
// Its invariant: a unit is spent once, and before its lease ends by the monotonic clock.
// Every request that waits is decided within the timeout and a tick, whatever the service,
// the network or the client does. What a request carries from one call to the next is in its
// decide.Subject. The package calls nobody but the proxy's stream (Transport) and the tables:
// it must never import packages engine or host.
//
// A request whose units are there: Source.Check finds them in the key's lease, and Source.Take takes
// them. A request whose units are not there, for example of a key of 1000 a minute, of which 300 were
// taken in the last 3 seconds:
//
//	Source.Check     The lease of the key has ended with the minute. The outcome is Pending.
//	Client.Wait      The request needs 1 unit. An ask is queued for 1, and 600 ahead of need: see refill.
//	Client.Flush     A message leaves with all asks that are queued. From now on, no request joins them.
//	Client.Receive   The service grants 1, and a quarter of the other 999: 250 units. 1 of them goes to
//	                 the request's Subject, and 249 into the lease.
//	Client.Next      It returns the request, which is decided again.
//	Source.Check     The Subject's grant has 1 unit. The outcome is HasRoom.
//	Source.Take      The Subject's grant has 0 units. The outcome is Taken.
//	Client.Done      Nothing is left of the Subject's grant, so nothing goes back.
//
// To read it, follow such a request. Each file has the methods of what it owns, also those of Client:
//
//	source.go       Source       checks and takes units of leases
//	client.go       Client       has requests wait, and ticks
//	waitlist.go     Waiter       a request that waits, and all of them
//	ask.go          Need, ask    what requests need; the asks that are queued or sent
//	message.go                   what is sent when
//	stream.go       stream       whether there is one, and whether the service answers
//	grant.go        grant        what the service grants, and which requests get it
//	keep.go                      the rest goes into the key's lease, or back
//	block.go                     how a block of a key is told and remembered
//	returns.go      returnable   idle units go back
//	clusterrule.go  clusterRule  what sources of both kinds do, such as to decide while the service is silent
//	definitions.go  definitions  how limits are defined to the service
//	worker.go       Worker       what the sources and the Client of a worker share
//	operate.go                   what operators see
//	looks.go        Look         what clients are told that ask for their usage
//
// For rules that hold units, these are in the place of source.go and of the table of leases:
//
//	holds.go        HoldSource   checks, holds and settles
//	accounts.go     account      what a worker holds of a key
//	reports.go                   how the service hears of that
//
// What may go wrong meanwhile:
//
//	the client leaves          Forget ends the wait. Its units go into the lease, or back.
//	an answer comes late       endLate lets others ask anew. endAsk puts late units into the lease.
//	the stream ends            StreamEnded queues its asks again. Units of its grants cannot go back.
//	no answer comes            endSilent makes the worker silent. alone decides, and probe asks on.
//	another worker is faster   Source.write returns Mismatch. Check, or writeLease, reads the lease again.
//
// A grant has four types on its way: quota.Grant on the wire, grant while requests take from it,
// decide.Grant as one of these requests has it, and state.GrantLeft for what is left in the table.
//
// There are two clocks. now is always the monotonic one, by which leases end and requests wait: so are Quota.NowNs, all
// of a grant, a state.Lease, and standings. wallNs is the wall clock, by which windows are counted: it is what package
// decide calls now, and so are Subject.PassNs, Subject.Now and what Usage returns. passNs turns a wait into the wall
// clock's. The caller of Client gives it now, which it hands on. The clock is read anew right before a lease is read,
// and by rereadAhead, because the worker may have stood still since. There are two exceptions: refundLease goes by the
// instant of Check, and takeIdle reads the clock once for all leases that it visits.
//
// Each type has one name for its variables: c is a Client, w a Worker, src a source of either kind,
// req a request that waits, n a need of it, a an ask, p a part of it, g a grant but for a state.GrantLeft, which is
// left, acc an account, accs the accounts, ret a returnable grant, s a decide.Subject, l a state.Lease or a Look, and
// e a lease's entry. But in stream.go s is the stream, and an n that is an int is a number of things.
package lease

import (
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

// Client is one worker's side of the talk. Its zero value is not ready: use NewClient. Every
// callback that has called it ends with Flush.
type Client struct {
	transport Transport
	worker    *Worker
	stream    stream
	waitlist  waitlist // requests that wait

	// An ask is in one of these two, until it has its result.
	queue   askQueue
	sent    sentAsks
	lastID  uint32         // of the ask that was sent last
	returns []quota.Return // to be sent

	// Memory:
	want    []byte // of one ask
	packed  []*ask // of a message
	out     quota.Asks
	in      quota.Results
	message []byte
}

// NewClient returns a client of a worker with cluster rules, whose requests wait for the timeout.
func NewClient(t Transport, w *Worker, timeoutNs int64) *Client {
	w.timeoutNs = timeoutNs
	w.accounts.worker = uint64(t.Random())<<32 | uint64(t.Random())
	return &Client{
		transport: t, worker: w, stream: stream{defined: map[uint32]bool{}, pauseNs: firstPauseNs},
		waitlist: waitlist{byContext: map[uint32]*Waiter{}},
		queue:    askQueue{byWant: map[string]*ask{}}, sent: sentAsks{flying: map[string]*ask{}},
	}
}

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waitlist.byContext) > 0 }

// Wait makes a request wait for the units of its pending verdict, which stays as it is until
// Done or Forget: Engine.Keep must have kept it. A request that Next has returned may have to
// wait again.
func (c *Client) Wait(context uint32, v *decide.Verdict, now int64) {
	req := c.waitlist.byContext[context]
	if req == nil {
		req = &Waiter{Context: context, Verdict: v, deadlineNs: now + c.worker.timeoutNs}
		c.addWaiter(req)
		req.setWait(decide.Waits)
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending {
				s.Rule.Metrics.Waited++
			}
		}
	}
	granted := c.keepGranted(req.needs)
	req.needs = AppendNeeds(granted, v)
	c.askFor(req, req.needs[len(granted):])
}

// keepGranted returns those needs of a request that waits again which have their units: the request
// takes these once the others have theirs.
func (c *Client) keepGranted(needs []Need) []Need {
	granted := needs[:0]
	for i := range needs {
		switch n := &needs[i]; {
		case n.subject.Outcome == decide.Pending: // its grant did not suffice: it is asked for anew
			c.reclaim(n)
			n.subject.Quota.Grant.Received = false
		case n.grant != nil:
			granted = append(granted, *n)
		default: // it needs no grant any more: the rule has found units elsewhere, or does without
		}
	}
	return granted
}

func (c *Client) addWaiter(req *Waiter) {
	c.waitlist.add(req)
	c.worker.crowded = c.waitlist.areMany()
}

// MaxResumed is how many requests one callback may let go on: Envoy resumes a request
// inside the call, and 300 of them have overflowed a VM's stack.
const MaxResumed = 64

// Next returns a request that has its grant, or has waited for too long, to be decided
// again: then it is Done, or has to Wait again. nil if there is none.
func (c *Client) Next() *Waiter { return c.waitlist.next() }

// Done ends the wait of a request. What it has got and not taken goes back.
func (c *Client) Done(req *Waiter) {
	for i := range req.needs {
		c.reclaim(&req.needs[i])
	}
	c.leaveAsks(req)
	c.waitlist.remove(req)
	c.worker.crowded = c.waitlist.areMany()
}

// Forget is Done for a request that has ended. It returns its verdict, nil if it does not wait.
func (c *Client) Forget(context uint32) *decide.Verdict {
	req := c.waitlist.byContext[context]
	if req == nil {
		return nil
	}
	c.Done(req)
	return req.Verdict
}

// ExpireAll makes all requests ready, to be decided without the service: the configuration ends.
func (c *Client) ExpireAll() {
	for _, req := range c.waitlist.order {
		if req.isAsking() {
			c.expire(req)
		}
	}
}

// expireOverdue makes requests ready whose time is over, all of them while the service is silent.
func (c *Client) expireOverdue(now int64) {
	for _, req := range c.waitlist.order {
		if req.isOverdue(now) || req.isAsking() && c.worker.silent {
			c.expire(req)
		}
	}
	c.waitlist.dropOver()
}

// expire makes a request ready that has waited for too long.
func (c *Client) expire(req *Waiter) {
	c.leaveAsks(req)
	req.setWait(decide.TimedOut)
	c.waitlist.makeReady(req)
}

// Tick finds requests whose time is over and units that are idle, and finds out whether
// the service is silent. Period says when to call it next.
func (c *Client) Tick(now int64) {
	c.returns = c.worker.takeIdle(c.returns, c.stream.number)
	if !c.stream.grantMoreTime(now, c.worker.timeoutNs) {
		c.endSilent(now)
	}
	c.stream.tickNs = now
	c.expireOverdue(now)
	c.endLate(now)
	c.worker.accounts.renew(now, c.worker.timeoutNs)
	if c.worker.silent {
		c.probe(now)
	}
}

// minReturnNs is the shortest time between two ticks that look for idle units.
const minReturnNs = 50_000_000

// Period is how soon Tick must be called, in milliseconds.
func (c *Client) Period() uint32 {
	switch {
	case c.waitlist.areSomeReady():
		return 1 // for those that MaxResumed has left
	case c.Waiting() || c.stream.owes():
		return 10
	}
	if ns := c.worker.returnables.idleNs; ns > 0 {
		return uint32(min(max(ns, minReturnNs)/1e6, 1000))
	}
	return 1000
}
