package talk

// phase is how far a stream has come. Its life, and that of the next one:
//
//	         ensureOpen           send               Receive
//	closed -------------> open ----------> greeted ----------> heard
//	  ^                     |                 |                  |
//	  +---- StreamEnded ----+-----------------+------------------+
//
//	closed   There is none. After each end, and each try that fails, backOff says when the next may be
//	         opened.
//	open     It may be used. The service does not know the domain and the process yet.
//	greeted  Its first message has named them.
//	heard    The service has answered on it. From then on it takes units back.
//
// The proxy calls StreamEnded when it has ended the stream. hangUp ends it from here: after a message that
// cannot be read, and when the service is silent.
type phase uint8

const (
	closed phase = iota
	open
	greeted
	heard
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

// noteHeard notes that the service has answered on the stream. It works, so should it end, the next one may follow
// soon.
func (s *stream) noteHeard() {
	s.phase = heard
	s.pauseNs = firstPauseNs
}

// pauseLongest has the next stream wait as long as one can.
func (s *stream) pauseLongest() { s.pauseNs = maxPauseNs }

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
	c.watchdog.noteStreamEnd()
	c.worker.Returns.StreamEnded()
	c.backOff(now)
	c.asks.requeueAll()
	c.worker.Book.ReportAll()
}

// hangUp ends the open stream.
func (c *Client) hangUp(now int64) {
	c.transport.Cancel()
	c.StreamEnded(now)
}

// Close ends the talk.
func (c *Client) Close() {
	if c.stream.isOpen() {
		c.transport.Cancel()
		c.stream.phase = closed
	}
}
