package lease

import (
	"encoding/binary"
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// A request has a need for each key of which its rules lack units. An ask has a part for each of
// these keys, which is for all requests that have joined the ask:
//
//	request   needs                         the ask's parts
//	first     1 of key k, 2 of key l        k: Cost 1, Waiting 1     l: Cost 2, Waiting 2
//	second    3 of key k, 1 of key l        k: Cost 1, Waiting 1+3   l: Cost 2, Waiting 2+1
//
// Cost is that of the first request: the service grants at least this much, or denies.
//
// The life of an ask:
//
//	   askFor, askAhead       Flush               endAsk
//	--------------------> queued --------> flying ----------> over
//	                       |  ^             |  |               ^
//	                       |  +-- requeue --+  +----> late ----+
//	                       +------------- unqueue -------------+
//
//	queued   It is in Client.queue. Other requests for the same units join it. unqueue ends it if the last
//	         of its requests leaves, or if an earlier ask's result decides them: see decidesMore.
//	flying   It is in Client.sent. Another ask for the same units stays queued. If the stream ends, or the
//	         service lacks a definition, requeue queues it again, or ends it if no request waits for it.
//	late     It is in Client.sent still, without a result after the timeout. Its requests are decided
//	         without it, and the same units may be asked for again. A result counts for lateNs.

// Need is what a request that waits needs of one key.
type Need struct {
	part    // what an ask for it alone would ask for
	subject *decide.Subject
	grant   *grant // that has given units to it or denied them, nil until one has
}

// part is what an ask asks for of one key, or reports of it:
//
//	of                   made by               source  account  Wire.Inspect
//	a rule that leases   Source.askPart        set     -        no
//	a rule that holds    HoldSource.askPart,   -       set      no
//	                     queueReports
//	a look               clusterRule.lookPart  -       -        yes
type part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	definition *quota.Definition // which Wire names by its number

	// Of a rule that leases: what requests leave of the grant goes into the key's lease.
	source   *Source
	leaseKey state.LeaseKey

	// Of a rule that holds: the account has what requests get of the grant.
	account *account
}

// holds reports whether it is of a rule that holds.
func (p *part) holds() bool { return p.account != nil }

// countsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *part) countsDenied() bool { return p.definition.CountsDenials() }

// ask asks the service for the units that some requests need, or, if it isLook, how keys stand. If no
// request waits for it, it is for requests to come, or it only reports what is held.
type ask struct {
	id      uint32
	want    string // which units it asks for: see appendWant
	parts   []part
	waiters []*Waiter // that wait for it
	sentNs  int64
	stream  uint32 // on which it was sent
}

// AppendNeeds appends what the request of a pending verdict needs. Shadow rules come last.
func AppendNeeds(dst []Need, v *decide.Verdict) []Need {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = append(dst, Need{part: s.Rule.Source.(clusterSource).askPart(s, s.Cost), subject: s})
			}
		}
	}
	return dst
}

// askQueue has the asks to be sent. No two want the same units.
type askQueue struct {
	list   []*ask          // in their order
	byWant map[string]*ask // the same asks
}

// add appends an ask.
func (q *askQueue) add(a *ask) { q.list, q.byWant[a.want] = append(q.list, a), a }

// moveLastFirst puts the ask that was added last before all others.
func (q *askQueue) moveLastFirst() {
	last := q.list[len(q.list)-1]
	copy(q.list[1:], q.list)
	q.list[0] = last
}

// remove removes an ask, wherever it is.
func (q *askQueue) remove(a *ask) {
	delete(q.byWant, a.want)
	q.list = without(q.list, a)
}

// without removes an ask from a list.
func without(list []*ask, a *ask) []*ask {
	return slices.DeleteFunc(list, func(other *ask) bool { return other == a })
}

// removePacked removes the asks that are packed into a message; left are the others.
func (q *askQueue) removePacked(packed, left []*ask) {
	for _, a := range packed {
		delete(q.byWant, a.want)
	}
	q.list = append(q.list[:0], left...)
}

// sentAsks has the asks that were sent and have no result.
type sentAsks struct {
	list   []*ask          // flying and late ones, by their numbers
	flying map[string]*ask // by what they want
}

// add appends the ask that was sent last.
func (f *sentAsks) add(a *ask) { f.list, f.flying[a.want] = append(f.list, a), a }

// take removes the ask of that number, and returns nil if there is none. Numbers begin anew
// after the largest.
func (f *sentAsks) take(id uint32) *ask {
	list := f.list
	i := sort.Search(len(list), func(i int) bool { return list[i].id-list[0].id >= id-list[0].id })
	if i == len(list) || list[i].id != id {
		return nil
	}
	a := list[i]
	f.list = slices.Delete(list, i, i+1)
	f.stopFlying(a)
	return a
}

// stopFlying lets the units of a flying ask be asked for again. It returns false if the ask does not
// fly any more, because it is late.
func (f *sentAsks) stopFlying(a *ask) bool {
	flies := f.flying[a.want] == a
	if flies {
		delete(f.flying, a.want)
	}
	return flies
}

// askFor has the request wait for an ask for what it needs: for the queued one that wants the same
// units, or for a new one.
func (c *Client) askFor(req *Waiter, needs []Need) {
	parts := make([]part, len(needs))
	for i := range needs {
		parts[i] = needs[i].part
	}
	a, isNew := c.queuedAsk(parts)
	if !isNew {
		a.add(parts)
	}
	req.waitFor(a)
}

// askAhead queues an ask for which no request waits, unless one for the same units is queued. It is
// sent first: its key is in use, and first requests of other keys must not delay it.
func (c *Client) askAhead(parts []part) {
	if _, isNew := c.queuedAsk(parts); isNew {
		c.queue.moveLastFirst()
	}
}

// queuedAsk returns the queued ask that wants what the parts want. If there is none, it queues a new
// one, which keeps the parts.
func (c *Client) queuedAsk(parts []part) (a *ask, isNew bool) {
	c.want = appendWant(c.want[:0], parts)
	a = c.queue.byWant[string(c.want)]
	if a != nil {
		return a, false
	}
	a = &ask{want: string(c.want), parts: parts}
	c.queue.add(a)
	return a, true
}

// appendWant appends which units the parts want. If a rule counts denied requests, it also says the
// cost: of a denied ask the service counts all units, and a request that costs less might pass.
func appendWant(b []byte, parts []part) []byte {
	for i := range parts {
		p := &parts[i]
		b = binary.LittleEndian.AppendUint32(b, p.Wire.Definition)
		b = append(b, p.Wire.Key[:]...)
		switch {
		case p.Wire.Inspect: // a look at these keys is another ask than one for their units
			b = append(b, "look"...)
		case p.countsDenied():
			b = binary.LittleEndian.AppendUint32(b, p.Wire.Cost)
		}
	}
	return b
}

// add adds what another request needs to the ask.
func (a *ask) add(parts []part) {
	for i := range a.parts {
		p, cost := &a.parts[i].Wire, parts[i].Wire.Cost
		if len(a.waiters) == 0 { // the request is the first one of an ask that was for requests to come
			p.Cost = cost
		}
		p.Waiting = limit.AddSaturating(p.Waiting, cost)
	}
}

// leave removes a request from those that wait for the ask.
func (a *ask) leave(req *Waiter) {
	a.waiters = slices.DeleteFunc(a.waiters, func(other *Waiter) bool { return other == req })
}

// leaveAsks has the request wait for its asks no longer. An ask for which no request waits leaves the queue.
func (c *Client) leaveAsks(req *Waiter) {
	for _, a := range req.asks {
		a.leave(req)
		if len(a.waiters) == 0 && c.queue.byWant[a.want] == a {
			c.unqueue(a)
		}
	}
	req.asks = req.asks[:0]
}

// unqueue takes an ask from the queue. What it would have reported is reported otherwise.
func (c *Client) unqueue(a *ask) {
	c.queue.remove(a)
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.Changed() {
			c.worker.accounts.list(acc)
		}
	}
}

// requeue queues an ask again if requests wait for it. They join an ask for the same units that is
// queued already, before its own requests.
func (c *Client) requeue(a *ask) {
	if len(a.waiters) == 0 {
		return
	}
	next := c.queue.byWant[a.want]
	if next == nil {
		c.queue.add(a)
		return
	}
	for _, req := range a.waiters {
		req.asks = append(without(req.asks, a), next)
	}
	for i := range next.parts {
		p, earlier := &next.parts[i].Wire, &a.parts[i].Wire
		p.Cost = earlier.Cost
		p.Waiting = limit.AddSaturating(p.Waiting, earlier.Waiting)
	}
	next.waiters = append(a.waiters, next.waiters...)
}

// lateNs is after which time the result of an ask counts no longer.
const lateNs = 10_000_000_000

// endLate lets the units of asks that have no result in time, though others have, be asked for again. It drops asks
// that have none after lateNs.
func (c *Client) endLate(now int64) {
	for _, a := range c.sent.list {
		if now-a.sentNs < c.worker.timeoutNs {
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
