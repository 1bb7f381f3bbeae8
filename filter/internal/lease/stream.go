package lease

import (
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// flush sends what is queued, unless a message is under way.
func (c *Client) flush(now int64) {
	if c.resuming { // what the last of them leave goes back first
		return
	}
	if c.sentNs != 0 || c.stream.number == 0 && now < c.reopenNs {
		return
	}
	c.queueLevels(now)
	if len(c.queue) == 0 && len(c.returns) == 0 || !c.ensureOpen(now) {
		return
	}
	m := &c.asks
	*m = quota.Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	var left []*ask
	sent := c.sending[:0]
	room := roomBytes - returnBytes*min(len(c.returns), maxReturns)
	for _, a := range c.queue {
		n := c.mostBytes(a)
		if n > room || c.flying[a.key] != nil || a.isAsked() {
			left = append(left, a)
			continue
		}
		room -= n
		sent = append(sent, a)
		c.lastID++
		a.id, a.sentNs, a.stream = c.lastID, now, c.stream.number
		a.state(c.worker, now)
		at := len(m.Asks)
		m.Asks = slices.Grow(m.Asks, 1)[:at+1]
		message := &m.Asks[at]
		*message = quota.Ask{ID: a.id, Parts: message.Parts[:0]}
		for i := range a.parts {
			c.define(a.parts[i].definition)
			message.Parts = append(message.Parts, a.parts[i].Part)
		}
	}
	if c.stream.heard { // units go back on the stream that got them, after its first answer
		n := min(len(c.returns), maxReturns)
		m.Returns, c.returns = append(m.Returns, c.returns[:n]...), c.returns[n:]
	}
	if len(m.Asks) == 0 && len(m.Returns) == 0 || !c.send(m, now) {
		for _, a := range sent {
			a.forgo(c.worker)
		}
		return
	}
	c.queue, c.sending, c.sent = append(c.queue[:0], left...), sent, append(c.sent, sent...)
	for _, a := range sent {
		delete(c.queued, a.key)
		c.flying[a.key] = a
	}
}

// What a message takes at most: who asks, a return, a part with its share of the ask, and a window
// or the rest of a definition.
const (
	domainBytes = 256
	returnBytes = 14
	partBytes   = 128
	windowBytes = 48

	roomBytes = quota.MaxMessageBytes - domainBytes
	mostAsks  = roomBytes / partBytes // of one part each
)

// mostBytes is how much of a message the ask takes at most.
func (c *Client) mostBytes(a *ask) (n int) {
	for i := range a.parts {
		if n += partBytes; !c.stream.defined[a.parts[i].Definition] {
			n += windowBytes * (1 + len(a.parts[i].definition.Windows))
		}
	}
	return n
}

// send sends a message, and in a stream's first one who asks.
func (c *Client) send(m *quota.Asks, now int64) bool {
	if !c.stream.greeted {
		m.Domain, m.Process = c.worker.domain, c.worker.tables.Process()
	}
	c.message = m.Append(c.message[:0])
	if !c.host.Send(c.message) {
		c.Closed(now)
		return false
	}
	if c.stream.greeted = true; len(m.Asks) > 0 {
		c.sentNs = now
	}
	return true
}

// define puts a definition into the message, if the stream has not had it. It forgets which
// the stream has had before the service does: of the last quota.MaxDefinitions it drops none.
func (c *Client) define(d *quota.Definition) {
	if c.stream.defined[d.ID] {
		return
	}
	if len(c.stream.defined) >= quota.MaxDefinitions {
		clear(c.stream.defined)
	}
	c.stream.defined[d.ID] = true
	c.asks.Definitions = append(c.asks.Definitions, *d)
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
	for _, a := range c.sent {
		a.forgo(c.worker)
		c.requeue(a)
	}
	c.sent = nil
	clear(c.flying)
	c.worker.restate(now)
	c.flush(now)
}

// requeue queues an ask again for which somebody waits.
func (c *Client) requeue(a *ask) {
	if len(a.waiters) == 0 {
		return
	}
	next := c.queued[a.key]
	if next == nil {
		c.queued[a.key], c.queue = a, append(c.queue, a)
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
	for i := range c.answers.Results {
		c.answer(&c.answers.Results[i])
	}
	c.Resume(now)
	return nil
}

// answer gives an answer to the requests that waited for it, and stores the rest.
func (c *Client) answer(said *quota.AskResult) {
	a := c.answered(said.ID)
	if a == nil {
		return
	}
	defer a.forgo(nil) // of what the answer does not say
	waiters := a.waiters
	if next := c.queued[a.key]; next != nil && len(next.waiters) > 0 && c.concernsMore(a, said) {
		waiters = append(waiters, next.waiters...)
		c.unqueue(next)
	}
	switch said.Result {
	case quota.Unknown:
		for i := range a.parts {
			delete(c.stream.defined, a.parts[i].Definition)
		}
		c.requeue(a)
		return
	case quota.Busy:
		for _, w := range waiters {
			w.short = decide.Contended
		}
	default:
		for i := range a.parts {
			c.distribute(a, i, said, waiters)
		}
	}
	for _, w := range waiters {
		w.ask = nil
	}
	c.ready = append(c.ready, waiters...)
}

// answered takes the ask of that number off those that were sent, nil if there is none.
// Numbers begin anew after the largest.
func (c *Client) answered(id uint32) *ask {
	i := sort.Search(len(c.sent), func(i int) bool { return c.sent[i].id-c.sent[0].id >= id-c.sent[0].id })
	if i == len(c.sent) || c.sent[i].id != id {
		return nil
	}
	a := c.sent[i]
	c.sent = slices.Delete(c.sent, i, i+1)
	if c.flying[a.key] == a {
		delete(c.flying, a.key)
	}
	return a
}

// distribute gives the waiters what the answer has for one part, in their order, and stores the
// rest.
func (c *Client) distribute(a *ask, i int, said *quota.AskResult, waiters []*waiter) {
	part := &a.parts[i]
	g := &grant{part: part, stream: a.stream, nowNs: c.worker.host.Monotonic()}
	switch said.Result {
	case quota.Granted, quota.Denied, quota.Unavailable:
		g.Failed = i >= len(said.Grants) // of an older service that is Unavailable
	default: // what a newer service says
		g.Failed = true
	}
	if !g.Failed {
		g.Grant = said.Grants[i]
	}
	if part.level != nil {
		g.heard(a, i, c.worker)
	}
	g.bound(quota.MostWaitNs(part.definition.Windows))
	g.endNs = a.sentNs + g.ValidNs
	for _, st := range g.Windows {
		g.standings = append(g.standings, state.Standing{Used: st.Used, ResetNs: g.nowNs + st.ResetNs})
	}
	for _, w := range waiters {
		for j := range w.parts {
			if p := &w.parts[j]; p.grant == nil && p.Definition == part.Definition {
				g.give(p)
			}
		}
	}
	if part.level != nil { // what nobody takes is stated as not held
		return
	}
	rest := g.Units
	if g.Units = 0; g.takers > 0 && !g.Leased { // all of it goes back at once
		g.Units, rest = rest, 0
	}
	c.giveBack(g.store(rest, true), a.stream)
}

// concernsMore reports whether an answer decides more than the ask's own requests:
// it has units beyond their need, or no answer to later asks can be better, nor counts.
func (c *Client) concernsMore(a *ask, said *quota.AskResult) bool {
	if said.Result != quota.Granted && said.Result != quota.Denied {
		return said.Result != quota.Unknown
	}
	for i := range a.parts {
		switch {
		case c.countsDenied(&a.parts[i]):
			return false
		case said.Result == quota.Granted && i < len(said.Grants) && !said.Grants[i].Denied && said.Grants[i].Units <= a.parts[i].Waiting:
			return false
		}
	}
	return true
}

// countsDenied reports whether an ask for it counts even where it is denied.
func (c *Client) countsDenied(p *Part) bool { return p.definition.CountDenied }
