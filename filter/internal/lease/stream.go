package lease

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// The life of a stream, and of the next one:
//
//	         ensureOpen           send               Receive
//	closed -------------> open ----------> greeted ----------> heard
//	  ^                     |                 |                  |
//	  +------- Closed ------+-----------------+------------------+
//
//	closed   There is none: number is 0. After each end, and each try that fails, backOff says
//	         when the next may be opened (Client.reopenNs).
//	open     It may be used. The service does not know the domain and the process yet.
//	greeted  Its first message has named them.
//	heard    The service has answered on it. From then on it takes units back.
//
// The proxy calls Closed when the stream has ended. Receive calls it after a message that it cannot
// read, send if the proxy takes no message, and noteSilence.
//
// The life of the service, over all streams:
//
//	          send, of asks           noteSilence
//	answered ---------------> asked ---------------> silent
//	   ^                        |                      |
//	   +-------- Receive -------+------- Receive ------+
//
//	answered  It owes no answer: stream.owesNs is 0.
//	asked     It owes one since owesNs, and Flush sends nothing more. If the stream closes, it owes
//	          none: the same is asked on the next stream.
//	silent    It has owed one for the timeout, or a request has waited that long without a stream
//	          (Worker.Silent). No request waits any more, and probe asks until an answer comes.

// stream is a stream to the service.
type stream struct {
	number  uint32          // 0 = it is closed
	greeted bool            // it has had its first message
	heard   bool            // the service has answered on it
	owesNs  int64           // since when the service owes an answer to asks; 0 = it owes none
	defined map[uint32]bool // definitions that it has had
}

// IsConnected reports whether a stream is open. A worker without one does not know whether
// the service is silent, unless it has found so.
func (c *Client) IsConnected() bool { return c.stream.number != 0 }

// queueRefills queues asks for what requests to come will need.
func (c *Client) queueRefills() {
	for i := range c.worker.refills {
		if len(c.queue.list) < maxRefills {
			c.queueAsk(c.worker.refills[i:i+1], nil)
		}
	}
	c.worker.refills = c.worker.refills[:0]
}

// Flush sends what is to be sent, in one message. While no result of the last message has come, it
// sends nothing: the callback with the result calls it again.
func (c *Client) Flush(now int64) {
	c.queueRefills()
	if c.stream.owesNs != 0 || c.stream.number == 0 && now < c.reopenNs {
		return
	}
	c.queueReports(now)
	if len(c.queue.list)+len(c.returns) == 0 || !c.ensureOpen(now) {
		return
	}
	left := c.pack(now)
	m := &c.asks
	if len(m.Asks)+len(m.Returns) == 0 || !c.send(m, now) {
		for _, a := range c.packed {
			c.worker.accounts.reportAgain(a)
		}
		return
	}
	c.queue.list = append(c.queue.list[:0], left...)
	for _, a := range c.packed {
		delete(c.queue.byWant, a.want)
		c.sent.add(a)
	}
}

// pack makes a message of what has room in it: c.asks, and c.packed, which stay in the queue
// until they are sent. It returns the asks that have to wait.
func (c *Client) pack(now int64) (left []*ask) {
	m := &c.asks
	*m = quota.Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	c.packed = c.packed[:0]
	room := roomBytes - returnBytes*min(len(c.returns), maxReturns)
	for _, a := range c.queue.list {
		n := c.mostBytes(a)
		if n > room || c.sent.flying[a.want] != nil || a.isReported() {
			left = append(left, a)
			continue
		}
		room -= n
		c.packAsk(a, now)
	}
	if c.stream.heard { // units go back on the stream that got them, after its first results
		n := min(len(c.returns), maxReturns)
		m.Returns = append(m.Returns, c.returns[:n]...)
		c.returns = c.returns[n:]
	}
	return left
}

// packAsk puts an ask into the message, with the definitions that the stream has not had.
func (c *Client) packAsk(a *ask, now int64) {
	c.packed = append(c.packed, a)
	c.lastID++
	a.id, a.sentNs = c.lastID, now
	a.stream = c.stream.number
	a.report(&c.worker.accounts, now)
	m := &c.asks
	at := len(m.Asks)
	m.Asks = slices.Grow(m.Asks, 1)[:at+1]
	message := &m.Asks[at]
	*message = quota.Ask{ID: a.id, Parts: message.Parts[:0]}
	for i := range a.parts {
		c.define(a.parts[i].definition)
		message.Parts = append(message.Parts, a.parts[i].Wire)
	}
}

// What a message takes at most: the domain, a return, a part with its share of the ask, and a window
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
		n += partBytes
		if !c.stream.defined[a.parts[i].Wire.Definition] {
			n += windowBytes * (1 + len(a.parts[i].definition.Windows))
		}
	}
	return n
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

// send sends a message. A stream's first one says which domain and process asks.
func (c *Client) send(m *quota.Asks, now int64) bool {
	if !c.stream.greeted {
		m.Domain, m.Process = c.worker.domain, c.worker.tables.Process()
	}
	c.message = m.Append(c.message[:0])
	if !c.transport.Send(c.message) {
		c.Closed(now)
		return false
	}
	c.stream.greeted = true
	if len(m.Asks) > 0 {
		c.stream.owesNs = now
	}
	return true
}

// ensureOpen opens a stream if there is none and it is time to.
func (c *Client) ensureOpen(now int64) bool {
	if c.stream.number != 0 {
		return true
	}
	if now < c.reopenNs {
		return false
	}
	if !c.transport.Open() {
		c.backOff(now)
		return false
	}
	clear(c.stream.defined)
	number := max(c.transport.Random(), 1) // another worker may have the number, with little chance
	c.stream = stream{number: number, defined: c.stream.defined}
	return true
}

// backOff waits longer from try to try, with a jitter of a quarter.
func (c *Client) backOff(now int64) {
	c.reopenNs = now + c.pauseNs*3/4 + int64(c.transport.Random())%(c.pauseNs/2)
	c.pauseNs = min(2*c.pauseNs, maxPauseNs)
}

// Closed is called when the stream has ended. What it was asked is asked again on
// the next.
func (c *Client) Closed(now int64) {
	if c.stream.number == 0 {
		return
	}
	c.stream.number, c.stream.owesNs = 0, 0
	c.returns = c.returns[:0]
	c.backOff(now)
	for _, a := range c.sent.list {
		c.worker.accounts.reportAgain(a)
		c.requeue(a)
	}
	c.sent.list = nil
	clear(c.sent.flying)
	c.worker.accounts.markAllDue(now)
}

// Receive takes a message of the service. Next returns the requests that have waited for it.
func (c *Client) Receive(message []byte, now int64) error {
	if c.stream.number == 0 {
		return nil
	}
	if err := c.grants.Decode(message); err != nil {
		c.transport.Cancel()
		c.Closed(now)
		return err
	}
	c.stream.heard, c.stream.owesNs = true, 0
	c.stalled = false
	c.pauseNs, c.worker.Silent = firstPauseNs, false
	c.worker.SetProxies(c.grants.Proxies)
	for i := range c.grants.Results {
		c.receive(&c.grants.Results[i])
	}
	return nil
}

// Tick finds requests whose time is over and units that are idle, and finds out whether
// the service is silent. Period says when to call it next.
func (c *Client) Tick(now int64) {
	c.returns = c.worker.takeIdle(c.returns, c.stream.number, len(c.returns)+maxReturns)
	if !c.grantMoreTime(now) {
		c.noteSilence(now)
	}
	c.expireAll(now)
	c.noteLate(now)
	c.worker.accounts.renew(now, c.worker.TimeoutNs)
	if c.worker.Silent {
		c.probe(now)
	}
}

// Period is how soon Tick must be called, in milliseconds.
func (c *Client) Period() uint32 {
	switch {
	case c.next < len(c.ready):
		return 1
	case len(c.waiters) > 0 || c.stream.owesNs != 0:
		return 10
	}
	if ns := c.worker.idleNs; ns > 0 {
		return uint32(min(max(ns, minReturnNs)/1e6, 1000))
	}
	return 1000
}

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// grantMoreTime gives the service its timeout anew, if the tick is so late that the worker itself
// stood still: its message may not have left, or the result may be in the queue behind the tick.
// The service gets more time once until it answers, and requests do not wait longer for it. If the
// worker stood still for standstillNs, the service gets no more time: Tick may end the stream.
func (c *Client) grantMoreTime(now int64) bool {
	gap := now - max(c.tickNs, c.stream.owesNs)
	late := c.stream.owesNs != 0 && !c.stalled && gap > c.worker.TimeoutNs/2 && gap < standstillNs
	c.tickNs = now
	if late {
		c.stalled, c.stream.owesNs = true, now
	}
	return late
}

// noteSilence declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It ends a silent stream.
func (c *Client) noteSilence(now int64) {
	timeout := c.worker.TimeoutNs
	silent := c.stream.owesNs != 0 && now-c.stream.owesNs >= timeout
	if !silent && c.stream.number == 0 {
		silent = slices.ContainsFunc(c.order, func(req *Waiter) bool { return req.ask != nil && now >= req.deadlineNs })
	}
	if !silent {
		return
	}
	c.worker.Silent, c.pauseNs = true, maxPauseNs
	if c.stream.number != 0 {
		c.transport.Cancel()
		c.Closed(now)
	}
}

// probe asks the silent service for no units, to hear whether it answers again.
func (c *Client) probe(now int64) {
	if c.stream.owesNs != 0 || !c.ensureOpen(now) {
		return
	}
	look := quota.Part{Inspect: true} // at the first definition, and a key that nobody has
	m := quota.Asks{Definitions: c.worker.Definitions[:1], Asks: []quota.Ask{{Parts: []quota.Part{look}}}}
	c.stream.defined[0] = true
	c.send(&m, now)
}

// noteLate finds the asks that have no result in time, though others have: their units may be
// asked for again.
func (c *Client) noteLate(now int64) {
	for _, a := range c.sent.list {
		if now-a.sentNs < c.worker.TimeoutNs {
			break
		}
		if c.sent.stopFlying(a) {
			c.worker.accounts.reportAgain(a)
		}
	}
	for len(c.sent.list) > 0 && now-c.sent.list[0].sentNs >= lateNs {
		c.sent.list = c.sent.list[1:]
	}
}
