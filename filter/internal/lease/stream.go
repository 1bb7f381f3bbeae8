package lease

import (
	"sort"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// flush sends what is queued, unless a message is under way.
func (c *Client) flush(now int64) {
	if c.resuming { // what the last of them leave goes back first
		return
	}
	if c.sentNs != 0 || len(c.queue) == 0 && len(c.returns) == 0 || !c.ensureOpen(now) {
		return
	}
	m := &c.asks
	*m = quota.Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	c.greet(m)
	var sent, left []*ask
	for _, g := range c.queue {
		if len(sent) == maxAsks || c.flying[g.key] != nil {
			left = append(left, g)
			continue
		}
		sent = append(sent, g)
		c.lastID++
		g.id, g.sentNs, g.stream = c.lastID, now, c.stream.number
		ask := quota.Ask{ID: g.id}
		for i := range g.parts {
			c.define(g.parts[i].Definition)
			ask.Parts = append(ask.Parts, g.parts[i].Part)
		}
		m.Asks = append(m.Asks, ask)
	}
	if c.stream.heard { // units go back on the stream that got them, after its first answer
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
	c.stream.greeted, c.queue = true, left
	if len(m.Asks) > 0 {
		c.sentNs = now
	}
	for _, g := range sent {
		delete(c.groups, g.key)
		c.flying[g.key], c.byID[g.id] = g, g
	}
}

// greet says in a stream's first message who asks.
func (c *Client) greet(m *quota.Asks) {
	if !c.stream.greeted {
		m.Domain, m.Process = c.worker.domain, c.worker.tables.Process()
	}
}

// define puts a definition into the message, if the stream has not had it.
func (c *Client) define(id uint32) {
	if !c.stream.defined[id] {
		c.stream.defined[id] = true
		c.asks.Definitions = append(c.asks.Definitions, c.worker.Definitions[id])
	}
}

// ensureOpen opens a stream if there is none and it is time to.
func (c *Client) ensureOpen(now int64) bool {
	if c.stream.number != 0 {
		return true
	}
	if now < c.reopenNs {
		return false
	}
	if !c.host.Open() {
		c.backOff(now)
		return false
	}
	clear(c.stream.defined)
	number := max(c.host.Random(), 1) // another worker may have the number, with little chance
	c.stream, c.sentNs = stream{number: number, defined: c.stream.defined}, 0
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
	if c.stream.number == 0 {
		return
	}
	c.stream.number, c.sentNs, c.returns = 0, 0, c.returns[:0]
	c.backOff(now)
	groups := make([]*ask, 0, len(c.byID))
	for _, g := range c.byID {
		groups = append(groups, g)
	}
	sort.Slice(groups, func(i, j int) bool { return groups[i].id < groups[j].id })
	for _, g := range groups {
		c.requeue(g)
	}
	clear(c.byID)
	clear(c.flying)
	c.flush(now)
}

// requeue queues a group again.
func (c *Client) requeue(g *ask) {
	if g.refill || len(g.waiters) == 0 {
		return
	}
	if other := c.groups[g.key]; other != nil {
		for _, w := range g.waiters {
			w.ask = other
		}
		for i := range other.parts {
			p, q := &other.parts[i].Part, &g.parts[i].Part
			p.Cost, p.Waiting = q.Cost, limit.AddSaturating(p.Waiting, q.Waiting)
		}
		other.waiters, other.refill = append(g.waiters, other.waiters...), false
		return
	}
	c.groups[g.key] = g
	c.queue = append(c.queue, g)
}

// Receive takes a message of the service.
func (c *Client) Receive(message []byte, now int64) error {
	if c.stream.number == 0 {
		return nil
	}
	if err := c.answers.Decode(message); err != nil {
		c.host.Cancel()
		c.Closed(now)
		return err
	}
	c.stream.heard, c.sentNs, c.heardNs, c.pauseNs = true, 0, now, firstPauseNs
	c.stalled, c.worker.Silent = false, false
	c.worker.SetProxies(c.answers.Proxies)
	for i := range c.answers.Answers {
		c.answer(&c.answers.Answers[i])
	}
	c.Resume(now)
	c.flush(now)
	return nil
}

// answer gives an answer to the requests that waited for it, and stores the rest.
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
	if next := c.groups[g.key]; next != nil && !next.refill && c.concernsMore(g, a) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	switch a.Result {
	case quota.Unknown:
		for i := range g.parts {
			delete(c.stream.defined, g.parts[i].Definition)
		}
		g.waiters = waiters
		c.requeue(g)
		return
	case quota.Busy:
		for _, w := range waiters {
			w.crowded = true
		}
	default:
		for i := range g.parts {
			c.share(g, i, a, waiters)
		}
	}
	for _, w := range waiters {
		w.ask = nil
	}
	c.ready = append(c.ready, waiters...)
}

// share gives the waiters what the answer has for one part, in their order, and stores the
// rest.
func (c *Client) share(g *ask, i int, a *quota.Answer, waiters []*waiter) {
	part := &g.parts[i]
	got := &grant{source: part.source, place: part.place}
	r := &got.received
	r.cost, r.stream, r.nowNs = part.Cost, g.stream, c.worker.host.Monotonic()
	if a.Result != quota.Granted && a.Result != quota.Denied || i >= len(a.Grants) { // or what a newer service says
		r.Failed = true
	} else {
		r.Grant = a.Grants[i]
	}
	r.bound(quota.MostWaitNs(c.worker.Definitions[part.Definition].Windows))
	r.endNs = g.sentNs + r.ValidNs
	for _, w := range waiters {
		for _, s := range w.verdict.Subjects {
			if s.Outcome == decide.Pending && s.Rule.Source == part.source && accountOf(s).part == i {
				got.give(s)
			}
		}
	}
	rest := *r
	if got.Units = 0; got.having > 0 && !rest.Leased { // all of it goes back at once
		got.Units, rest.Units = rest.Units, 0
	}
	c.giveBack(part.source.store(part.place, &rest, part.Spent), g.stream)
}

// concernsMore reports whether an answer decides more than the group's own requests:
// it has units beyond their need, or no answer to later asks can be better, nor counts.
func (c *Client) concernsMore(g *ask, a *quota.Answer) bool {
	if a.Result != quota.Granted && a.Result != quota.Denied {
		return a.Result != quota.Unknown
	}
	for i := range g.parts {
		switch {
		case c.countsDenied(&g.parts[i]):
			return false
		case a.Result == quota.Granted && i < len(a.Grants) && !a.Grants[i].Denied && a.Grants[i].Units <= g.parts[i].Waiting:
			return false
		}
	}
	return true
}

// countsDenied reports whether an ask for it counts even where it is denied.
func (c *Client) countsDenied(w *Part) bool {
	return c.worker.Definitions[w.Definition].CountDenied
}
