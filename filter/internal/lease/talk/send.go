package talk

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Flush sends what is to be sent, in one message. While the service owes an answer, it sends nothing: the callback with
// the answer calls it again.
func (c *Client) Flush(now int64) {
	c.queueRefills()
	if c.serviceOwes() || !c.stream.isOpen() && now < c.stream.reopenNs {
		return // before queueReports: what cannot be sent yet stays on the Book's list, where it may change
	}
	c.queueReports(now)
	if len(c.asks.queue)+c.worker.Returns.Count() == 0 || !c.ensureOpen(now) {
		return
	}
	c.pack(now)
	if len(c.outMessage.Asks)+len(c.outMessage.Returns) > 0 && c.send(now) {
		c.worker.Returns.Sent(len(c.outMessage.Returns))
	}
}

// maxRefills bounds the queue for asks of requests to come: while so many asks are queued, another refill is dropped.
const maxRefills = 1024

// queueRefills queues asks for what requests to come will need.
func (c *Client) queueRefills() {
	refills := c.worker.DrainRefills()
	for i := range refills {
		if len(c.asks.queue) < maxRefills {
			c.asks.askForNobody(refills[i : i+1])
		}
	}
}

// queueReports queues an ask for no units for each account that must be reported, unless a queued ask has claimed it,
// whatever that asks for. Else the queued ask would wait for the answer to this report, and for that to the next one,
// as long as the account changes in each round trip.
func (c *Client) queueReports(now int64) {
	book := c.worker.Book
	if !book.HasListed() {
		return
	}
	c.due = book.Due(c.due[:0], c.roomForReports(), now)
	for _, acc := range c.due {
		c.asks.askForNobody([]lease.Part{lease.ReportPart(acc)})
	}
}

// What a message has room for: it has at most 64 KiB, and some of that is kept for returns. A part takes its share of
// the ask, too, and the rest of a definition takes no more than a window.
const (
	domainBytes = 256
	returnBytes = 14
	partBytes   = 128
	windowBytes = 48

	roomBytes = quota.MaxMessageBytes - domainBytes
	mostAsks  = roomBytes / partBytes // of one part each
)

// roomForReports is how many more reports may be queued or under way. Reports fill what
// requests leave of a message, and at least half of it. Flush sends the next message after the answer
// to the last one. So a worker with a full account.Book needs 129 messages: 65536 accounts, 510 asks in each.
// In round trips of 15 ms these take 2 s: by then a store that is starting begins to grant, and has all reports.
func (c *Client) roomForReports() int {
	reports, others := 0, 0
	for _, list := range [...][]*ask{c.asks.queue, c.asks.sent} {
		for _, a := range list {
			switch {
			case a.state == late: // its reports have ended, and are made again
			case a.isReport():
				reports++
			default:
				others++
			}
		}
	}
	ofMessage := max(mostAsks/2, mostAsks-others)
	return max(ofMessage-reports, 0)
}

// pack fills the message Client.outMessage with what has room in it: returns, and asks as they are queued. Looks go in
// last; a probe is one. Its asks fly then, and the others stay queued. If the message cannot be sent, the stream ends,
// and with it all that flies on it.
func (c *Client) pack(now int64) {
	m, rets := &c.outMessage, &c.worker.Returns
	*m = quota.Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	room := roomBytes - returnBytes*rets.Count()
	for _, looks := range [2]bool{false, true} { // looks do not delay requests that are to be decided
		for _, a := range c.asks.queue {
			if looks != a.isLook() {
				continue
			}
			n := c.mostBytes(a)
			if c.askMustWait(a, n, room) {
				continue
			}
			room -= n
			c.stampAndPack(a, now)
			c.packed = append(c.packed, a)
		}
	}
	c.asks.fly(c.packed)
	clear(c.packed)
	c.packed = c.packed[:0]
	m.Returns = rets.AppendTo(m.Returns)
}

// askMustWait reports whether a queued ask that takes n bytes must wait for a later message.
func (c *Client) askMustWait(a *ask, n, room int) bool {
	switch {
	case n > room: // for a message with room for it
		return true
	case c.asks.flyingFor[a.want] != nil: // for the result of the ask that flies for the same units
		return true
	default: // for the answer to a report of one of its accounts, which may be of an ask earlier in this message
		return a.mustWaitToReport()
	}
}

// stampAndPack gives the ask its number, its instant and what it tells, and puts it into the message with the
// definitions that the stream has not had.
func (c *Client) stampAndPack(a *ask, now int64) {
	c.lastID++
	a.id, a.sentNs = c.lastID, now
	m := &c.outMessage
	at := len(m.Asks)
	m.Asks = slices.Grow(m.Asks, 1)[:at+1]
	message := &m.Asks[at]
	*message = quota.Ask{ID: a.id, Parts: message.Parts[:0]}
	for i := range a.parts {
		p := &a.parts[i]
		p.Tell(now) // an ask behind this one, for the same account, waits from now on
		c.define(p.Definition)
		message.Parts = append(message.Parts, p.Wire)
	}
}

// mostBytes is how much of a message the ask takes at most. If the stream has had almost as many definitions as the
// service remembers, define may forget them, and then adds all that the ask has.
func (c *Client) mostBytes(a *ask) (n int) {
	mayForget := len(c.stream.defined)+len(a.parts) > quota.MaxDefinitions
	for i := range a.parts {
		n += partBytes
		if mayForget || !c.stream.defined[a.parts[i].Wire.Definition] {
			n += windowBytes * (1 + len(a.parts[i].Definition.Windows))
		}
	}
	return n
}

// define puts a definition into the message, if the stream has not had it. The service remembers the last
// quota.MaxDefinitions. Once the stream has had so many, the worker forgets them all before it sends another one. If an
// ask of the message uses one that the service drops then, its result is Unknown: see defineAgain.
func (c *Client) define(d *quota.Definition) {
	if c.stream.defined[d.ID] {
		return
	}
	if len(c.stream.defined) >= quota.MaxDefinitions {
		clear(c.stream.defined)
	}
	c.stream.defined[d.ID] = true
	c.outMessage.Definitions = append(c.outMessage.Definitions, *d)
}

// send sends the message Client.outMessage. A stream's first one says which domain and process asks.
func (c *Client) send(now int64) bool {
	m := &c.outMessage
	isFirst := c.stream.phase == open
	if isFirst {
		c.worker.Greet(m)
	}
	c.message = m.Append(c.message[:0])
	if !c.transport.Send(c.message) {
		c.StreamEnded(now)
		return false
	}
	if isFirst {
		c.stream.phase = greeted
	}
	if len(m.Asks) > 0 {
		c.owed.sinceNs = now
	}
	return true
}
