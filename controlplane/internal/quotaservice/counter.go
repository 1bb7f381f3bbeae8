package quotaservice

import (
	"container/list"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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

// NewCounter returns a counter of a domain for calls to count in. What two counters of one name have counted under a
// key they share, in those windows that both have.
func NewCounter(domain string, name [16]byte, windows []limit.Window) (*Counter, error) {
	c, err := newCounter(domain, &quota.Definition{Counter: name, Windows: windows, Lease: quota.LeaseOff})
	switch {
	case err != nil:
		return nil, err
	case c.terms.HoldLimit != nil:
		return nil, errors.New("a call cannot hold units: nobody says when it ends")
	case len(windows) == 0:
		return nil, errors.New("there is no window to count in")
	case slices.ContainsFunc(windows, func(w limit.Window) bool { return w.Jitter > 0 }):
		return nil, errors.New("a call counts in no window with jitter: calls do not shift windows by their keys")
	}
	return c, nil
}

// Windows are those that it counts in.
func (c *Counter) Windows() []limit.Window { return c.terms.Windows }

// operation is an Action on a key of the counter.
func (c *Counter) operation(a action.Action, h *hasher, partKey *[16]byte, owner owner) recordOperation {
	return newOperation(c, c.terms.WindowsFor(*partKey), h.storeKey(c.prefix, partKey[:]), a, owner)
}

// A key has two forms:
//
//	partKey   names a client to the service: quota.Part.Key, a hash that the proxy made, or a call's Use.Key
//	storeKey  names a client's value of one counter to the store: Swap.Key, a hash of counter and partKey. Where the
//	          store adds, it also names the window: see newAddition

// hasher makes storeKeys. They say nothing about clients to those who do not know the secret.
type hasher struct {
	secret *[]byte
	mac    hash.Hash
	sum    [sha256.Size]byte
}

func newHasher(secret *[]byte) *hasher {
	return &hasher{secret: secret, mac: hmac.New(sha256.New, *secret)}
}

// withSecret returns h if it has that secret, else a new one. Making one costs more than using it. h may be nil.
func (h *hasher) withSecret(secret *[]byte) *hasher {
	if h != nil && h.secret == secret {
		return h
	}
	return newHasher(secret)
}

// storeKey hashes a partKey after what prefix returned.
func (h *hasher) storeKey(prefix, partKey []byte) (storeKey [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(partKey)
	copy(storeKey[:], h.mac.Sum(h.sum[:0]))
	return storeKey
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
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
