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
//
// For example, with a timeout of 100 ms: a message is sent at 0 ms, and no answer comes. Ticks come
// each 10 ms. That at 100 ms finds the service silent, ends the stream, and has all requests
// decided that wait. About a second later a tick opens a stream, and sends a probe. The service is
// silent until it answers that.

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

// Receive takes a message of the service. Next returns the requests that have waited for it.
func (c *Client) Receive(message []byte, now int64) error {
	if c.stream.number == 0 {
		return nil
	}
	if err := c.in.Decode(message); err != nil {
		c.transport.Cancel()
		c.Closed(now)
		return err
	}
	c.stream.heard, c.stream.owesNs = true, 0
	c.stalled = false
	c.pauseNs, c.worker.Silent = firstPauseNs, false
	c.worker.SetProxies(c.in.Proxies)
	for i := range c.in.Results {
		c.endAsk(&c.in.Results[i])
	}
	return nil
}

// Closed is called when the stream has ended. What it was asked is asked again on the next one, and
// all that is held is reported again. Units of its grants cannot go back any more.
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

// Close ends the stream.
func (c *Client) Close() {
	if c.stream.number != 0 {
		c.transport.Cancel()
		c.stream.number = 0
	}
}

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// grantMoreTime gives the service its timeout anew, if the tick is so late that the worker itself
// stood still: its message may not have left, or the result may be in the queue behind the tick.
// Requests do not wait longer for it. With a timeout of 100 ms:
//
//	0 ms    A message is sent. The service owes an answer until 100 ms.
//	10 ms   A tick. Then the worker stands still.
//	70 ms   The next tick. More than half of the timeout has passed since: the service has until 170 ms.
//	150 ms  The next tick, late again. The service has had more time, and has not answered: it gets none.
//
// After standstillNs without a tick it gets none either: Tick may end the stream.
func (c *Client) grantMoreTime(now int64) (granted bool) {
	gap := now - max(c.tickNs, c.stream.owesNs)
	late := c.stream.owesNs != 0 && !c.stalled && gap > c.worker.TimeoutNs/2 && gap < standstillNs
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
		silent = slices.ContainsFunc(c.order, func(req *Waiter) bool { return req.isAsking() && now >= req.deadlineNs })
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
