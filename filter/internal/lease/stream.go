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
	var sent, left []*group
	for _, g := range c.queue {
		if len(sent) == maxAsks || c.flying[g.key] != nil {
			left = append(left, g)
			continue
		}
		sent = append(sent, g)
		c.lastID++
		g.id, g.sentNs, g.stream = c.lastID, now, c.stream.number
		ask := quota.Ask{ID: g.id}
		for i := range g.wants {
			c.define(g.wants[i].Part.Definition)
			ask.Parts = append(ask.Parts, g.wants[i].Part)
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
	groups := make([]*group, 0, len(c.byID))
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
		for i := range g.wants {
			delete(c.stream.defined, g.wants[i].Part.Definition)
		}
		g.waiters = waiters
		c.requeue(g)
		return
	case quota.Busy:
		for _, w := range waiters {
			w.crowded = true
		}
	default:
		for i := range g.wants {
			c.share(g, i, a, waiters)
		}
	}
	for _, w := range waiters {
		w.group = nil
	}
	c.ready = append(c.ready, waiters...)
}

// share gives the waiters what the answer has for one want, in their order, and stores the
// rest.
func (c *Client) share(g *group, i int, a *quota.Answer, waiters []*waiter) {
	want := &g.wants[i]
	got := &grant{source: want.source, place: want.place}
	r := &got.received
	r.cost, r.stream, r.nowNs = want.Part.Cost, g.stream, c.worker.host.Monotonic()
	if a.Result != quota.Granted && a.Result != quota.Denied || i >= len(a.Grants) { // or what a newer service says
		r.Failed = true
	} else {
		r.Grant = a.Grants[i]
	}
	r.bound(quota.MostWaitNs(c.worker.Definitions[want.Part.Definition].Windows))
	r.endNs = g.sentNs + r.ValidNs
	for _, w := range waiters {
		for _, s := range w.verdict.Subjects {
			if s.Outcome == decide.Pending && s.Rule.Source == want.source && accountOf(s).want == i {
				got.give(s)
			}
		}
	}
	rest := *r
	if got.Units = 0; got.having > 0 && !rest.Leased { // all of it goes back at once
		got.Units, rest.Units = rest.Units, 0
	}
	c.giveBack(want.source.store(want.place, &rest, want.Part.Spent), g.stream)
}

// concernsMore reports whether an answer decides more than the group's own requests:
// it has units beyond their need, or no answer to later asks can be better, nor counts.
func (c *Client) concernsMore(g *group, a *quota.Answer) bool {
	if a.Result != quota.Granted && a.Result != quota.Denied {
		return a.Result != quota.Unknown
	}
	for i := range g.wants {
		switch {
		case c.countsDenied(&g.wants[i]):
			return false
		case a.Result == quota.Granted && i < len(a.Grants) && !a.Grants[i].Denied && a.Grants[i].Units <= g.wants[i].Part.Waiting:
			return false
		}
	}
	return true
}

// countsDenied reports whether an ask for it counts even where it is denied.
func (c *Client) countsDenied(w *Want) bool {
	return c.worker.Definitions[w.Part.Definition].CountDenied
}

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// stoodStill reports whether the tick comes so late that the worker was busy with
// something else: what it has sent may not have left, and what has come may lie
// behind the tick. The service gets its timeout anew, once until it answers. Requests
// wait no longer for that. After a very long time it begins a new stream.
func (c *Client) stoodStill(now int64) bool {
	gap := now - max(c.tickNs, c.sentNs)
	late := c.sentNs != 0 && !c.stalled && gap > c.worker.TimeoutNs/2 && gap < standstillNs
	c.tickNs = now
	if late {
		c.stalled, c.sentNs = true, now
	}
	return late
}

// listen declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It ends a silent stream.
func (c *Client) listen(now int64) {
	timeout := c.worker.TimeoutNs
	silent := c.sentNs != 0 && now-c.sentNs >= timeout && now-c.heardNs >= timeout
	if !silent && c.stream.number == 0 {
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
	c.worker.Silent, c.pauseNs = true, maxPauseNs
	if c.stream.number != 0 {
		c.host.Cancel()
		c.Closed(now)
	}
}

// probe asks the silent service for no units, to hear whether it answers again.
func (c *Client) probe(now int64) {
	if c.sentNs != 0 || !c.ensureOpen(now) {
		return
	}
	look := quota.Part{Inspect: true} // at the first definition, and a key that nobody has
	m := quota.Asks{Definitions: c.worker.Definitions[:1], Asks: []quota.Ask{{Parts: []quota.Part{look}}}}
	c.stream.defined[0] = true
	c.greet(&m)
	c.message = m.Append(c.message[:0])
	if !c.host.Send(c.message) {
		c.Closed(now)
		return
	}
	c.stream.greeted, c.sentNs = true, now
}

// abandon lets keys be asked for again whose asks have got no answer in time,
// though others have. A late answer still counts.
func (c *Client) abandon(now int64) {
	for key, g := range c.flying {
		if now-g.sentNs >= c.worker.TimeoutNs {
			delete(c.flying, key)
		}
	}
	for id, g := range c.byID {
		if now-g.sentNs >= lateNs {
			delete(c.byID, id)
		}
	}
}
