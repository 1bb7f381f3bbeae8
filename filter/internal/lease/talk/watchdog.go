package talk

import (
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// watchdog finds out whether the service answers. The life of the service, over all streams:
//
//	          send, of asks            noteSilence
//	answered ---------------> asked ---------------> silent
//	   ^                        |                      |
//	   +-------- Receive -------+------- Receive ------+
//
//	answered  It owes no answer: owesNs is 0.
//	asked     It owes one since owesNs, and Flush sends nothing more. If the stream ends, it owes
//	          none: the same is asked on the next stream.
//	silent    It has owed one for the timeout. It is also silent if a request has waited that long without a
//	          stream, though it was not asked. No request waits any more, and probe asks until an answer comes.
//	          lease.Service.IsSilent says so, because sources decide by it.
//
// For example, with a timeout of 100 ms: a message is sent at 0 ms, and no answer comes. Ticks come
// each 10 ms. That at 100 ms finds the service silent, ends the stream, and has all requests
// decided that wait. About a second later a tick opens a stream, and sends a probe. The service is
// silent until it answers that.
type watchdog struct {
	owesNs  int64 // since when it owes an answer to asks: silence counts from then on, and Flush waits. 0 = it owes none
	tickNs  int64 // when the last tick was
	stalled bool  // a late tick has given it more time, and nothing has come since
}

func (w *watchdog) owes() bool { return w.owesNs != 0 }

// noteAsked notes that the service owes an answer from now on.
func (w *watchdog) noteAsked(now int64) { w.owesNs = now }

// noteAnswer notes that an answer has come.
func (w *watchdog) noteAnswer() { w.owesNs, w.stalled = 0, false }

// noteStreamEnd notes that no answer can come any more: the same is asked on the next stream.
func (w *watchdog) noteStreamEnd() { w.owesNs = 0 }

// standstillNs is how long a worker may stand still and go on with its stream.
const standstillNs = 1_000_000_000

// giveMoreTime gives the service its timeout anew, if the tick is so late that the worker itself
// stood still: its message may not have left, or the result may be in the queue behind the tick.
// Requests do not wait longer for it. With a timeout of 100 ms:
//
//	0 ms    A message is sent. The service owes an answer until 100 ms.
//	10 ms   A tick. Then the worker stands still.
//	70 ms   The next tick. More than half of the timeout has passed since: the service has until 170 ms.
//	150 ms  The next tick, late again. The service has had more time, and has not answered: it gets none.
//
// After standstillNs without a tick it gets none either: Tick may end the stream.
func (w *watchdog) giveMoreTime(now, timeoutNs int64) (given bool) {
	gap := now - max(w.tickNs, w.owesNs)
	late := w.owes() && !w.stalled && gap > timeoutNs/2 && gap < standstillNs
	if late {
		w.stalled, w.owesNs = true, now
	}
	return late
}

// noteSilence declares the service silent when nothing has come for the timeout after a
// message, or no stream could be opened for so long. It hangs up on a silent service.
func (c *Client) noteSilence(now int64) {
	w, isOpen := &c.watchdog, c.stream.isOpen()
	answerIsLate := w.owes() && now-w.owesNs >= c.worker.Service.TimeoutNs()
	streamIsLate := !isOpen && c.waitlist.areOverdue(now)
	if !answerIsLate && !streamIsLate {
		return
	}
	c.worker.Service.NoteSilence()
	c.stream.pauseLongest()
	if isOpen {
		c.hangUp(now)
	}
}

// probe asks the silent service for no units, to hear whether it answers again.
func (c *Client) probe(now int64) {
	if c.watchdog.owes() || !c.ensureOpen(now) {
		return
	}
	first := c.worker.Definitions()[:1]
	look := quota.Part{Definition: first[0].ID, Inspect: true} // at a key that nobody has
	m := quota.Asks{Definitions: first, Asks: []quota.Ask{{Parts: []quota.Part{look}}}}
	c.stream.defined[look.Definition] = true
	c.send(&m, now)
}
