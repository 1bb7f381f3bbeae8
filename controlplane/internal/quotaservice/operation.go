package quotaservice

import "github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"

// operation is one thing that is to be done to one key:
//
//	its Action  the key's value                what becomes of it
//	*addUp      a sum: sumvalue.go             the store adds its units
//	any other   a record: recordvalue.go       it is decided on the record. If the store refuses its swap, it is decided
//	                                           again on the value that is there
type operation struct {
	action.Operation
	storeKey [16]byte // under which the store keeps the value
	domain   string   // whose key it is
	owner    owner    // learns what came of it
}

// owner learns what came of its operations: a group of its ask, returned of what a proxy gives
// back, a waiter of what an operator does, a call of its uses.
type owner interface {
	// operationDone is called while the service is locked.
	operationDone(o *operation)
}

// followedBy returns an operation that does something else to the same key, for the same owner.
func (o *operation) followedBy(a action.Action) *operation {
	return &operation{
		Operation: action.Operation{Definition: o.Definition, Action: a, Shifted: o.Shifted},
		storeKey:  o.storeKey, domain: o.domain, owner: o.owner,
	}
}
