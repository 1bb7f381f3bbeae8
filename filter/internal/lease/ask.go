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

// The life of an ask:
//
//	     queueAsk            Flush               receive
//	--------------> queued --------> flying --------------> over: its requests are ready
//	                  ^                |  |                   ^
//	                  +--- requeue ----+  +--> late ----------+
//
//	queued   It is in Client.queue. Other requests for the same units join it.
//	flying   It is in Client.sent, without a result. An ask for the same units stays queued.
//	late     It has no result after the timeout. Its requests are decided without it, and the same
//	         units may be asked for again. A result that comes within lateNs still counts.
//
// If the stream ends, or the service lacks a definition of the ask, its requests need another
// one: requeue queues the ask again, and drops one for which no request waits.

// ask is what the service is asked for by requests that want the same units. If nobody
// waits for it, it is for requests to come, or a report.
type ask struct {
	id      uint32
	want    string // the units that it asks for: see Client.wantOf
	parts   []Part
	waiters []*Waiter
	sentNs  int64
	stream  uint32 // on which it was sent
}

// Part is what a request, or requests to come, need of one key. A request's parts are in
// Waiter.parts, and its ask has copies of them. Requests that join the ask later only add to
// the copies' Wire: see join.
type Part struct {
	Wire       quota.Part // as it is sent
	definition *quota.Definition
	source     source
	leaseKey   state.LeaseKey // of a lease
	account    *account       // of what is held instead

	// Only for the parts in Waiter.parts. An ask never reads them.
	subject *decide.Subject // of the request
	grant   *grant          // that has given the request units or a denial, nil until one has
}

// source is a source of a rule of scope cluster.
type source interface {
	decide.Source
	// part is what is asked for the subject's key.
	part(s *decide.Subject, cost uint32) Part
}

// AppendParts appends what the pending verdict waits for: one part for each key. Shadow
// rules come last.
func (w *Worker) AppendParts(dst []Part, v *decide.Verdict) []Part {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = append(dst, s.Rule.Source.(source).part(s, s.Cost))
			}
		}
	}
	return dst
}

// countsDenied reports whether an ask for it counts even if it is denied.
func (p *Part) countsDenied() bool { return p.definition.CountDenied }

// askQueue has the asks to be sent. No two want the same units.
type askQueue struct {
	list   []*ask          // in their order
	byWant map[string]*ask // the same asks
}

// add appends an ask.
func (q *askQueue) add(a *ask) { q.list, q.byWant[a.want] = append(q.list, a), a }

// addFirst puts an ask before all others.
func (q *askQueue) addFirst(a *ask) {
	q.add(a)
	copy(q.list[1:], q.list)
	q.list[0] = a
}

// remove removes an ask, wherever it is.
func (q *askQueue) remove(a *ask) {
	delete(q.byWant, a.want)
	q.list = slices.DeleteFunc(q.list, func(other *ask) bool { return other == a })
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

// stopFlying lets the units of a flying ask be asked for again. It returns false if it is late:
// then they could be already.
func (f *sentAsks) stopFlying(a *ask) bool {
	flies := f.flying[a.want] == a
	if flies {
		delete(f.flying, a.want)
	}
	return flies
}

// queueAsk queues an ask for the parts of a request, of nil for requests to come and reports, or
// joins the one that is queued.
func (c *Client) queueAsk(parts []Part, req *Waiter) {
	want := c.wantOf(parts)
	a := c.queue.byWant[string(want)]
	if a == nil {
		a = &ask{want: string(want), parts: slices.Clone(parts)}
		if req == nil { // the key is in use: first requests of other keys do not delay it
			c.queue.addFirst(a)
		} else {
			c.queue.add(a)
		}
	} else if req != nil {
		a.join(parts)
	}
	if req != nil {
		a.waiters, req.ask = append(a.waiters, req), a
	}
}

// wantOf says which units the parts want. If a rule counts denied requests, it also says the cost:
// of a denied ask the service counts all units, and a request that costs less might pass.
func (c *Client) wantOf(parts []Part) []byte {
	c.want = c.want[:0]
	for i := range parts {
		p := &parts[i]
		c.want = binary.LittleEndian.AppendUint32(c.want, p.Wire.Definition)
		c.want = append(c.want, p.Wire.Key[:]...)
		if p.countsDenied() {
			c.want = binary.LittleEndian.AppendUint32(c.want, p.Wire.Cost)
		}
	}
	return c.want
}

// join adds what another request needs to the ask.
func (a *ask) join(parts []Part) {
	for i := range a.parts {
		p := &a.parts[i]
		if len(a.waiters) == 0 { // the cost is that of the first
			p.Wire.Cost = parts[i].Wire.Cost
		}
		p.Wire.Waiting = limit.AddSaturating(p.Wire.Waiting, parts[i].Wire.Cost)
	}
}

// unqueue takes an ask from the queue. What it would have reported is reported otherwise.
func (c *Client) unqueue(a *ask) {
	c.queue.remove(a)
	for i := range a.parts {
		if acc := a.parts[i].account; acc != nil && acc.Changed() {
			c.worker.accounts.markDue(acc)
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
		req.ask = next
	}
	for i := range next.parts {
		p, own := &next.parts[i].Wire, &a.parts[i].Wire
		p.Cost = own.Cost
		p.Waiting = limit.AddSaturating(p.Waiting, own.Waiting)
	}
	next.waiters = append(a.waiters, next.waiters...)
}
