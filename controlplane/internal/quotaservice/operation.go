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

// keyOperation is an operation on one key of the store, which carries it out in one of two ways:
//
//	made by       it has       the key's value        what becomes of it
//	newOperation  an Action    a record: recordValue  It is decided on the record. If the store refuses its swap, it is
//	                                                  decided again on the value that is there
//	newAddition   an addition  a sum: sumValue        The store adds its units
type keyOperation struct {
	action.Operation           // of an addition, without an Action
	addition         *addition // see isAddition
	storeKey         [16]byte  // under which the store keeps the value
	domain           string    // whose key it is
	owner            owner     // learns what came of it

	// What comes of it if the store takes its swap. The key's value writes it anew each time the operation is decided.
	// The owner reads it only once operationDone says that it holds. If the swap has failed, it has an Err alone. If it
	// was decided that the action cannot be done, it also has what Outcome.Err says.
	outcome action.Outcome
}

// newOperation returns an operation with an Action.
func newOperation(
	c *Counter, windows balance.KeyWindows, storeKey [16]byte, a action.Action, owner owner,
) keyOperation {
	return keyOperation{
		Operation: action.Operation{Terms: c.terms, Windows: windows, Action: a},
		storeKey:  storeKey, domain: c.domain, owner: owner,
	}
}

// owner learns what came of its operations: a begunAsk of its hits, returned of what a proxy gives
// back, a waiter of what an operator does, a call of its uses.
type owner interface {
	// operationDone is called while the service is locked.
	operationDone(o *keyOperation)
}

// undo returns what undoes it; nil = it has taken nothing.
func (o *keyOperation) undo() *keyOperation { return o.followedBy(o.Undo(&o.outcome)) }

// followedBy returns an operation that does something else to the same key, for the same owner; nil = it does nothing.
func (o *keyOperation) followedBy(a action.Action) *keyOperation {
	if a == nil {
		return nil
	}
	return &keyOperation{
		Operation: action.Operation{Terms: o.Terms, Windows: o.Windows, Action: a},
		storeKey:  o.storeKey, domain: o.domain, owner: o.owner,
	}
}

// tellsOf reports whether an undo says how the key of an operation stands after it; o may be nil.
func (o *keyOperation) tellsOf(other *keyOperation) bool {
	return o != nil && o.outcome.Err == nil && o.standsAs(other)
}

// standsAs reports whether the standings of both are of the same windows of one key, and both or neither say what is
// held.
func (o *keyOperation) standsAs(other *keyOperation) bool {
	return o.storeKey == other.storeKey && slices.Equal(o.Windows.Shifted, other.Windows.Shifted) &&
		(o.Terms.HoldLimit == nil) == (other.Terms.HoldLimit == nil)
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
	return o.outcome, nil
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*keyOperation) { close(w) }
