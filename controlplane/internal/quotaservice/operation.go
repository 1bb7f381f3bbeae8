package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// operation is an operation on one key of the store, which carries it out in one of two ways:
//
//	a *recordOperation  has an action. The key's value is a record: see recordValue. It is decided on the record. If the
//	                    store refuses its swap, it is decided again on the value that is there
//	an *addition        has units. The key's value is a sum: see sumValue. The store adds the units
//
// All operations of a key are of one kind: see newAddition.
type operation interface {
	// on returns the key that it is on.
	on() onKey
	// newValue returns the value of its key, of which nothing is known.
	newValue() value
	// done tells who waits for it what has come of it. It is called once, while the service is locked. If its swap has
	// failed, the outcome has an Err alone.
	done(*action.Outcome)
}

// onKey says which key an operation is on.
type onKey struct {
	storeKey [16]byte // under which the store keeps the value
	domain   string   // whose key it is
}

func (k onKey) on() onKey { return k }

// recordOperation is an operation with an action on a record.
type recordOperation struct {
	action.Operation
	onKey
	owner   owner           // learns what came of it
	outcome *action.Outcome // nil until it is done
}

func (o *recordOperation) newValue() value { return &recordValue{} }

func (o *recordOperation) done(outcome *action.Outcome) {
	o.outcome = outcome
	o.owner.operationDone(o)
}

// newOperation returns an operation on a key of the counter.
func newOperation(
	c *Counter, windows balance.KeyWindows, storeKey [16]byte, a action.Action, owner owner,
) recordOperation {
	return recordOperation{
		Operation: action.Operation{Terms: c.terms, Windows: windows, Action: a},
		onKey:     onKey{storeKey: storeKey, domain: c.domain}, owner: owner,
	}
}

// owner learns what came of its operations: a begunAsk of its hits, returned of what a proxy gives
// back, a waiter of what an operator does, a charge or a takingCall of what a call does.
type owner interface {
	// operationDone is called while the service is locked.
	operationDone(o *recordOperation)
}

// undo returns what undoes it; nil = it has taken nothing.
func (o *recordOperation) undo() *recordOperation { return o.followedBy(o.Undo(o.outcome)) }

// lostBy returns how many of the units that it has taken its undo could not uncount. A later report corrects a Hold.
func (o *recordOperation) lostBy(undo *recordOperation) uint64 {
	if _, isHold := o.Action.(*action.Hold); isHold {
		return 0
	}
	return uint64(o.outcome.Taken.Units - undo.outcome.Uncounted)
}

// followedBy returns an operation that does something else to the same key, for the same owner; nil = it does nothing.
func (o *recordOperation) followedBy(a action.Action) *recordOperation {
	if a == nil {
		return nil
	}
	return &recordOperation{
		Operation: action.Operation{Terms: o.Terms, Windows: o.Windows, Action: a},
		onKey:     o.onKey, owner: o.owner,
	}
}

// tellsOf reports whether an undo says how the key of an operation stands after it: its standings are of the same
// windows of one key, and both or neither say what is held. o may be nil.
func (o *recordOperation) tellsOf(other *recordOperation) bool {
	return o != nil && o.outcome.Err == nil &&
		o.storeKey == other.storeKey && slices.Equal(o.Windows.Shifted, other.Windows.Shifted) &&
		(o.Terms.HoldLimit == nil) == (other.Terms.HoldLimit == nil)
}

// steps are what a begunAsk or a takingCall does one after the other.
type steps struct {
	keys *keys
	left int    // operations of this step that are not done
	next func() // the step that follows then, whichever operation is the last
}

// start starts the operations of a step, and has the next step follow once they are done. If there are none, it follows
// at once.
func (s *steps) start(operations []operation, next func()) {
	if len(operations) == 0 {
		next()
		return
	}
	s.left, s.next = len(operations), next
	for _, o := range operations {
		s.keys.add(o)
	}
}

// done says that an operation is done.
func (s *steps) done() {
	s.left--
	if s.left == 0 {
		s.next()
	}
}

// Operate does something to one key: one of the actions of operators, see action.Action. Units that proxies lease count
// as used. Those that they have leased when a key is set or reset, they may spend until their leases end.
func (s *Service) Operate(
	ctx context.Context, domain string, d quota.Definition, key [16]byte, what action.Action,
) (action.Outcome, error) {
	counter, err := newCounter(domain, &d)
	if err != nil {
		return action.Outcome{}, err
	}
	terms := counter.terms
	_, isInc := what.(*action.Inc)
	_, isSet := what.(*action.Set)
	countsRunning := terms.HoldLimit != nil && len(terms.Windows) == 0
	if countsRunning && (isInc || isSet) {
		return action.Outcome{},
			errors.New("this counts running requests, which inc and set cannot change: reset forgets them")
	}
	if s.apart.Load() {
		return action.Outcome{}, errOtherSecret
	}
	done := make(waiter)
	o := counter.operation(what, newHasher(s.secret.Load()), &key, done)
	s.submit(&o)
	select {
	case <-done:
	case <-ctx.Done():
		return action.Outcome{}, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if o.outcome.Err != nil {
		return action.Outcome{}, fmt.Errorf("ask the quota store: %w", o.outcome.Err)
	}
	return *o.outcome, nil
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*recordOperation) { close(w) }
