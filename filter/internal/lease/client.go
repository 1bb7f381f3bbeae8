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
	// maxAsks is how many asks one message has at most; see quota.MaxMessageBytes.
	maxAsks = 128
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

	groups  map[string]*ask // queued, by what they want
	flying  map[string]*ask // sent, by what they want
	byID    map[uint32]*ask
	queue   []*ask
	lastID  uint32
	returns []quota.Return

	waiters  map[uint32]*waiter
	order    []*waiter // as they came, some of them decided since
	ready    []*waiter // to be decided
	resuming bool      // some of them are being decided: nothing is sent

	asks    quota.Asks
	answers quota.Answers
	message []byte
	key     []byte
	parts   []Part
}

// stream is a stream to the service.
type stream struct {
	number  uint32
	greeted bool            // it has had its first message
	heard   bool            // it has answered
	defined map[uint32]bool // definitions that it has had
}

// ask is what the service is asked for by requests that want the same units.
type ask struct {
	id      uint32
	key     string
	parts   []Part
	waiters []*waiter
	refill  bool
	sentNs  int64
	stream  uint32
}

// waiter is a request that waits.
type waiter struct {
	context    uint32
	verdict    *decide.Verdict
	deadlineNs int64
	ask        *ask // nil once it is ready
	late       bool
	crowded    bool
	gone       bool
}

// NewClient returns a client of a worker with cluster rules.
func NewClient(host Host, w *Worker) *Client {
	return &Client{
		host: host, worker: w, stream: stream{defined: map[uint32]bool{}},
		groups: map[string]*ask{}, flying: map[string]*ask{},
		byID: map[uint32]*ask{}, waiters: map[uint32]*waiter{}, pauseNs: firstPauseNs,
	}
}

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waiters) > 0 }

// Wait makes a request wait for the units of its pending verdict. The client keeps the
// verdict until Host.Free.
func (c *Client) Wait(context uint32, v *decide.Verdict, now int64) {
	w := c.waiters[context]
	if w == nil {
		w = &waiter{context: context, verdict: v, deadlineNs: now + c.worker.TimeoutNs}
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
	c.release(v, decide.Pending)
	c.parts = AppendParts(c.parts[:0], v)
	g := c.queued(c.parts, false)
	w.ask = g
	if len(g.waiters) > 0 {
		for i := range g.parts { // the cost stays that of the first
			p := &g.parts[i].Part
			p.Waiting = limit.AddSaturating(p.Waiting, c.parts[i].Cost)
		}
	}
	g.waiters, g.refill = append(g.waiters, w), false
	c.flush(now)
}

// AskAhead asks ahead, for requests to come.
func (c *Client) AskAhead(v *decide.Verdict, now int64) {
	c.parts = appendAhead(c.parts[:0], v)
	for i := range c.parts {
		if len(c.queue) < maxRefills {
			c.queued(c.parts[i:i+1], true)
		}
	}
	c.flush(now)
}

// release has the units go back that a request has got from answers and not taken; of a
// decided request, or of one that has to wait again the Pending ones.
func (c *Client) release(v *decide.Verdict, only decide.Outcome) {
	for _, s := range v.Subjects {
		a, leases := s.Lease.(*account)
		if !leases || only == decide.Pending && s.Outcome != only {
			continue
		}
		got := a.answer
		if a.answer = (answer{}); got.of != nil {
			c.giveBack(got.of.leave(got.units), got.of.stream)
		}
	}
}

// giveBack gives units back with the next message, on the stream that got them or not at
// all.
func (c *Client) giveBack(r quota.Return, stream uint32) {
	if r.Units > 0 && stream == c.stream.number {
		c.returns = append(c.returns, r)
	}
}

// queued returns the ask for the same parts that waits to be sent, or a new one. Of rules
// that count denied requests the costs are the same, too.
func (c *Client) queued(parts []Part, refill bool) *ask {
	c.key = c.key[:0]
	for i := range parts {
		p := &parts[i].Part
		c.key = binary.LittleEndian.AppendUint32(c.key, p.Definition)
		c.key = append(c.key, p.Key[:]...)
		if c.countsDenied(&parts[i]) {
			c.key = binary.LittleEndian.AppendUint32(c.key, p.Cost)
		}
	}
	if g := c.groups[string(c.key)]; g != nil {
		return g
	}
	g := &ask{key: string(c.key), parts: append([]Part(nil), parts...), refill: refill}
	c.groups[g.key] = g
	if refill {
		c.queue = append([]*ask{g}, c.queue...) // before first contacts
	} else {
		c.queue = append(c.queue, g)
	}
	return g
}

func (c *Client) unqueue(g *ask) {
	delete(c.groups, g.key)
	for i, other := range c.queue {
		if other == g {
			c.queue = append(c.queue[:i], c.queue[i+1:]...)
			return
		}
	}
}

// Resume decides requests that are ready, at most maxResumed of them.
func (c *Client) Resume(now int64) {
	c.resume()
	c.flush(now)
}

func (c *Client) resume() {
	c.resuming = true
	defer func() { c.resuming = false }()
	for n := 0; len(c.ready) > 0 && n < maxResumed; {
		w := c.ready[0]
		c.ready = c.ready[1:]
		if !w.gone {
			n++
			c.decide(w)
		}
	}
	if len(c.ready) == 0 {
		c.ready = nil
	}
}

// decide goes on with one request.
func (c *Client) decide(w *waiter) {
	of := c.worker
	crowded := of.crowded
	of.late, of.crowded = w.late, w.crowded
	done := c.host.Resume(w.context, w.verdict)
	of.late, of.crowded = false, crowded
	if done && !w.gone {
		c.remove(w)
	}
}

func (c *Client) remove(w *waiter) {
	c.release(w.verdict, decide.Taken)
	c.host.Free(w.verdict)
	w.gone = true
	delete(c.waiters, w.context)
	c.worker.crowded = len(c.waiters) >= maxWaiters
	if len(c.waiters) == 0 {
		clear(c.order)
		c.order = c.order[:0]
	}
}

// Forget is called when a request has ended. It is never resumed.
func (c *Client) Forget(context uint32) {
	w := c.waiters[context]
	if w == nil {
		return
	}
	c.remove(w)
	if g := w.ask; g != nil {
		for i, other := range g.waiters {
			if other == w {
				g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
				break
			}
		}
		if len(g.waiters) == 0 && c.groups[g.key] == g {
			c.unqueue(g)
		}
	}
}
