package talk

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
)

// waiterState is how far a request is that waits. Its life:
//
//	     Wait, WaitLook           makeReady           Next               Done
//	new ---------------> waits -------------> ready ---------> deciding --------> done
//	                       ^                                      |
//	                       +----- Wait, if it is Pending again ---+
//
// If the request ends meanwhile, Forget makes it done at once.
type waiterState uint8

const (
	// waits: for asks, until they have results (takeGrants, reject, tellLooks), until an earlier ask has one that
	// decides it, too (decideQueued), or until its time is over (expire).
	waits    waiterState = iota
	ready                // Next will return it
	deciding             // Next has returned it, and it is decided again
	done
)

// Waiter is a request that waits: to be decided by a verdict, or for a look.
type Waiter struct {
	ContextID uint32          // the proxy's number of the request
	Verdict   *decide.Verdict // nil of a look
	Look      *lease.Look     // of a client that asks for its usage; it is not decided again

	state      waiterState
	deadlineNs int64
	asks       []*ask  // for which it waits: one for its verdict, or one for each quota.MaxParts keys of its look
	oneAsk     [1]*ask // what asks is in as long as it is one: that saves an allocation a request
}

func (req *Waiter) isDone() bool { return req.state == done }

// isOverdue reports whether it has waited for an ask for too long.
func (req *Waiter) isOverdue(now int64) bool { return req.state == waits && now >= req.deadlineNs }

// waitFor has the request wait for the ask.
func (req *Waiter) waitFor(a *ask) {
	req.state = waits
	a.waiters = append(a.waiters, req)
	if req.asks == nil {
		req.asks = req.oneAsk[:0]
	}
	req.asks = append(req.asks, a)
}

// stopWaiting is lease.StopWaiting; a look has no verdict.
func (req *Waiter) stopWaiting(why cluster.Asked) {
	if req.Verdict != nil {
		lease.StopWaiting(req.Verdict, why)
	}
}

// maxWaiters is how many requests may wait.
const maxWaiters = 1024

// waiterList has the requests that wait. Each is in it until it is done.
type waiterList struct {
	byContext  map[uint32]*Waiter
	order      []*Waiter // the same, as they came, and those that are done since the last call of all
	lookedKeys int       // keys of those that are looks

	nextUp []*Waiter // those that are ready, and some that are done by now, for next
	first  int       // index in nextUp: next has returned those before it
}

// add adds a new request.
func (wl *waiterList) add(req *Waiter) {
	wl.byContext[req.ContextID] = req
	wl.order = append(wl.order, req)
	wl.lookedKeys += req.Look.Size()
}

// remove removes a request, which is done.
func (wl *waiterList) remove(req *Waiter) {
	req.state = done
	delete(wl.byContext, req.ContextID)
	wl.lookedKeys -= req.Look.Size()
}

// isFull reports whether no other request may wait.
func (wl *waiterList) isFull() bool { return len(wl.byContext) >= maxWaiters }

// all returns the requests that wait, as they came.
func (wl *waiterList) all() []*Waiter {
	wl.order = slices.DeleteFunc(wl.order, (*Waiter).isDone)
	return wl.order
}

// hasOverdue reports whether a request is overdue.
func (wl *waiterList) hasOverdue(now int64) bool {
	for _, req := range wl.order {
		if req.isOverdue(now) {
			return true
		}
	}
	return false
}

// makeReady has Next return a request, which waits for no ask any more.
func (wl *waiterList) makeReady(req *Waiter) {
	req.state = ready
	wl.nextUp = append(wl.nextUp, req)
}

// next returns the request that has been ready for longest, nil if none is.
func (wl *waiterList) next() *Waiter {
	for wl.first < len(wl.nextUp) {
		req := wl.nextUp[wl.first]
		wl.first++
		if req.state == ready {
			req.state = deciding
			return req
		}
	}
	clear(wl.nextUp)
	wl.nextUp, wl.first = wl.nextUp[:0], 0
	return nil
}

// mayHaveNext reports whether next may return a request.
func (wl *waiterList) mayHaveNext() bool { return wl.first < len(wl.nextUp) }
