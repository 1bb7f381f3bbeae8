package quotaservice

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// keyOperation is an operation on one key of the store, which carries it out in one of two ways:
//
//	it has       the key's value        what becomes of it
//	an Action    a record: recordValue  It is decided on the record. If the store refuses its swap, it is decided again
//	                                    on the value that is there
//	an addition  a sum: sumValue        The store adds its units
type keyOperation struct {
	action.Operation
	addition *addition
	storeKey [16]byte // under which the store keeps the value
	domain   string   // whose key it is
	owner    owner    // learns what came of it

	// What comes of it if the store takes its swap. Its key's value says so, anew each time it is decided.
	tentative action.Outcome
	// What came of it: core.end writes it once, and the owner reads it. If it has failed, it has an Err alone.
	outcome action.Outcome
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
func (c *Counter) operation(a action.Action, h *hasher, partKey *[16]byte, owner owner) keyOperation {
	return keyOperation{
		Operation: action.Operation{Terms: c.terms, Windows: c.terms.WindowsFor(*partKey), Action: a},
		storeKey:  h.storeKey(c.prefix, partKey[:]), domain: c.domain, owner: owner,
	}
}

// A key has two forms, and that of an addition has a third:
//
//	partKey    names a client to the service: quota.Part.Key, a hash that the proxy made, or a call's Use.Key
//	storeKey   names a client's value of one counter to the store: Swap.Key, a hash of counter and partKey
//	clientKey  of an addition: that hash. The storeKey is made of clientKey and the window: see addIn

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

// steps are what an ask or a call does one after the other.
type steps struct {
	keys *keys
	left int    // operations of this step that are not done
	next func() // the step that follows then
}

// start starts the operations of a step, and has the next step follow once they are done. If there are none, it follows
// at once.
func (s *steps) start(operations []*keyOperation, next func()) {
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
	return o.outcome, nil
}

// waiter is closed when its operation is done.
type waiter chan struct{}

func (w waiter) operationDone(*keyOperation) { close(w) }
