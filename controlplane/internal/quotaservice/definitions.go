package quotaservice

import (
	"container/list"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// definition is a counter as a worker has defined it.
type definition struct {
	*action.Definition               // nil = it was refused: asks that name it are answered Unknown
	id                 uint32        // as the worker has numbered it
	prefix             []byte        // of what is hashed for a key: see hasher
	place              *list.Element // in definitions.used
}

// newDefinition returns a definition also if it is refused, with the error that says what is wrong.
func newDefinition(domain string, d *quota.Definition) (*definition, error) {
	checked, err := action.NewDefinition(d)
	return &definition{Definition: checked, id: d.ID, prefix: prefix(domain, &d.Counter)}, err
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
	if before := ds.byID[d.id]; before != nil {
		ds.drop(before)
	}
	ds.byID[d.id] = d
	d.place = ds.used.PushBack(d)
	if ds.used.Len() > quota.MaxDefinitions {
		ds.drop(ds.used.Front().Value.(*definition))
	}
}

func (ds *definitions) drop(d *definition) {
	delete(ds.byID, d.id)
	ds.used.Remove(d.place)
}

// use returns a definition for an ask; nil if there is none, or it was refused.
func (ds *definitions) use(id uint32) *definition {
	d := ds.byID[id]
	if d == nil || d.Definition == nil {
		return nil
	}
	ds.used.MoveToBack(d.place)
	return d
}
