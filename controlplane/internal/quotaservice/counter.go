package quotaservice

import (
	"container/list"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Counter is a counter of a domain: what a quota.Definition says of it, which is
//
//	prefix  which counter it is. Each of its keys has a value in the store
//	terms   the windows and limits by which operations on these keys are decided
//
// A worker has its own by number, see definitions. An operator names one for each operation, and many calls use one at
// a time: see NewCounter.
type Counter struct {
	domain string
	prefix []byte // of what is hashed for a key: see hasher
	terms  *action.Terms
}

// newCounter returns the counter of a definition, or says why that is refused.
func newCounter(domain string, d *quota.Definition) (*Counter, error) {
	terms, err := action.NewTerms(d)
	if err != nil {
		return nil, err
	}
	return &Counter{domain: domain, prefix: prefix(domain, &d.Counter), terms: terms}, nil
}

// operation is one on a key of the counter.
func (c *Counter) operation(a action.Action, h *hasher, partKey [16]byte, owner owner) keyOperation {
	return keyOperation{
		Operation: action.Operation{Terms: c.terms, Action: a, Shifted: c.terms.ShiftedFor(partKey)},
		storeKey:  h.storeKey(c.prefix, partKey[:]), domain: c.domain, owner: owner,
	}
}

// definitions are the counters that one worker has defined, by its own numbers.
type definitions struct {
	byID map[uint32]*list.Element // of used
	used *list.List               // of definition, the least recently used first
}

type definition struct {
	id      uint32
	counter *Counter
}

func newDefinitions() definitions {
	return definitions{byID: map[uint32]*list.Element{}, used: list.New()}
}

// put keeps a counter in place of one with its number. If there are too many, the least
// recently used one goes.
func (ds *definitions) put(id uint32, c *Counter) {
	ds.drop(id)
	ds.byID[id] = ds.used.PushBack(definition{id, c})
	if ds.used.Len() > quota.MaxDefinitions {
		ds.drop(ds.used.Front().Value.(definition).id)
	}
}

// drop drops the counter with that number, if there is one.
func (ds *definitions) drop(id uint32) {
	if place := ds.byID[id]; place != nil {
		delete(ds.byID, id)
		ds.used.Remove(place)
	}
}

// use returns the counter with that number for an ask; nil if there is none.
func (ds *definitions) use(id uint32) *Counter {
	place := ds.byID[id]
	if place == nil {
		return nil
	}
	ds.used.MoveToBack(place)
	return place.Value.(definition).counter
}
