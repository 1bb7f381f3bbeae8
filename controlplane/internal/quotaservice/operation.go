package quotaservice

import "github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"

// keyOperation is an action.Operation on one key of the store:
//
//	its Action  the key's value                what becomes of it
//	*addUp      a sum: sumvalue.go             the store adds its units
//	any other   a record: recordvalue.go       it is decided on the record. If the store refuses its swap, it is decided
//	                                           again on the value that is there
type keyOperation struct {
	action.Operation
	storeKey [16]byte // under which the store keeps the value
	domain   string   // whose key it is
	owner    owner    // learns what came of it
}

// owner learns what came of its operations: a begunAsk of its hits, returned of what a proxy gives
// back, a waiter of what an operator does, a call of its uses.
type owner interface {
	// operationDone is called while the service is locked.
	operationDone(o *keyOperation)
}

// followedBy returns an operation that does something else to the same key, for the same owner.
func (o *keyOperation) followedBy(a action.Action) *keyOperation {
	return &keyOperation{
		Operation: action.Operation{Terms: o.Terms, Action: a, Shifted: o.Shifted},
		storeKey:  o.storeKey, domain: o.domain, owner: o.owner,
	}
}

// steps are what an ask or a call does one after the other. Each step starts operations, and says by then which step
// follows once they are done:
//
//	func (a *begunAsk) startHits() {
//		a.start(…)
//		a.start(…)
//		a.then((*begunAsk).startLastHits)
//	}
type steps[T any] struct {
	of   T // whose steps they are
	keys *keys
	left int     // operations that are not done
	next func(T) // the step that follows then
}

func newSteps[T any](of T, keys *keys) steps[T] { return steps[T]{of: of, keys: keys} }

// start lets an operation wait for its key.
func (s *steps[T]) start(o *keyOperation) {
	s.left++
	s.keys.add(o)
}

// then has a step follow once all operations are done that were started so far. If none was, it follows at once.
func (s *steps[T]) then(step func(T)) {
	s.next = step
	if s.left == 0 {
		step(s.of)
	}
}

// done says that an operation is done.
func (s *steps[T]) done() {
	s.left--
	if s.left == 0 {
		s.next(s.of)
	}
}
