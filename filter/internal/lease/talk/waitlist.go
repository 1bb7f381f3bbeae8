package talk

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
)

// Waiter is a request that waits: to be decided by a verdict, or for a look. Its life:
//
//	     Wait, WaitLook           makeReady           Next
//	new ---------------> asking ------------> ready ---------> decided again --- Done ---> over
//	                       ^                                         |
//	                       +------- Wait, if it is Pending again ----+
//
// It is ready when its ask has a result (endWaits, reject, or endLooks once all asks of a look have one), when an
// earlier ask has one that decides it, too (takeDecided), or when its time is over (expire). If the request has ended
// meanwhile, Forget makes it over at once.
type Waiter struct {
	Context uint32
	Verdict *decide.Verdict // nil of a look
	Look    *lease.Look     // of a client that asks for its usage; it is not decided again, and has no needs

	deadlineNs int64
	needs      []lease.Need
	asks       []*ask  // for which it waits: one for its needs, or one for each quota.MaxParts keys of its look
	oneAsk     [1]*ask // what asks lies in as long as it is one: that saves an allocation a request
	over       bool
}

// isAsking reports whether it waits for an ask.
func (req *Waiter) isAsking() bool { return len(req.asks) > 0 }

// isOverdue reports whether it has waited for an ask for too long.
func (req *Waiter) isOverdue(now int64) bool { return req.isAsking() && now >= req.deadlineNs }

// waitFor has the request wait for the ask.
func (req *Waiter) waitFor(a *ask) {
	a.waiters = append(a.waiters, req)
	if req.asks == nil {
		req.asks = req.oneAsk[:0]
	}
	req.asks = append(req.asks, a)
}

// setWait says what the request may still wait for.
func (req *Waiter) setWait(to decide.Wait) {
	if req.Verdict == nil {
		return
	}
	for _, s := range req.Verdict.Subjects {
		s.Quota.Wait = to
	}
}

// maxWaiters is how many requests may wait.
const maxWaiters = 1024

// waitlist has the requests that wait. Each is in it until it is over.
type waitlist struct {
	byContext  map[uint32]*Waiter
	order      []*Waiter // the same, as they came, and those that are over since the last dropOver
	lookedKeys int       // keys of those that are looks

	ready []*Waiter // for next, which passes over those that are over
	first int       // index in ready: next has returned those before it
}

func (wl *waitlist) areMany() bool { return len(wl.byContext) >= maxWaiters }

// add adds a new request.
func (wl *waitlist) add(req *Waiter) {
	wl.byContext[req.Context] = req
	wl.order = append(wl.order, req)
	wl.lookedKeys += req.Look.Size()
}

// remove removes a request, which is over.
func (wl *waitlist) remove(req *Waiter) {
	req.over = true
	delete(wl.byContext, req.Context)
	wl.lookedKeys -= req.Look.Size()
}

// dropOver drops the requests that are over from the order.
func (wl *waitlist) dropOver() {
	wl.order = slices.DeleteFunc(wl.order, func(req *Waiter) bool { return req.over })
}

// areOverdue reports whether some request has waited for an ask for too long.
func (wl *waitlist) areOverdue(now int64) bool {
	return slices.ContainsFunc(wl.order, func(req *Waiter) bool { return req.isOverdue(now) })
}

// makeReady has next return a request. It waits for no ask any more.
func (wl *waitlist) makeReady(req *Waiter) {
	req.asks = req.asks[:0]
	wl.ready = append(wl.ready, req)
}

func (wl *waitlist) areSomeReady() bool { return wl.first < len(wl.ready) }

// next returns the next request that is ready, nil if there is none.
func (wl *waitlist) next() *Waiter {
	for wl.first < len(wl.ready) {
		req := wl.ready[wl.first]
		wl.first++
		if !req.over {
			return req
		}
	}
	clear(wl.ready)
	wl.ready, wl.first = wl.ready[:0], 0
	return nil
}
