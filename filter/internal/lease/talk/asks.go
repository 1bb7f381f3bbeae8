package talk

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ask asks the service for the units that some requests need, or, if it isLook, how keys stand. If no request waits for
// a queued one, askForNobody has made it: it is a refill, a report or a probe. If no request waits for a sent one, all
// may also have left. It is treated alike then: it is not sent again.
//
// It has a part for each key of which units are needed, for all requests that have joined it: see lease.Part.Join.
type ask struct {
	id      uint32
	want    string // which units it asks for: see appendWant
	parts   []lease.Part
	waiters []*Waiter // that wait for it
	sentNs  int64
	state   askState
}

// What an ask wants of one key.
const (
	wantsUnits       byte = iota // for requests at any cost
	wantsUnitsAtCost             // for requests at this cost alone
	wantsStandings               // it is a look
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
			what, cost = wantsUnitsAtCost, p.Wire.Cost
		}
		b = append(binary.LittleEndian.AppendUint32(b, p.Wire.Definition), p.Wire.Key[:]...)
		b = binary.LittleEndian.AppendUint32(append(b, what), cost)
	}
	return b
}

// isLook reports whether the ask is for looks: it asks for no units.
func (a *ask) isLook() bool { return a.parts[0].Wire.Inspect }

// add adds what other requests need to the ask. They wait for it afterwards.
func (a *ask) add(parts []lease.Part) {
	isFirst := len(a.waiters) == 0
	for i := range a.parts {
		a.parts[i].Join(&parts[i], isFirst)
	}
}

// dropWaiters has the ask's requests wait for it no longer, and returns them. Each knows for which asks it waits, as an
// ask knows its requests: Waiter.waitFor links both, and this or askList.leave unlinks them.
func (a *ask) dropWaiters() []*Waiter {
	dropped := a.waiters
	a.waiters = nil
	for _, req := range dropped {
		req.asks = without(req.asks, a)
	}
	return dropped
}

// without removes one of a list.
func without[T comparable](list []T, one T) []T {
	i := slices.Index(list, one)
	if i < 0 {
		return list
	}
	copy(list[i:], list[i+1:])
	last := len(list) - 1
	clear(list[last:])
	return list[:last]
}

// askState is how far an ask is. Each step of its life is a call of askList.move. An ask that askAgain queues again is
// over in between.
//
//	 ensureQueued             fly                 finish, askAgain
//	--------------> queued ------------> flying --------------------------> over
//	                 |  ^                 |  |   makeLate      finish,       ^
//	                 |  |                 |  |                 makeLate,     |
//	                 |  +--- askAgain ----+  +------------> late ------------+
//	                 |                                         askAgain      |
//	                 +------------------ leave, takeQueued ------------------+
//
//	queued  Other requests for the same units join it. It is over if the last of its requests leaves, or if an earlier
//	        ask for the same units takes its requests: see takeQueued.
//	flying  Another ask for the same units stays queued. If the stream ends, or the service lacks a definition, it is
//	        queued again, or over if no request waits for it.
//	late    It has had no result for the timeout, but something else has come since, or noteTick has given the service
//	        more time: else noteSilence has ended the stream. No request waits for it, because the time of all is over.
//	        The same units may be asked for again. A result counts for lateNs, and decides nobody: its units go into the
//	        lease. What else it says is old, and counts only if nothing is known of the key.
//
// What becomes of its requests, and of the accounts that it reports:
//
//	by            when                                      its requests             its accounts
//	finish        it has a result                           go on                    have theirs, or are reported later
//	leave         its last request leaves it in the queue   -                        are reported by others
//	takeQueued    an ask that was sent has its requests     wait for that one        are reported by others
//	askAgain      the stream has ended, or the service      wait for it, queued      are reported by it. If no request
//	              lacks a definition                                                 waits, it is over, and they are
//	                                                                                 reported later
//	makeLate      no result has come for the timeout. It    are decided without it   are listed
//	              is over lateNs after it was sent
type askState uint8

const (
	fresh askState = iota // in no list yet
	queued
	flying
	late
	over
)

// askList has all asks that are not over. Only move changes its lists, but askForNobody puts a new ask first.
type askList struct {
	queue     []*ask          // in the order in which they are sent
	queuedFor map[string]*ask // the same, by what they want
	sent      []*ask          // those that fly or are late, all on this stream, in the order in which they were sent
	flyingFor map[string]*ask // those of them that fly, by what they want
	built     []byte          // memory for appendWant
}

func newAskList() askList { return askList{queuedFor: map[string]*ask{}, flyingFor: map[string]*ask{}} }

// join has the request wait for an ask for what it needs: for the queued one that wants the same units, or for a
// new one.
func (as *askList) join(req *Waiter, parts []lease.Part) {
	a, isNew := as.ensureQueued(parts)
	if !isNew {
		a.add(parts)
	}
	req.waitFor(a)
}

// askForNobody queues an ask for which no request waits: a refill, a report or a probe. If one for the same units is
// queued, that stays. A new one goes before all others: its key is in use, and first requests of other keys must not
// delay it.
func (as *askList) askForNobody(parts []lease.Part) {
	if a, isNew := as.ensureQueued(parts); isNew {
		copy(as.queue[1:], as.queue)
		as.queue[0] = a
	}
}

// ensureQueued returns the queued ask that wants what the parts want. If there is none, it queues a new one, which
// keeps the parts.
func (as *askList) ensureQueued(parts []lease.Part) (a *ask, isNew bool) {
	as.built = appendWant(as.built[:0], parts)
	a = as.queuedFor[string(as.built)]
	if a != nil {
		return a, false
	}
	a = &ask{want: string(as.built), parts: parts}
	as.move(a, queued)
	return a, true
}

// move changes how far an ask is, and by that the lists, and the claims and reports of the ask's accounts:
//
//	state   the ask is in     when that begins      when it ends
//	queued  queue, queuedFor  it claims accounts    the claims end
//	flying  sent, flyingFor   -                     its reports that have no answer are given up
//	late    sent              accounts are listed   -
func (as *askList) move(a *ask, to askState) {
	switch a.state {
	case queued:
		as.queue = without(as.queue, a)
		delete(as.queuedFor, a.want)
		a.eachAccount((*account.Account).Unclaim)
	case flying:
		delete(as.flyingFor, a.want)
		a.giveUpReports()
	default:
	}
	wasSent := a.state == flying || a.state == late
	if wasSent && to != late {
		as.sent = without(as.sent, a)
	}
	a.state = to
	switch to {
	case queued:
		as.queue = append(as.queue, a)
		as.queuedFor[a.want] = a
		a.eachAccount((*account.Account).Claim)
	case flying:
		as.sent = append(as.sent, a)
		as.flyingFor[a.want] = a
	case late:
		a.eachAccount((*account.Account).Enlist)
	default:
	}
}

// fly has queued asks fly, which leave with a message. Their parts must have told before: else Unclaim would list an
// account whose report is in this message.
func (as *askList) fly(asks []*ask) {
	for _, a := range asks {
		as.move(a, flying)
	}
}

// takeQueued has the requests of a queued ask wait for an earlier one for the same units, behind its own. Then the
// queued one is over.
func (as *askList) takeQueued(a, next *ask) {
	for _, req := range next.dropWaiters() {
		req.waitFor(a)
	}
	as.move(next, over)
}

// leave has the request wait for its asks no longer. A queued ask for which no request waits any more is over, also
// a refill that others have left.
func (as *askList) leave(req *Waiter) {
	for _, a := range req.asks {
		a.waiters = without(a.waiters, req) // but not its cost, which the ask's parts have: it is asked for all the same
		if len(a.waiters) == 0 && a.state == queued {
			as.move(a, over)
		}
	}
	req.asks = req.asks[:0]
}

// find returns the ask of that number which was sent, nil if there is none. Most results come in the order of their
// asks, so it is among the first.
func (as *askList) find(id uint32) *ask {
	for _, a := range as.sent {
		if a.id == id {
			return a
		}
	}
	return nil
}

// askAgain queues an ask again that was sent, if requests still wait for it. The requests of another one for the same
// units that is queued already join it.
func (as *askList) askAgain(a *ask) {
	as.move(a, over)
	if len(a.waiters) == 0 {
		return
	}
	if next := as.queuedFor[a.want]; next != nil {
		a.add(next.parts)
		as.takeQueued(a, next)
	}
	as.move(a, queued)
}

// streamEnded has all asks that were sent be asked again: no result can come any more. Book.ReportAll must follow, for
// their reports.
func (as *askList) streamEnded() {
	for len(as.sent) > 0 {
		as.askAgain(as.sent[0])
	}
}

// lateNs is after which time the result of an ask counts no longer.
const lateNs = 10_000_000_000

// An ask is late before it is over, so that its accounts are reported again: this is negative, and does not compile,
// if a timeout could be longer.
const _ = uint64(lateNs - policy.MaxTimeoutNs)

// makeLate makes asks late that have no result after the timeout: their units may be asked for again, and their
// accounts are reported again. It ends an ask after lateNs.
func (as *askList) makeLate(now, timeoutNs int64) {
	for _, a := range as.sent {
		if now-a.sentNs < timeoutNs {
			break
		}
		if a.state == flying {
			as.move(a, late)
		}
	}
	for len(as.sent) > 0 && now-as.sent[0].sentNs >= lateNs {
		as.move(as.sent[0], over)
	}
}

// eachAccount calls do once for each part that reports an account.
func (a *ask) eachAccount(do func(acc *account.Account)) {
	for i := range a.parts {
		if acc := a.parts[i].Account; acc != nil {
			do(acc)
		}
	}
}

// giveUpReports ends the ask's reports that have no answer.
func (a *ask) giveUpReports() {
	for i := range a.parts {
		if acc := a.parts[i].Account; acc != nil {
			report := a.parts[i].Wire.Report
			acc.GiveUp(report.Number)
		}
	}
}

// isReport reports whether the ask is only for a report by now: no request waits for it, or none any more.
func (a *ask) isReport() bool { return len(a.waiters) == 0 && a.parts[0].Account != nil }

// mustWaitToReport reports whether the ask must wait, because a report of one of its accounts is under way.
func (a *ask) mustWaitToReport() bool {
	for i := range a.parts {
		if acc := a.parts[i].Account; acc != nil && acc.IsUnderWay() {
			return true
		}
	}
	return false
}
