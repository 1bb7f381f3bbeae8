package quotaservice

import (
	"container/list"
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// key is the operations of one key, which reach the store by one swap at a time, and its value there as far as that is
// known.
type key struct {
	storeKey [16]byte
	domain   string
	value    value
	state    keyState
	waiting  []operation   // come after the batch
	batch    batch         // of a key that is readyAgain or underWay
	place    *list.Element // of an idle key, in keys.idle
	bytes    int           // of an idle key, as keys.bytes counts it
}

// keyState is what a key waits for:
//
//	     add      nextSwap           learn: they are decided, or have failed
//	idle ──▶ ready ──────▶ underWay ────────▶ rest: idle, or ready if others wait
//	                        │    ▲
//	 learn: they need       │    │ nextSwap
//	          another swap  ▼    │
//	                      readyAgain
type keyState uint8

const (
	idle       keyState = iota // for operations
	ready                      // for its turn, in keys.ready: what waits is its next batch
	readyAgain                 // for its turn, in keys.ready: its batch needs another swap
	underWay                   // for the result of its batch's swap
)

// batch is operations of a key that are decided together, by one swap after the other.
type batch struct {
	operations []operation
	firstNs    int64 // when their first swap left, by the service's clock
	lates      int   // how many swaps the store found Late

	// The last swap:
	sentNs int64 // when it left
	reads  bool  // it only reads the record, because the operations change nothing
}

const (
	// maxIdle and maxIdleBytes bound the keys whose last value is kept: usual keys by
	// number, those with long logs by their bytes.
	maxIdle      = 1 << 15
	maxIdleBytes = 16 << 20
)

// keys are those with operations, and the last ones that had some.
type keys struct {
	byStoreKey map[[16]byte]*key
	ready      []*key     // have operations and no swap under way
	idle       *list.List // of *key, longest idle first
	max        int        // idle ones that are kept
	bytes      int        // of idle ones
}

func newKeys() keys { return keys{byStoreKey: map[[16]byte]*key{}, idle: list.New(), max: maxIdle} }

// add lets an operation wait for its key's turn.
func (ks *keys) add(o operation) {
	on := o.on()
	k := ks.byStoreKey[on.storeKey]
	switch {
	case k == nil:
		k = &key{storeKey: on.storeKey, domain: on.domain, value: o.newValue()}
		ks.byStoreKey[k.storeKey] = k
		ks.makeReady(k, ready)
	case k.state == idle:
		ks.removeIdle(k)
		ks.makeReady(k, ready)
	}
	k.waiting = append(k.waiting, o)
}

// makeReady has a key wait for its next swap.
func (ks *keys) makeReady(k *key, state keyState) {
	k.state = state
	ks.ready = append(ks.ready, k)
}

// nextReady takes the next key that is ready, nil if there is none.
func (ks *keys) nextReady() *key {
	if len(ks.ready) == 0 {
		return nil
	}
	k := ks.ready[0]
	ks.ready[0] = nil
	ks.ready = ks.ready[1:]
	return k
}

// nextSwap returns the swap of what waits, or of what needs another one. It leaves at localNs.
func (k *key) nextSwap(localNs, storeNs int64) swapstore.Swap {
	if k.state == ready {
		k.beginBatch(localNs)
	}
	k.state = underWay
	s := k.value.nextSwap(k.batch.operations, storeNs)
	s.Key, s.Domain = k.storeKey, k.domain
	k.batch.sentNs, k.batch.reads = localNs, s.Kind == swapstore.ReadOnly
	return s
}

// beginBatch makes a batch of what waits. The memory of the last one is used again.
func (k *key) beginBatch(localNs int64) {
	next := k.waiting
	k.waiting = k.batch.operations[:0]
	k.batch = batch{operations: next, firstNs: localNs}
}

// learn takes the result of the swap, as value.learn does. Operations that need another swap for too long have failed.
func (k *key) learn(r swapstore.Result) (outcomes []action.Outcome, err error) {
	if r.Status == swapstore.Late {
		k.batch.lates++
	}
	outcomes, err = k.value.learn(k.batch.operations, r)
	if outcomes == nil && err == nil {
		err = k.batch.whyGiveUp(r.Status)
	}
	return outcomes, err
}

// What is tried again, and for how long:
//
//	what                               why                          how often
//	a key's swap, by keys.retry        another value is there       for maxContendedNs
//	                                   the store's clock has moved  for maxContendedNs, but at most maxLate
//	a hit, by endOrAgain               its window is about to end   when that has ended
//	an addition, by its charge         its window has ended         at most maxLate
//	a script, by package redisstore    the server did not know it   once
//
// Nothing is tried again of which it is not known whether the store has carried it out.
const (
	// maxContendedNs is for how long an operation is decided anew because another
	// service has written first. How often is no bound: a service whose answers come a
	// little later can lose a busy key to the others a hundred times in a row.
	maxContendedNs = second
	// maxLate is how often it is decided anew because the store's clock had moved on. If
	// windows are short, that may be each time.
	maxLate = 64
)

var (
	errContended = errors.New("the key's value changed each time before it was swapped")
	errLate      = errors.New("each swap came too late to the store: " +
		"it, this service or the way between them is overloaded")
)

// whyGiveUp says why the operations are not decided anew; nil = they are.
func (b *batch) whyGiveUp(status swapstore.Status) error {
	switch {
	case b.lates <= maxLate && b.sentNs-b.firstNs < maxContendedNs:
		return nil
	case status == swapstore.Late:
		return errLate
	}
	return errContended
}

// retry has a key take another swap for its batch.
func (ks *keys) retry(k *key) { ks.makeReady(k, readyAgain) }

// rest ends a key's swap: its next operations come, or it is idle.
func (ks *keys) rest(k *key) {
	clear(k.batch.operations)
	k.batch.operations = k.batch.operations[:0]
	if len(k.waiting) > 0 {
		ks.makeReady(k, ready)
		return
	}
	if !k.value.isWorthKeeping() {
		delete(ks.byStoreKey, k.storeKey)
		return
	}
	k.state = idle
	k.place, k.bytes = ks.idle.PushBack(k), k.idleBytes()
	ks.bytes += k.bytes
	for ks.idle.Len() > ks.max || ks.bytes > maxIdleBytes {
		oldest := ks.idle.Front().Value.(*key)
		ks.removeIdle(oldest)
		delete(ks.byStoreKey, oldest.storeKey)
	}
}

// removeIdle takes a key out of the idle ones.
func (ks *keys) removeIdle(k *key) {
	ks.idle.Remove(k.place)
	ks.bytes -= k.bytes
	k.place = nil
}

// idleBytes is about what the key takes while it is idle.
func (k *key) idleBytes() int {
	return 200 + k.value.bytes() + 16*(cap(k.batch.operations)+cap(k.waiting))
}
