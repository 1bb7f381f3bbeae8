// Package ask is one worker's talk with the quota service: which requests wait for
// which units, what is asked when, and when the service counts as silent.
//
// Its invariant: every request that waits is decided within the timeout and a
// tick, whatever the service, the network or the client does. It knows the proxy as
// the small Host interface only, and never reads a clock.
package ask

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
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

	groups  map[string]*group // queued, by what they want
	flying  map[string]*group // sent, by what they want
	byID    map[uint32]*group
	queue   []*group
	lastID  uint32
	returns []quota.Return

	waiters map[uint32]*waiter
	order   []*waiter // as they came, some of them decided since
	ready   []*waiter // to be decided

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
}

// waiter is a request that waits.
type waiter struct {
	context    uint32
	deadlineNs int64
	group      *group // nil once it is ready
	late       bool
	crowded    bool
	gone       bool
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
			p.Waiting = uint32(min(uint64(p.Waiting)+uint64(c.wants[i].Part.Cost), 1<<32-1))
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

// queued returns the group that waits to be sent and wants the same, or a new one.
func (c *Client) queued(wants []engine.Want, refill bool) *group {
	c.key = c.key[:0]
	for i := range wants {
		c.key = binary.LittleEndian.AppendUint32(c.key, wants[i].Part.Definition)
		c.key = append(c.key, wants[i].Part.Key[:]...)
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

// flush sends what is queued, unless a message is under way.
func (c *Client) flush(now int64) {
	if c.unanswered || len(c.queue) == 0 && len(c.returns) == 0 || !c.ensureOpen(now) {
		return
	}
	m := &c.asks
	*m = quota.Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	if !c.greeted {
		m.Domain, m.Process = c.engine.Policy().Domain, c.engine.Process()
	}
	var sent, left []*group
	for _, g := range c.queue {
		if len(sent) == maxAsks || c.flying[g.key] != nil {
			left = append(left, g)
			continue
		}
		sent = append(sent, g)
		c.lastID++
		g.id, g.sentNs, g.stream = c.lastID, now, c.stream
		ask := quota.Ask{ID: g.id}
		for i := range g.wants {
			c.define(g.wants[i].Part.Definition)
			ask.Parts = append(ask.Parts, g.wants[i].Part)
		}
		m.Asks = append(m.Asks, ask)
	}
	if c.heard { // units go back on the stream that got them, after its first answer
		n := min(len(c.returns), maxReturns)
		m.Returns, c.returns = append(m.Returns, c.returns[:n]...), c.returns[n:]
	}
	if len(m.Asks) == 0 && len(m.Returns) == 0 {
		return
	}
	c.message = m.Append(c.message[:0])
	if !c.host.Send(c.message) {
		c.Closed(now)
		return
	}
	c.greeted, c.queue = true, left
	if len(m.Asks) > 0 {
		c.unanswered, c.sentNs = true, now
	}
	for _, g := range sent {
		delete(c.groups, g.key)
		c.flying[g.key], c.byID[g.id] = g, g
	}
}

// define puts a definition into the message, if the stream has not had it.
func (c *Client) define(id uint32) {
	if !c.defined[id] {
		c.defined[id] = true
		c.asks.Definitions = append(c.asks.Definitions, c.engine.Definitions()[id])
	}
}

// ensureOpen opens a stream if there is none and it is time to.
func (c *Client) ensureOpen(now int64) bool {
	if c.open {
		return true
	}
	if now < c.reopenNs {
		return false
	}
	if !c.host.Open() {
		c.backOff(now)
		return false
	}
	c.open, c.greeted, c.heard, c.unanswered = true, false, false, false
	c.stream = max(c.host.Random(), 1) // another worker may have the number, with little chance
	c.engine.Quota.Stream = c.stream
	clear(c.defined)
	return true
}

// backOff waits longer from try to try, with a jitter of a quarter.
func (c *Client) backOff(now int64) {
	c.reopenNs = now + c.pauseNs*3/4 + int64(c.host.Random())%(c.pauseNs/2)
	c.pauseNs = min(2*c.pauseNs, maxPauseNs)
}

// Closed is called when the stream has ended. What it was asked is asked again on
// the next.
func (c *Client) Closed(now int64) {
	if !c.open {
		return
	}
	c.open, c.stream, c.unanswered, c.returns = false, 0, false, c.returns[:0]
	c.backOff(now)
	for _, id := range slices.Sorted(maps.Keys(c.byID)) {
		c.requeue(c.byID[id])
	}
	clear(c.byID)
	clear(c.flying)
	c.flush(now)
}

// requeue queues a group again.
func (c *Client) requeue(g *group) {
	if g.refill || len(g.waiters) == 0 {
		return
	}
	if other := c.groups[g.key]; other != nil {
		for _, w := range g.waiters {
			w.group = other
		}
		for i := range other.wants {
			p, q := &other.wants[i].Part, &g.wants[i].Part
			p.Cost, p.Waiting = q.Cost, uint32(min(uint64(p.Waiting)+uint64(q.Waiting), 1<<32-1))
		}
		other.waiters, other.refill = append(g.waiters, other.waiters...), false
		return
	}
	c.groups[g.key] = g
	c.queue = append(c.queue, g)
}

// Receive takes a message of the service.
func (c *Client) Receive(message []byte, now int64) error {
	if !c.open {
		return nil
	}
	if err := c.answers.Decode(message); err != nil {
		c.host.Cancel()
		c.Closed(now)
		return err
	}
	c.heard, c.unanswered, c.heardNs, c.pauseNs = true, false, now, firstPauseNs
	q := &c.engine.Quota
	q.Silent = false
	if c.answers.Proxies > 0 {
		q.Proxies = c.answers.Proxies
	}
	for i := range c.answers.Answers {
		c.answer(&c.answers.Answers[i])
	}
	c.Resume(now)
	c.flush(now)
	return nil
}

// answer takes one answer into the engine's hand and makes those ready that waited
// for it.
func (c *Client) answer(a *quota.Answer) {
	g := c.byID[a.ID]
	if g == nil {
		return
	}
	delete(c.byID, a.ID)
	if c.flying[g.key] == g {
		delete(c.flying, g.key)
	}
	waiters := g.waiters
	if next := c.groups[g.key]; next != nil && !next.refill && g.concernsMore(a) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	switch {
	case a.Result == quota.Unknown:
		for i := range g.wants {
			delete(c.defined, g.wants[i].Part.Definition)
		}
		g.waiters = waiters
		c.requeue(g)
		return
	case a.Result == quota.Busy:
		for _, w := range waiters {
			w.crowded = true
		}
	default:
		c.take(g, a)
	}
	for _, w := range waiters {
		w.group = nil
	}
	c.ready = append(c.ready, waiters...)
	if n := len(c.ready); n > 0 && len(waiters) > 0 {
		c.ready[n-1].settle = g
	} else {
		c.settle(g)
	}
}

// concernsMore reports whether an answer decides more than the group's own requests:
// it has units beyond their need, or no answer to later asks can be better.
func (g *group) concernsMore(a *quota.Answer) bool {
	if a.Result != quota.Granted {
		return a.Result != quota.Unknown
	}
	for i := range a.Grants {
		if i < len(g.wants) && a.Grants[i].Units <= g.wants[i].Part.Waiting {
			return false
		}
	}
	return true
}

// take hands an answer to the engine.
func (c *Client) take(g *group, a *quota.Answer) {
	for i := range g.wants {
		answer := engine.Answer{SentNs: g.sentNs, Stream: g.stream, Cost: g.wants[i].Part.Cost}
		if a.Result == quota.Unavailable || i >= len(a.Grants) {
			answer.Failed = true
		} else {
			answer.Grant = a.Grants[i]
		}
		c.engine.Receive(&g.wants[i], answer)
	}
}

// settle stores what the group's requests have not taken. What goes back does so on
// the stream that got it, or not at all.
func (c *Client) settle(g *group) {
	for i := range g.wants {
		if returns := c.engine.Settle(&g.wants[i], nil); g.stream == c.stream {
			c.returns = append(c.returns, returns...)
		}
	}
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
	for n := 0; len(c.ready) > 0 && n < maxResumed; {
		w := c.ready[0]
		c.ready = c.ready[1:]
		settle := w.settle
		w.settle = nil
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
	c.flush(now)
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
	c.listen(now)
	due := 0
	for ; due < len(c.order); due++ {
		w := c.order[due]
		if w.group == nil {
			continue
		}
		if now < w.deadlineNs && !c.engine.Quota.Silent {
			break
		}
		c.expire(w)
	}
	c.order = append(c.order[:0], c.order[due:]...)
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

// abandon lets keys be asked for again whose asks have got no answer in time,
// though others have. A late answer still counts.
func (c *Client) abandon(now int64) {
	for key, g := range c.flying {
		if now-g.sentNs >= c.engine.Quota.TimeoutNs {
			delete(c.flying, key)
		}
	}
	for id, g := range c.byID {
		if now-g.sentNs >= lateNs {
			delete(c.byID, id)
		}
	}
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

// listen declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It ends a silent stream.
func (c *Client) listen(now int64) {
	timeout := c.engine.Quota.TimeoutNs
	silent := c.unanswered && now-c.sentNs >= timeout && now-c.heardNs >= timeout
	if !silent && !c.open {
		for _, w := range c.order {
			if w.group != nil {
				silent = now >= w.deadlineNs
				break
			}
		}
	}
	if !silent {
		return
	}
	c.engine.Quota.Silent, c.pauseNs = true, maxPauseNs
	if c.open {
		c.host.Cancel()
		c.Closed(now)
	}
}

// probe asks the silent service for no units, to hear whether it answers again.
func (c *Client) probe(now int64) {
	if c.unanswered || !c.ensureOpen(now) {
		return
	}
	look := quota.Part{Inspect: true} // at the first definition, and a key that nobody has
	m := quota.Asks{Definitions: c.engine.Definitions()[:1], Asks: []quota.Ask{{Parts: []quota.Part{look}}}}
	c.defined[0] = true
	if !c.greeted {
		m.Domain, m.Process = c.engine.Policy().Domain, c.engine.Process()
	}
	c.message = m.Append(c.message[:0])
	if !c.host.Send(c.message) {
		c.Closed(now)
		return
	}
	c.greeted, c.unanswered, c.sentNs = true, true, now
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
