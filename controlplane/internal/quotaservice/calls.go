package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Calls of the front count units under keys. A call without keep charges its keys, whatever is left. For example, it
// uses 1 unit of user, which has a limit of 10 a minute, and 1 unit of team, which has a limit of 100 by a token
// bucket. 10 and 60 are used.
//
//	package front       call.makeUses: each descriptor with a limit becomes a Use.
//	Service.Count       The goroutine of the call waits until the call has ended.
//	chargingCall.begin  user: an addition, because its only window is aligned. team: an action.Charge.
//	keys.go …           As with an ask. The store's results may come to another goroutine.
//	charge.end          user: 11 are used, so it is over its limit. overKeys notes that until the minute ends.
//	                    team: 61 are used. The call has ended, because both have.
//	Service.Count       returns the totals.
//
// The next call of user is over its limit without the store, because chargingCall.begin asks overKeys first. A call
// with keep takes all its units or none:
//
//	takingCall.begin    user and team: an action.Take.
//	conclude            user: 11 would be used, so nothing is taken. team: 61 are used. keep says from these totals that
//	                    the call does not pass. team: undo.
//	restateTotals       The total of team says that 60 are used again.

// Use is what a call uses of one key.
type Use struct {
	Counter *Counter
	Key     []byte
	Units   uint32 // 0 = only look
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
	c, kind := s.makeCall(uses, keep)
	isStarted, err := s.startCall(kind)
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

// call is what Count waits for. Its totals and its err are part of the core until ended is closed.
type call struct {
	totals []Total // of each use
	err    error   // of one that has failed
	ended  chan struct{}
}

func newCall(uses []Use) call {
	return call{totals: make([]Total, len(uses)), ended: make(chan struct{})}
}

// callKind is a *chargingCall or a *takingCall.
type callKind interface {
	// begin starts the call's first operations, and reports whether there are some.
	begin() (isStarted bool)
}

// makeCall makes a call of one kind or the other.
func (s *Service) makeCall(uses []Use, keep func([]Total) bool) (*call, callKind) {
	last, _ := s.hashers.Get().(*hasher)
	h := last.withSecret(s.secret.Load())
	defer s.hashers.Put(h)
	if keep == nil {
		charging := newChargingCall(&s.core, uses, h)
		return &charging.call, charging
	}
	taking := newTakingCall(&s.core, uses, h, keep)
	return &taking.call, taking
}

// startCall starts a call, and reports whether that has started operations.
func (s *Service) startCall(c callKind) (isStarted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return false, ErrClosed
	case s.apart.Load():
		return false, errOtherSecret
	}
	return c.begin(), nil
}

// onRecord returns an operation on the record of the use's key.
func (u *Use) onRecord(hash [16]byte, what action.Action, owner owner) recordOperation {
	if u.Units == 0 {
		what = &action.Look{}
	}
	all := u.Counter.terms.Windows
	windows := balance.KeyWindows{Defined: all, Shifted: all} // none has jitter: see NewCounter
	return newOperation(u.Counter, windows, hash, what, owner)
}

// chargingCall is a call without keep.
type chargingCall struct {
	call
	core    *core
	charges []charge
	left    int // operations that are not done
}

// charge is a use of a chargingCall, and owns its operation.
type charge struct {
	Use
	call  *chargingCall
	hash  [16]byte // of counter and key
	total *Total
	lates int // additions that came too late
}

func newChargingCall(core *core, uses []Use, h *hasher) *chargingCall {
	c := &chargingCall{call: newCall(uses), core: core, charges: make([]charge, len(uses))}
	for i, u := range uses {
		c.charges[i] = charge{Use: u, call: c, hash: h.storeKey(u.Counter.prefix, u.Key), total: &c.totals[i]}
	}
	return c
}

// begin starts an operation for each use, but for those whose totals overKeys knows. It reports whether there are some.
func (c *chargingCall) begin() (isStarted bool) {
	storeNs := c.core.storeNow()
	for i := range c.charges {
		u := &c.charges[i]
		o := u.operation(storeNs)
		total, isKnown := c.core.over.recall(o.on().storeKey, u.Counter.Windows(), storeNs)
		if isKnown {
			*u.total = total
			continue
		}
		c.left++
		c.core.keys.add(o)
	}
	if c.left == 0 {
		close(c.ended)
	}
	return c.left > 0
}

// operation is an addition, if the store adds what the counter counts.
func (u *charge) operation(storeNs int64) operation {
	if u.Counter.isSum() {
		return newAddition(u, storeNs)
	}
	o := u.onRecord(u.hash, &action.Charge{Units: u.Units}, u)
	return &o
}

// operationDone is called once the recordOperation of the use is done.
func (u *charge) operationDone(o *recordOperation) { u.end(o.storeKey, o.outcome) }

// additionDone is called once the addition of the use is done. Another one follows an addition that came too late.
func (u *charge) additionDone(a *addition, outcome *action.Outcome) {
	if errors.Is(outcome.Err, errEnded) && u.lates < maxLate {
		u.lates++
		u.call.core.keys.add(newAddition(u, u.call.core.storeNow()))
		return
	}
	u.end(a.storeKey, outcome)
}

// end makes the total of the use. The call ends with its last one, and fails if one of them has.
func (u *charge) end(storeKey [16]byte, outcome *action.Outcome) {
	c := u.call
	if outcome.Err != nil {
		c.err = outcome.Err
	} else {
		*u.total = Total{Over: outcome.Denied, Windows: outcome.Standings}
		c.core.over.note(storeKey, u.Counter.Windows(), outcome)
	}
	c.left--
	if c.left == 0 {
		close(c.ended)
	}
}

// takingCall is a call with keep: an operation for each of its uses, and then one for each take that is undone.
type takingCall struct {
	call
	steps
	core  *core
	keep  func([]Total) bool
	takes []recordOperation  // of each use
	undos []*recordOperation // of each take, if keep says no; nil = it has taken nothing
}

func newTakingCall(core *core, uses []Use, h *hasher, keep func([]Total) bool) *takingCall {
	c := &takingCall{call: newCall(uses), core: core, keep: keep, takes: make([]recordOperation, len(uses))}
	c.steps = steps{keys: &core.keys}
	for i := range uses {
		u := &uses[i]
		c.takes[i] = u.onRecord(h.storeKey(u.Counter.prefix, u.Key), &action.Take{Units: u.Units}, c)
	}
	return c
}

// begin starts the takes, and reports whether there are some.
func (c *takingCall) begin() (isStarted bool) {
	operations := make([]operation, len(c.takes))
	for i := range c.takes {
		operations[i] = &c.takes[i]
	}
	c.start(operations, c.conclude)
	return len(operations) > 0
}

// operationDone is called for each operation that is done.
func (c *takingCall) operationDone(*recordOperation) { c.done() }

// conclude makes the totals, and undoes what is not kept. The call fails if one of its uses has. An undo that fails
// does not change what keep has decided: its units go on to count.
func (c *takingCall) conclude() {
	for i := range c.takes {
		outcome := c.takes[i].outcome
		if outcome.Err != nil {
			c.err = outcome.Err
		}
		c.totals[i] = Total{Over: outcome.Denied, Windows: outcome.Standings}
	}
	if c.err == nil && c.keep(c.totals) {
		close(c.ended)
		return
	}
	c.undos = make([]*recordOperation, len(c.takes))
	var operations []operation
	for i := range c.takes {
		if undo := c.takes[i].undo(); undo != nil {
			c.undos[i] = undo
			operations = append(operations, undo)
		}
	}
	c.start(operations, c.restateTotals)
}

// restateTotals makes the totals say how the keys stand after the undos, and ends the call. Several uses may have one
// key: then the last undo of it tells of them all, as in begunAsk.standings. A call may have very many uses, so each
// key's undos are looked up.
func (c *takingCall) restateTotals() {
	undosOf := map[[16]byte][]*recordOperation{}
	for i, undo := range c.undos {
		if undo != nil {
			c.core.metrics.unitsLost.Add(c.takes[i].lostBy(undo))
			undosOf[undo.storeKey] = append(undosOf[undo.storeKey], undo)
		}
	}
	for i := range c.takes {
		take := &c.takes[i]
		for _, undo := range slices.Backward(undosOf[take.storeKey]) {
			if undo.tellsOf(take) {
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

// recall returns the total of a use whose key is known to be over the limit of one of its windows.
func (k overKeys) recall(storeKey [16]byte, windows []limit.Window, storeNs int64) (total Total, isKnown bool) {
	over, ok := k[storeKey]
	if !ok || over.endNs <= storeNs {
		return Total{}, false
	}
	i := slices.Index(windows, over.Window)
	if i < 0 { // the limit is another one now
		return Total{}, false
	}
	left := over.endNs - storeNs
	if left > over.LengthNs(storeNs) { // the store's clock was set back
		return Total{}, false
	}
	total = Total{Over: true, Remembered: true, Windows: make([]quota.Standing, len(windows))}
	total.Windows[i] = quota.Standing{Used: over.Limit, ResetNs: left}
	return total, true
}

// note remembers the key of a use that found a fixed window over its limit.
func (k overKeys) note(storeKey [16]byte, windows []limit.Window, found *action.Outcome) {
	var last fullWindow
	for i, standing := range found.Standings {
		w, endNs := windows[i], found.NowNs+standing.ResetNs
		if w.IsFixed() && !w.Elastic && !w.Unlimited && standing.Used > w.Limit && endNs > last.endNs {
			last = fullWindow{w, endNs}
		}
	}
	if last.endNs == 0 {
		return
	}
	if len(k) >= maxOver {
		maps.DeleteFunc(k, func(_ [16]byte, over fullWindow) bool { return over.endNs <= found.NowNs })
		if len(k) > maxOver/2 { // the next look for what has ended would come too soon
			clear(k)
		}
	}
	k[storeKey] = last
}
