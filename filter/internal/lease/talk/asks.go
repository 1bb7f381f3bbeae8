package talk

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ask asks the service for the units that some requests need, or, if it isLook, how keys stand. If no request waits for
// a queued one, askForNobody has made it: it is a refill, a report or a probe. If no request waits for a sent one, all
// may also have left. It is treated alike then: it is not sent again.
//
// It has a part for each key of which units are needed, for all requests that have joined it. For example, two requests
// join a refill of key k:
//
//	what joins       needs         the part then
//	                               Cost  Waiting  Ahead  Spent
//	the refill       60 ahead         0        0     60      5
//	first request    2 of key k       2        2     60      5
//	second request   3 of key k       2      2+3     60      5
//
// So of a part's fields:
//
//	Cost             is of the first request: the service grants at least this much, or denies
//	Waiting          is of all requests
//	Ahead, Spent     are of what has made the ask. The Spent of another is dropped, and a later ask says it: see
//	                 lease/uncharged.go
//	Shadow, NoBlock  are of the rule and the key, so each request has the same. A report has none: the first request
//	                 says them
type ask struct {
	id      uint32
	want    string // which units it asks for: see appendWant
	parts   []lease.Part
	waiters []*Waiter // that wait for it
	sentNs  int64
	stream  uint32 // on which it was sent
	isLate  bool   // see askList
}

// What an ask wants of one key.
const (
	wantsUnits     byte = iota // for requests at any cost
	wantsThatCost              // units for requests at one cost
	wantsStandings             // it is a look
)

// appendWant appends what the parts want, in as many bytes for each. If a rule counts denied requests, that says the
// cost: of a denied ask the service counts all units, and a request that costs less might pass.
func appendWant(b []byte, parts []lease.Part) []byte {
	for i := range parts {
		p := &parts[i]
		what, cost := wantsUnits, uint32(0)
		switch {
		case p.Wire.Inspect:
			what = wantsStandings
		case p.CountsDenied():
			what, cost = wantsThatCost, p.Wire.Cost
		}
		b = append(binary.LittleEndian.AppendUint32(b, p.Wire.Definition), p.Wire.Key[:]...)
		b = binary.LittleEndian.AppendUint32(append(b, what), cost)
	}
	return b
}

// isLook reports whether the ask is for looks: it asks for no units.
func (a *ask) isLook() bool { return a.parts[0].Wire.Inspect }

// add adds what other requests need to the ask, by the table above. They are one that joins it, or those of an earlier
// ask. isFirst says that one of them is the first request of this ask now.
func (a *ask) add(parts []lease.Part, isFirst bool) {
	for i := range a.parts {
		p, other := &a.parts[i].Wire, &parts[i].Wire
		if isFirst {
			p.Cost = other.Cost
			p.Shadow, p.NoBlock = other.Shadow, other.NoBlock
		}
		p.Waiting = limit.AddSaturating(p.Waiting, other.Waiting)
	}
}

// putBefore has the requests of an earlier ask for the same units wait for this one, before its own.
func (a *ask) putBefore(earlier *ask) {
	a.add(earlier.parts, true)
	for _, req := range earlier.waiters {
		req.awaits = append(without(req.awaits, earlier), a)
	}
	a.waiters = append(earlier.waiters, a.waiters...)
}

// without removes one of a list.
func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(other T) bool { return other == one })
}

// askList has all asks that have no result. Their life:
//
//	 ensureQueued            markSent             end
//	--------------> queued ------------> flying ----------> over
//	                 |  ^                 |  |               ^
//	                 |  +--- requeue -----+  +----> late ----+
//	                 +------------- unqueue -----------------+
//
//	queued  Other requests for the same units join it. unqueue ends it if the last of its requests leaves, or if the
//	        result of the ask that flies for the same units decides them, too: see takeDecided.
//	flying  Another ask for the same units stays queued. If the stream ends, or the service lacks a definition, requeue
//	        queues it again, or ends it if no request waits for it.
//	late    askLateAgain has found no result after the timeout. Its requests are decided without it, so it is not queued
//	        again, and the same units may be asked for again. A result counts for lateNs, then askLateAgain drops it.
type askList struct {
	queue  []*ask          // in the order in which they are sent
	queued map[string]*ask // the same, by what they want
	sent   []*ask          // flying and late ones, in the order in which they were sent
	flying map[string]*ask // the flying ones, by what they want
	want   []byte          // memory
}

func newAskList() askList { return askList{queued: map[string]*ask{}, flying: map[string]*ask{}} }

// join has the request wait for an ask for what it needs: for the queued one that wants the same units, or for a
// new one.
func (as *askList) join(req *Waiter, parts []lease.Part) {
	a, isNew := as.ensureQueued(parts)
	if !isNew {
		a.add(parts, len(a.waiters) == 0)
	}
	req.waitFor(a)
}

// askForNobody queues an ask for which no request waits: a refill, a report or a probe. If one for the same units is
// queued, that stays. A new one is sent first, before those that came earlier: its key is in use, and first requests of
// other keys must not delay it.
func (as *askList) askForNobody(parts []lease.Part) {
	if a, isNew := as.ensureQueued(parts); isNew {
		copy(as.queue[1:], as.queue)
		as.queue[0] = a
	}
}

// ensureQueued returns the queued ask that wants what the parts want. If there is none, it queues a new one, which
// keeps the parts.
func (as *askList) ensureQueued(parts []lease.Part) (a *ask, isNew bool) {
	as.want = appendWant(as.want[:0], parts)
	a = as.queued[string(as.want)]
	if a != nil {
		return a, false
	}
	a = &ask{want: string(as.want), parts: parts}
	as.enqueue(a)
	return a, true
}

func (as *askList) enqueue(a *ask) {
	as.queue, as.queued[a.want] = append(as.queue, a), a
}

// leave has the request wait for its asks no longer. An ask for which no request waits leaves the queue, also a refill
// that others have left: lease/uncharged.go says what becomes of its Spent.
func (as *askList) leave(req *Waiter) {
	for _, a := range req.awaits {
		a.waiters = without(a.waiters, req) // but not its cost, which the ask's parts have: it is asked for all the same
		if len(a.waiters) == 0 && as.queued[a.want] == a {
			as.unqueue(a)
			a.repeatReports() // it may have claimed its accounts
		}
	}
	req.awaits = req.awaits[:0]
}

// unqueue ends a queued ask.
func (as *askList) unqueue(a *ask) {
	delete(as.queued, a.want)
	as.queue = without(as.queue, a)
}

// markSent moves the packed asks from the queue to those that were sent. The others are left in it.
func (as *askList) markSent(packed, left []*ask) {
	for _, a := range packed {
		delete(as.queued, a.want)
		as.sent, as.flying[a.want] = append(as.sent, a), a
	}
	as.queue = append(as.queue[:0], left...)
}

// end ends the sent ask of that number, and returns nil if there is none. Results come in the order of their asks, so
// it is among the first.
func (as *askList) end(id uint32) *ask {
	for i, a := range as.sent {
		if a.id == id {
			as.sent = slices.Delete(as.sent, i, i+1)
			if !a.isLate {
				delete(as.flying, a.want)
			}
			return a
		}
	}
	return nil
}

// requeue queues an ask again that was sent, if requests wait for it. They join an ask for the same units that is
// queued already.
func (as *askList) requeue(a *ask) {
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
func (as *askList) requeueAll() {
	for _, a := range as.sent {
		as.requeue(a)
	}
	as.sent = nil
	clear(as.flying)
}

// lateNs is after which time the result of an ask counts no longer.
const lateNs = 10_000_000_000

// An ask is late before it is dropped, so that its accounts are reported again: this is negative, and does not compile,
// if a timeout could be longer.
const _ = uint64(lateNs - policy.MaxTimeoutNs)

// askLateAgain makes asks late that have no result after the timeout: their units may be asked for again, and their
// accounts are reported again. It drops an ask after lateNs.
func (as *askList) askLateAgain(now, timeoutNs int64) {
	for _, a := range as.sent {
		if now-a.sentNs < timeoutNs {
			break
		}
		if !a.isLate {
			a.isLate = true
			delete(as.flying, a.want)
			a.repeatReports()
		}
	}
	for len(as.sent) > 0 && now-as.sent[0].sentNs >= lateNs {
		as.sent = as.sent[1:]
	}
}

// An ask of rules that hold reports their accounts, by a Reporter in each of its parts. What becomes of the reports:
//
//	what becomes of the ask                          its reports         by
//	it is packed into a message                      Reporter.Write      stampAndPack
//	it is answered                                   Reporter.End        lease.HandOut
//	it is answered, but the service takes no         Reporter.GiveUp     defineAgain, reject
//	reports now
//	it has no answer in time                         Reporter.Repeat     askLateAgain
//	its stream ends, maybe before it could be sent   Book.ReportAll      StreamEnded
//	it leaves the queue with its last request        Reporter.Repeat     leave
//	it leaves the queue with the answer to an ask    End or GiveUp, of   takeDecided
//	for the same units                               that ask's

// isReport reports whether the ask is only for a report by now: no request waits for it, or none any more.
func (a *ask) isReport() bool { return len(a.waiters) == 0 && a.parts[0].Reporter.Account() != nil }

// mustWaitToReport reports whether the ask must wait, because a report of one of its accounts is under way.
func (a *ask) mustWaitToReport() bool {
	for i := range a.parts {
		if a.parts[i].Reporter.MustWait() {
			return true
		}
	}
	return false
}

// claimReports has Book.Due leave the accounts of all queued asks to these.
func (as *askList) claimReports() {
	for _, a := range as.queue {
		a.eachReporter((*account.Reporter).Claim)
	}
}

func (a *ask) giveUpReports() { a.eachReporter((*account.Reporter).GiveUp) }

func (a *ask) repeatReports() { a.eachReporter((*account.Reporter).Repeat) }

func (a *ask) eachReporter(do func(*account.Reporter)) {
	for i := range a.parts {
		do(&a.parts[i].Reporter)
	}
}
