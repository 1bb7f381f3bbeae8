// Package ask is one worker's talk with the quota service: which requests wait for
// which units, what is asked when, and when the service counts as silent.
//
// Its invariant: every request that waits is decided within the timeout and a
// tick, whatever the service, the network or the client does. It knows the proxy as
// the small Host interface only, and never reads a clock.
package ask

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
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
	// Resume decides a request that has waited. It reports whether the request is
	// answered or goes on: otherwise it has to wait again.
	Resume(context uint32) bool
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

// Client is one worker's side of the talk. Its zero value is not ready: use New.
type Client struct {
	host   Host
	engine *engine.Engine

	open       bool
	greeted    bool            // the stream has had its first message
	stream     uint32          // the open stream's number, 0 = none
	defined    map[uint32]bool // definitions that the stream has had
	heard      bool            // the stream has answered
	reopenNs   int64           // not before
	pauseNs    int64           // between tries to open
	heardNs    int64           // when the service last said something
	sentNs     int64           // when the last message with asks left
	unanswered bool            // nothing has come since
	tickNs     int64           // when the last tick was
	stalled    bool            // a late tick has given the service more time

	groups  map[string]*group // queued, by what they want
	flying  map[string]*group // sent, by what they want
	byID    map[uint32]*group
	queue   []*group
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
	wants   []engine.Want
}

// group is the asks of requests that want the same units.
type group struct {
	id      uint32
	key     string
	wants   []engine.Want
	waiters []*waiter
	refill  bool
	sentNs  int64
	stream  uint32
	answer  *quota.Answer // until the engine has it in the hand
}

// waiter is a request that waits.
type waiter struct {
	context    uint32
	deadlineNs int64
	group      *group // nil once it is ready
	late       bool
	crowded    bool
	gone       bool
	take       *group // the answered group whose first waiter this is
	settle     *group // the answered group whose last waiter this is
}

// New returns a client of an engine with cluster rules.
func New(host Host, e *engine.Engine) *Client {
	return &Client{
		host: host, engine: e,
		defined: map[uint32]bool{}, groups: map[string]*group{}, flying: map[string]*group{},
		byID: map[uint32]*group{}, waiters: map[uint32]*waiter{}, pauseNs: firstPauseNs,
	}
}

// Waiting reports whether some request waits.
func (c *Client) Waiting() bool { return len(c.waiters) > 0 }

// Stream is the open stream's number, 0 if none is open.
func (c *Client) Stream() uint32 { return c.stream }

// Wait makes a request wait for what its pending verdict wants.
func (c *Client) Wait(context uint32, v *engine.Verdict, now int64) {
	w := c.waiters[context]
	if w == nil {
		w = &waiter{context: context, deadlineNs: now + c.engine.Quota.TimeoutNs}
		c.waiters[context] = w
		v.CountWaiting()
		c.order = append(c.order, w)
		c.engine.Quota.Crowded = len(c.waiters) >= maxWaiters
	}
	c.wants = v.Wants(c.wants[:0])
	g := c.queued(c.wants, false)
	w.group = g
	if len(g.waiters) > 0 {
		for i := range g.wants { // the cost stays that of the first
			p := &g.wants[i].Part
			p.Waiting = limit.AddSaturating(p.Waiting, c.wants[i].Part.Cost)
		}
	}
	g.waiters, g.refill = append(g.waiters, w), false
	c.flush(now)
}

// Refill asks ahead, for requests to come.
func (c *Client) Refill(v *engine.Verdict, now int64) {
	for _, want := range v.Refills(c.wants[:0]) {
		if len(c.queue) < maxRefills {
			c.queued([]engine.Want{want}, true)
		}
	}
	c.flush(now)
}

// Return gives units back, with the next message.
func (c *Client) Return(returns []quota.Return) { c.returns = append(c.returns, returns...) }

// queued returns the group that waits to be sent and wants the same, or a new one. Of
// rules that count denied requests it wants the same cost too.
func (c *Client) queued(wants []engine.Want, refill bool) *group {
	c.key = c.key[:0]
	for i := range wants {
		p := &wants[i].Part
		c.key = binary.LittleEndian.AppendUint32(c.key, p.Definition)
		c.key = append(c.key, p.Key[:]...)
		if c.countsDenied(&wants[i]) {
			c.key = binary.LittleEndian.AppendUint32(c.key, p.Cost)
		}
	}
	if g := c.groups[string(c.key)]; g != nil {
		return g
	}
	g := &group{key: string(c.key), wants: append([]engine.Want(nil), wants...), refill: refill}
	c.groups[g.key] = g
	if refill {
		c.queue = append([]*group{g}, c.queue...) // before first contacts
	} else {
		c.queue = append(c.queue, g)
	}
	return g
}

func (c *Client) unqueue(g *group) {
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
		take, settle := w.take, w.settle
		w.take, w.settle = nil, nil
		if take != nil {
			c.take(take, take.answer)
			take.answer = nil
		}
		if !w.gone {
			n++
			c.decide(w)
		}
		if settle != nil {
			c.settle(settle)
		}
	}
	if len(c.ready) == 0 {
		c.ready = nil
	}
}

// decide decides one request anew.
func (c *Client) decide(w *waiter) {
	q := &c.engine.Quota
	crowded := q.Crowded
	q.Late, q.Crowded = w.late, w.crowded
	done := c.host.Resume(w.context)
	q.Late, q.Crowded = false, crowded
	if done {
		c.remove(w)
	}
}

func (c *Client) remove(w *waiter) {
	delete(c.waiters, w.context)
	c.engine.Quota.Crowded = len(c.waiters) >= maxWaiters
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
	w.gone = true
	c.remove(w)
	if g := w.group; g != nil {
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

// Tick decides requests whose time is over, and finds out whether the service is
// silent. Period says when to call it next.
func (c *Client) Tick(now int64) {
	if !c.stoodStill(now) {
		c.listen(now)
	}
	kept := c.order[:0]
	for i, w := range c.order {
		if w.group != nil && now < w.deadlineNs && !c.engine.Quota.Silent {
			kept = append(kept, c.order[i:]...)
			break
		}
		switch {
		case c.waiters[w.context] != w || w.late: // decided, or about to be
		case w.group != nil:
			c.expire(w)
		default: // it is ready, and may have to wait again
			kept = append(kept, w)
		}
	}
	clear(c.order[len(kept):])
	c.order = kept
	c.abandon(now)
	if c.engine.Quota.Silent {
		c.probe(now)
	}
	c.Resume(now)
}

// Period is how soon Tick must be called, in milliseconds.
func (c *Client) Period() uint32 {
	switch {
	case len(c.ready) > 0:
		return 1
	case len(c.waiters) > 0 || c.unanswered:
		return 10
	}
	if ns := c.engine.NextReturn(); ns > 0 {
		return uint32(min(max(ns, minReturnNs)/1e6, 1000))
	}
	return 1000
}

// expire makes a request ready that has waited for too long.
func (c *Client) expire(w *waiter) {
	g := w.group
	for i, other := range g.waiters {
		if other == w {
			g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
			break
		}
	}
	w.group, w.late = nil, true
	c.ready = append(c.ready, w)
	if len(g.waiters) == 0 && !g.refill && c.groups[g.key] == g {
		c.unqueue(g)
	}
}

// End decides all requests that wait, without the service: the configuration ends.
func (c *Client) End(now int64) {
	for _, w := range c.order {
		if w.group != nil {
			c.expire(w)
		}
	}
	for len(c.ready) > 0 {
		c.Resume(now)
	}
	if c.open {
		c.host.Cancel()
		c.open = false
	}
}
