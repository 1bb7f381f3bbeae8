package quotaservice

import (
	"container/list"
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// key is the operations of one key, which reach the store by one swap at a time, and its value there as far as that is
// known. A key is at one place at a time:
//
//	           add              nextReady                     rest
//	keys.idle ─────▶ keys.ready ─────────▶ its swap is under way ────▶ keys.idle, or keys.ready if others wait
//	                     ▲                           │
//	                     └───────────────────────────┘
//	                      retry: its batch needs another swap
type key struct {
	onKey
	value   value
	waiting []operation   // come after the batch
	batch   batch         // empty before its first swap
	idleAt  *list.Element // where it is in keys.idle; nil = it is not idle
}

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
	ready      []*key     // have operations, and wait for their next swap
	idle       *list.List // of *key, longest idle first
	max        int        // idle ones that are kept
	bytes      int        // of idle ones
}

func newKeys() keys { return keys{byStoreKey: map[[16]byte]*key{}, idle: list.New(), max: maxIdle} }

// add lets an operation wait for its key's turn.
func (ks *keys) add(o operation) {
	k := ks.byStoreKey[o.on().storeKey]
	switch {
	case k == nil:
		k = &key{onKey: o.on(), value: o.newValue()}
		ks.byStoreKey[k.storeKey] = k
		ks.ready = append(ks.ready, k)
	case k.idleAt != nil:
		ks.removeIdle(k)
		ks.ready = append(ks.ready, k)
	}
	k.waiting = append(k.waiting, o)
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

// nextSwap returns the next swap of the batch. If there is none, what waits is the next batch. The swap leaves at
// localNs.
func (k *key) nextSwap(localNs, storeNs int64) swapstore.Swap {
	if len(k.batch.operations) == 0 {
		k.beginBatch(localNs)
	}
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
func (k *key) learn(r swapstore.Result) learned {
	if r.Status == swapstore.Late {
		k.batch.lates++
	}
	l := k.value.learn(k.batch.operations, r)
	if !l.needsSwap {
		return l
	}
	if err := k.batch.whyGiveUp(r.Status); err != nil {
		return learned{err: err}
	}
	return l
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
func (ks *keys) retry(k *key) { ks.ready = append(ks.ready, k) }

// rest ends a key's batch: its next operations come, or it is idle.
func (ks *keys) rest(k *key) {
	clear(k.batch.operations)
	k.batch.operations = k.batch.operations[:0]
	if len(k.waiting) > 0 {
		ks.ready = append(ks.ready, k)
		return
	}
	if !k.value.isWorthKeeping() {
		delete(ks.byStoreKey, k.storeKey)
		return
	}
	k.idleAt = ks.idle.PushBack(k)
	ks.bytes += k.idleBytes()
	for ks.idle.Len() > ks.max || ks.bytes > maxIdleBytes {
		oldest := ks.idle.Front().Value.(*key)
		ks.removeIdle(oldest)
		delete(ks.byStoreKey, oldest.storeKey)
	}
}

// removeIdle takes a key out of the idle ones.
func (ks *keys) removeIdle(k *key) {
	ks.idle.Remove(k.idleAt)
	ks.bytes -= k.idleBytes()
	k.idleAt = nil
}

// idleBytes is about what the key takes while it is idle. Meanwhile it stays the same.
func (k *key) idleBytes() int {
	return 200 + k.value.bytes() + 16*(cap(k.batch.operations)+cap(k.waiting))
}
