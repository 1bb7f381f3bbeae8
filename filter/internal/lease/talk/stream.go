package talk

// phase is how far a stream has come. Its life, and that of the next one:
//
//	         ensureOpen           send
//	closed -------------> open ----------> greeted
//	  ^                     |                 |
//	  +---- StreamEnded ----+-----------------+
//
//	closed   There is none. After each end, and each try that fails, backOff says when the next may be
//	         opened.
//	open     It may be used. The service does not know the domain and the process yet.
//	greeted  Its first message has named them.
//
// The proxy calls StreamEnded when it has ended the stream. hangUp ends it from here: after a message that
// cannot be read, when the service is silent, and when the talk ends.
type phase uint8

const (
	closed phase = iota
	open
	greeted
)

// stream is the stream to the service.
type stream struct {
	phase phase

	// Of the open stream:
	number  uint32          // which the worker has given it
	defined map[uint32]bool // definitions that it has had

	// Of the closed one:
	reopenNs int64 // when the next may be opened
	pauseNs  int64 // how long that takes, from the next end or failed try on: see backOff
}

func (s *stream) isOpen() bool { return s.phase != closed }

// IsConnected reports whether a stream is open. A worker without one does not know whether
// the service is silent, unless it has found so.
func (c *Client) IsConnected() bool { return c.stream.isOpen() }

// ensureOpen opens a stream if there is none and it is time to.
func (c *Client) ensureOpen(now int64) bool {
	s := &c.stream
	if s.isOpen() {
		return true
	}
	if now < s.reopenNs {
		return false
	}
	if !c.transport.Open() {
		c.backOff(now)
		return false
	}
	s.number = max(c.transport.Random(), 1) // another worker may have the number, with little chance
	c.worker.Returns.StreamOpened(s.number)
	s.phase = open
	clear(s.defined)
	return true
}

const (
	firstPauseNs = 10_000_000    // between the first two tries to open a stream
	maxPauseNs   = 1_000_000_000 // between later ones
)

// backOff waits longer from try to try, with a jitter of a quarter.
func (c *Client) backOff(now int64) {
	s := &c.stream
	s.reopenNs = now + s.pauseNs*3/4 + int64(c.transport.Random())%(s.pauseNs/2)
	s.pauseNs = min(2*s.pauseNs, maxPauseNs)
}

// StreamEnded is called when the stream has ended. What it was asked is asked again on the next one, and
// all that is held is reported again. Units of its grants cannot go back any more.
func (c *Client) StreamEnded(now int64) {
	if !c.stream.isOpen() {
		return
	}
	c.stream.phase = closed
	c.owed.sinceNs = 0 // no answer can come any more: the same is asked on the next stream
	c.worker.Returns.StreamEnded()
	c.backOff(now)
	c.asks.streamEnded()
	c.worker.Book.ReportAll()
}

// hangUp ends the open stream.
func (c *Client) hangUp(now int64) {
	c.transport.Cancel()
	c.StreamEnded(now)
}

// Close ends the talk.
func (c *Client) Close(now int64) {
	if c.stream.isOpen() {
		c.hangUp(now)
	}
}

// owed is what the service owes: an answer to a message with asks. As long as it owes one, Flush sends nothing. What
// changes that, and whether the service is silent:
//
//	by           when                                         the service  Service.Silent
//	send         a message with asks leaves                   owes         the same
//	noteAnswer   any message of the service comes             owes none    false
//	StreamEnded  the stream ends                              owes none    the same
//	noteSilence  it has owed for the timeout                  owes none    true
//	noteSilence  a request has waited that long for a stream  owes none    true
//
// Any message is an answer, also one with results of older asks, or with none. It shows that the service is there. Each
// ask has its result once its own keys are decided. So if Flush waited for certain results, a key whose store is slow
// would delay the others.
//
// While the service is silent, no request waits, because sources decide by Service.Silent. Tick asks on, by a probe,
// until an answer comes.
//
// For example, with a timeout of 100 ms: a message is sent at 0 ms, and no answer comes. Ticks come each 10 ms. That at
// 100 ms finds the service silent, and ends the stream. It has all waiting requests decided, and queues a probe. About
// a second later a stream is opened, and the probe is sent. The service is silent until it answers that.
type owed struct {
	sinceNs  int64 // since when it owes an answer. 0 = it owes none
	extended bool  // noteTick has moved sinceNs, and nothing has come since
	tickNs   int64 // when the last tick was, for noteTick
}

// serviceOwes reports whether the service owes an answer.
func (c *Client) serviceOwes() bool { return c.owed.sinceNs != 0 }

// noteAnswer notes that the service has answered. The stream works, so should it end, the next one may follow soon.
func (c *Client) noteAnswer() {
	c.stream.pauseNs = firstPauseNs
	c.owed.sinceNs = 0
	c.owed.extended = false
	c.worker.Service.Silent = false
}

// noteSilence declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It hangs up on a silent service.
func (c *Client) noteSilence(now int64) {
	answerIsLate := c.serviceOwes() && now-c.owed.sinceNs >= c.worker.Service.TimeoutNs
	streamIsLate := !c.stream.isOpen() && c.waiters.hasOverdue(now)
	if !answerIsLate && !streamIsLate {
		return
	}
	c.worker.Service.Silent = true
	c.stream.pauseNs = maxPauseNs
	if c.stream.isOpen() {
		c.hangUp(now)
	}
}

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// noteTick gives the service its timeout anew, if the tick is so late that the worker itself
// stood still: its message may not have left, or the result may be in the queue behind the tick.
// Requests do not wait longer for it. With a timeout of 100 ms:
//
//	0 ms    A message is sent. The service owes an answer until 100 ms.
//	10 ms   A tick. Then the worker stands still.
//	70 ms   The next tick. More than half of the timeout has passed since: the service has until 170 ms.
//	150 ms  The next tick, late again. The service has had more time, and has not answered: it gets none.
//
// After standstillNs without a tick it gets none either: Tick may end the stream.
func (c *Client) noteTick(now int64) {
	o := &c.owed
	gap := now - max(o.tickNs, o.sinceNs)
	stoodStill := gap > c.worker.Service.TimeoutNs/2 && gap < standstillNs
	if stoodStill && c.serviceOwes() && !o.extended {
		o.sinceNs = now
		o.extended = true
	}
	o.tickNs = now
}
