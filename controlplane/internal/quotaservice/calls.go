package quotaservice

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Calls of the front count units under keys. For example, a call uses 1 unit of user, which has a limit of 10 a minute,
// and 1 unit of team, which has a limit of 100 by a token bucket. 10 and 60 are used.
//
//	package front  call.makeUses: each descriptor with a limit becomes a Use.
//	Service.Count  The goroutine of the call waits until the call is done.
//	Use.operation  user: an addition, because its only window is aligned. team: a charge.
//	keys.go …      As with an ask. The store's results may come to another goroutine.
//	operationDone  user: 11 are used, so the use is over its limit. team: 61 are used.
//	conclude       Both are done: the totals. overKeys notes that user is over its limit until the minute ends.
//	Service.Count  returns the totals.
//
// The next call of user is over its limit without the store, because call.startAll asks overKeys first. A call with
// keep counts all of its uses or none:
//
//	Use.operation  user and team: a take.
//	operationDone  user: 11 would be used, so nothing is taken. team: 61 are used.
//	conclude       keep says from the totals that the call does not pass. team: undo.
//	operationDone  team: 60 are used again.
//	restateTotals  The total of team says so.

// Use is what a call uses of one key. Only in a call with keep are its units taken: see operation.
type Use struct {
	Counter *Counter
	Key     []byte
	Units   uint32 // 0 = only look
}

// operation makes that of the use in a call. With keep, it is a recordOperation.
func (u *Use) operation(c *call, h *hasher) operation {
	hash := h.storeKey(u.Counter.prefix, u.Key)
	if c.keep == nil && u.Counter.isSum() {
		return newAddition(u.Counter, hash, u.Units, c)
	}
	all := u.Counter.terms.Windows
	windows := balance.KeyWindows{Defined: all, Shifted: all} // none has jitter: see NewCounter
	o := newOperation(u.Counter, windows, hash, u.action(c), c)
	return &o
}

// action is what the use does to a record: its units are looked for, taken or charged.
func (u *Use) action(c *call) action.Action {
	switch {
	case u.Units == 0:
		return &action.Look{}
	case c.keep != nil:
		return &action.Take{Units: u.Units}
	}
	return &action.Charge{Units: u.Units}
}

// Total is how the key of a use stands after it.
type Total struct {
	// Over says that fewer units were left than the use has. Of a look it says that a fixed
	// window is over its limit, or that another has nothing left.
	Over bool
	// Remembered says that a fixed window was known to be over its limit until it ends. The units
	// count nowhere then, and Windows say nothing of the others.
	Remembered bool
	Windows    []quota.Standing
}

// Count counts all uses of a call in one go, also those that are too much.
//
// With keep, a use that is too much counts nowhere, and keep says from the totals whether the
// others stay counted. Count calls it while the service is locked, from any goroutine, so it must not wait. If ctx
// ends first, Count has returned before, and keep is called all the same. In a counter of one aligned window, calls
// with keep and calls without do not see each other.
func (s *Service) Count(ctx context.Context, uses []Use, keep func([]Total) bool) ([]Total, error) {
	c := s.newCall(uses, keep)
	isStarted, err := s.startCall(c)
	if err != nil {
		return nil, err
	}
	if isStarted {
		s.pump()
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if c.err != nil {
		return nil, fmt.Errorf("ask the quota store: %w", c.err)
	}
	return c.totals, nil
}

// call is a call that is counted: an operation for each of its uses, and then one for each take that is undone. From
// startCall on it is part of the core, until ended is closed.
type call struct {
	steps[call]
	core       *core
	keep       func([]Total) bool
	operations []operation
	undone     []*recordOperation // by operation, if keep says no; nil = there is nothing to undo
	totals     []Total
	err        error
	ended      chan struct{} // then Count has the totals, or err
}

// newCall makes the operations of a call.
func (s *Service) newCall(uses []Use, keep func([]Total) bool) *call {
	c := &call{
		core: &s.core, keep: keep, ended: make(chan struct{}),
		operations: make([]operation, len(uses)), totals: make([]Total, len(uses)),
	}
	c.steps = steps[call]{of: c, keys: &s.core.keys}
	last, _ := s.hashers.Get().(*hasher)
	h := last.withSecret(s.secret.Load())
	for i := range uses {
		c.operations[i] = uses[i].operation(c, h)
	}
	s.hashers.Put(h)
	return c
}

// startCall starts a call, and reports whether that has started operations.
func (s *Service) startCall(c *call) (isStarted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return false, ErrClosed
	case s.apart.Load():
		return false, errOtherSecret
	}
	return c.startAll(), nil
}

// startAll starts the operations whose totals overKeys does not know, and reports whether there are some.
func (c *call) startAll() (isStarted bool) {
	storeNs := c.core.storeNow()
	started := make([]operation, 0, len(c.operations))
	for i, o := range c.operations {
		if a, isAddition := o.(*addition); isAddition {
			a.addIn(storeNs) // makes the storeKey by which recall looks
		}
		if c.keep == nil && c.core.over.recall(o, storeNs, &c.totals[i]) {
			continue
		}
		started = append(started, o)
	}
	c.start(started, (*call).conclude)
	return len(started) > 0
}

// operationDone is called for each recordOperation that is done.
func (c *call) operationDone(*recordOperation) { c.done() }

// additionDone is called for each addition that is done. One that came too late goes on in another window.
func (c *call) additionDone(a *addition) {
	if a.restart(c.core.storeNow()) {
		c.keys.add(a)
		return
	}
	c.done()
}

// conclude makes the totals, and undoes what is not kept. The call fails if one of its uses has. An undo that fails
// does not change what keep has decided: its units go on to count.
func (c *call) conclude() {
	for i, o := range c.operations {
		if c.totals[i].Remembered {
			continue
		}
		out := o.on().outcome
		if out.Err != nil {
			c.err = out.Err
		}
		c.totals[i] = Total{Over: out.Denied, Windows: out.Standings}
		if c.keep == nil { // else it counts nowhere if it is too much
			c.core.over.note(o)
		}
	}
	if c.keep == nil || c.err == nil && c.keep(c.totals) {
		close(c.ended)
		return
	}
	c.undone = make([]*recordOperation, len(c.operations))
	var undos []operation
	for i, o := range c.operations {
		if undo := o.(*recordOperation).undo(); undo != nil {
			c.undone[i] = undo
			undos = append(undos, undo)
		}
	}
	c.start(undos, (*call).restateTotals)
}

// restateTotals makes the totals say how the keys stand after the undos, and ends the call. Several uses may have one
// key: then the last undo of it tells of them all, as in begunAsk.standings. A call may have very many uses, so each
// key's undos are looked up.
func (c *call) restateTotals() {
	undosOf := map[[16]byte][]*recordOperation{}
	for _, undo := range c.undone {
		if undo != nil {
			undosOf[undo.storeKey] = append(undosOf[undo.storeKey], undo)
		}
	}
	for i := range c.operations {
		o := c.operations[i].(*recordOperation)
		for _, undo := range slices.Backward(undosOf[o.storeKey]) {
			if undo.tellsOf(o) {
				c.totals[i].Windows = undo.outcome.Standings
				break
			}
		}
	}
	close(c.ended)
}

// A client that is over its limit often goes on to call. Its calls without keep are answered from memory, without the
// store:
//
//	note    a call was over the limit of a fixed window: remember that window until it ends
//	recall  a later call of the same key: the total is known, and the units count nowhere
//
// Other services and the store know nothing of it: each service finds out for itself.

// maxOver bounds the keys that are remembered as over their limits.
const maxOver = 1 << 16

// overKeys are keys of calls that are over the limit of a fixed window. The window counts no less
// until it ends: nobody sets or resets the keys of calls.
type overKeys map[[16]byte]fullWindow

// fullWindow is the window of a key that is over its limit, of several the one that ends last, and when it
// ends by the store's clock.
type fullWindow struct {
	limit.Window
	endNs int64
}

// recall makes the total of an operation whose key is over the limit of one of its windows.
func (k overKeys) recall(o operation, storeNs int64, total *Total) bool {
	over, ok := k[o.on().storeKey]
	if !ok || over.endNs <= storeNs {
		return false
	}
	i := slices.Index(o.defined(), over.Window)
	if i < 0 { // the limit is another one now
		return false
	}
	left := over.endNs - storeNs
	if left > over.LengthNs(storeNs) { // the store's clock was set back
		return false
	}
	*total = Total{Over: true, Remembered: true, Windows: make([]quota.Standing, len(o.defined()))}
	total.Windows[i] = quota.Standing{Used: over.Limit, ResetNs: left}
	return true
}

// note remembers the key of an operation that found a fixed window over its limit.
func (k overKeys) note(o operation) {
	out := o.on().outcome
	if out.Err != nil {
		return
	}
	var last fullWindow
	for i, standing := range out.Standings {
		w, endNs := o.defined()[i], out.NowNs+standing.ResetNs
		if w.IsFixed() && !w.Elastic && !w.Unlimited && standing.Used > w.Limit && endNs > last.endNs {
			last = fullWindow{w, endNs}
		}
	}
	if last.endNs == 0 {
		return
	}
	if len(k) >= maxOver {
		maps.DeleteFunc(k, func(_ [16]byte, over fullWindow) bool { return over.endNs <= out.NowNs })
		if len(k) > maxOver/2 { // the next look for what has ended would come too soon
			clear(k)
		}
	}
	k[o.on().storeKey] = last
}
