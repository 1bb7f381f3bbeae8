package quotaservice

import (
	"container/list"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// definition is a counter as a worker has defined it.
type definition struct {
	*action.Definition
	id     uint32        // as the worker has numbered it
	prefix []byte        // of what is hashed for a key: see hasher
	place  *list.Element // in definitions.used
}

// newDefinition returns a definition, or says why it is refused.
func newDefinition(domain string, d *quota.Definition) (*definition, error) {
	checked, err := action.NewDefinition(d)
	if err != nil {
		return nil, err
	}
	return &definition{Definition: checked, id: d.ID, prefix: prefix(domain, &d.Counter)}, nil
}

// operation is one on a key of the definition.
func (d *definition) operation(a action.Action, h *hasher, domain string, partKey [16]byte, owner owner) operation {
	return operation{
		Operation: action.Operation{Definition: d.Definition, Action: a, Shifted: d.ShiftedFor(partKey)},
		storeKey:  h.storeKey(d.prefix, partKey[:]), domain: domain, owner: owner,
	}
}

// definitions are those of one worker.
type definitions struct {
	byID map[uint32]*definition
	used *list.List // of *definition, the least recently used first
}

func newDefinitions() definitions {
	return definitions{byID: map[uint32]*definition{}, used: list.New()}
}

// put keeps a definition in place of one with its number. If there are too many, the least
// recently used one goes.
func (ds *definitions) put(d *definition) {
	ds.drop(d.id)
	ds.byID[d.id] = d
	d.place = ds.used.PushBack(d)
	if ds.used.Len() > quota.MaxDefinitions {
		ds.drop(ds.used.Front().Value.(*definition).id)
	}
}

// drop drops the definition with that number, if there is one.
func (ds *definitions) drop(id uint32) {
	if d := ds.byID[id]; d != nil {
		delete(ds.byID, id)
		ds.used.Remove(d.place)
	}
}

// use returns a definition for an ask; nil if there is none.
func (ds *definitions) use(id uint32) *definition {
	d := ds.byID[id]
	if d != nil {
		ds.used.MoveToBack(d.place)
	}
	return d
}
