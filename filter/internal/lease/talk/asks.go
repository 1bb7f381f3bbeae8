package talk

import (
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
)

// asks has all asks that have no result. The life of an ask:
//
//	 ensureQueued            markSent             end
//	--------------> queued ------------> flying ----------> over
//	                 |  ^                 |  |               ^
//	                 |  +--- requeue -----+  +----> late ----+
//	                 +------------- unqueue -----------------+
//
//	queued   Other requests for the same units join it. unqueue ends it if the last of its requests leaves,
//	         or if the result of the ask that flies for the same units decides them, too: see takeDecided.
//	flying   Another ask for the same units stays queued. If the stream ends, or the service lacks a definition,
//	         requeue queues it again, or ends it if no request waits for it.
//	late     askLateAgain has found no result after the timeout. Its requests are decided without it, and the same
//	         units may be asked for again. A result counts for lateNs, then askLateAgain drops it.
type asks struct {
	queue  []*ask          // in the order in which they are sent
	queued map[string]*ask // the same, by what they want
	sent   []*ask          // flying and late ones, by their numbers
	flying map[string]*ask // by what they want
	want   []byte          // memory
}

func newAsks() asks { return asks{queued: map[string]*ask{}, flying: map[string]*ask{}} }

// join has the request wait for an ask for what it needs: for the queued one that wants the same units, or for a
// new one.
func (as *asks) join(req *Waiter, parts []lease.Part) {
	a, isNew := as.ensureQueued(parts)
	if !isNew {
		a.add(parts)
	}
	req.waitFor(a)
}

// askForNobody queues an ask for which no request waits, a refill or a report, unless one for the same units is queued.
// It is sent first: its key is in use, and first requests of other keys must not delay it.
func (as *asks) askForNobody(parts []lease.Part) {
	if _, isNew := as.ensureQueued(parts); isNew {
		as.moveLastToFront()
	}
}

// moveLastToFront has the ask sent first that was queued last.
func (as *asks) moveLastToFront() {
	a := as.queue[len(as.queue)-1]
	copy(as.queue[1:], as.queue)
	as.queue[0] = a
}

// ensureQueued returns the queued ask that wants what the parts want. If there is none, it queues a new one, which
// keeps the parts.
func (as *asks) ensureQueued(parts []lease.Part) (a *ask, isNew bool) {
	as.want = appendWant(as.want[:0], parts)
	a = as.queued[string(as.want)]
	if a != nil {
		return a, false
	}
	a = &ask{want: string(as.want), parts: parts}
	as.enqueue(a)
	return a, true
}

func (as *asks) enqueue(a *ask) { as.queue, as.queued[a.want] = append(as.queue, a), a }

// leave has the request wait for its asks no longer. An ask for which no request waits leaves the queue.
func (as *asks) leave(req *Waiter) {
	for _, a := range req.asks {
		a.leave(req)
		if len(a.waiters) == 0 && as.queued[a.want] == a {
			as.unqueue(a)
			a.reportAgain() // if it was for a report at first, Book.Due has taken the account off the list
		}
	}
	req.asks = req.asks[:0]
}

// unqueue ends a queued ask.
func (as *asks) unqueue(a *ask) {
	delete(as.queued, a.want)
	as.queue = without(as.queue, a)
}

// markSent says which of the queued asks were sent; left are the others.
func (as *asks) markSent(packed, left []*ask) {
	for _, a := range packed {
		delete(as.queued, a.want)
		as.sent, as.flying[a.want] = append(as.sent, a), a
	}
	as.queue = append(as.queue[:0], left...)
}

// isFlying reports whether an ask for the same units flies.
func (as *asks) isFlying(a *ask) bool { return as.flying[a.want] != nil }

// end ends the sent ask of that number, and returns nil if there is none. Numbers begin anew
// after the largest.
func (as *asks) end(id uint32) *ask {
	sent := as.sent
	i := sort.Search(len(sent), func(i int) bool { return sent[i].id-sent[0].id >= id-sent[0].id })
	if i == len(sent) || sent[i].id != id {
		return nil
	}
	a := sent[i]
	as.sent = slices.Delete(sent, i, i+1)
	as.stopFlying(a)
	return a
}

// stopFlying lets the units of a flying ask be asked for again. It returns false if the ask does not
// fly any more.
func (as *asks) stopFlying(a *ask) bool {
	flies := as.flying[a.want] == a
	if flies {
		delete(as.flying, a.want)
	}
	return flies
}

// requeue queues an ask again that was sent, if requests wait for it. They join an ask for the same units that is
// queued already.
func (as *asks) requeue(a *ask) {
	next := as.queued[a.want]
	switch {
	case len(a.waiters) == 0:
	case next == nil:
		as.enqueue(a)
	default:
		next.putBefore(a)
	}
}

// requeueAll is for the end of the stream on which they were sent.
func (as *asks) requeueAll() {
	for _, a := range as.sent {
		a.reportAgain()
		as.requeue(a)
	}
	as.sent = nil
	clear(as.flying)
}

// lateNs is after which time the result of an ask counts no longer.
const lateNs = 10_000_000_000

// askLateAgain makes asks late that have no result after the timeout: their units may be asked for again, and their
// accounts are reported again. It drops an ask after lateNs.
func (as *asks) askLateAgain(now, timeoutNs int64) {
	for _, a := range as.sent {
		if now-a.sentNs < timeoutNs {
			break
		}
		if as.stopFlying(a) {
			a.reportAgain()
		}
	}
	for len(as.sent) > 0 && now-as.sent[0].sentNs >= lateNs {
		as.sent = as.sent[1:]
	}
}
