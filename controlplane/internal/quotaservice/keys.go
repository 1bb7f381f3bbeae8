package quotaservice

import (
	"container/list"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
)

const (
	// maxIdle and maxIdleBytes bound the keys whose last value is kept: usual keys by
	// number, those with long logs by their bytes.
	maxIdle      = 1 << 15
	maxIdleBytes = 16 << 20
	// About what a window and a holder take.
	windowBytes = 64
	holderBytes = 56
)

// key is the operations of one key, which reach the store by one swap at a time, and its last value as far as it
// is known. decide.go does what is between two of these states, and this file the rest:
//
//	       add            next              decide.go        rest
//	idle ───────▶ ready ───────▶ under way ───────────▶ done ──────▶ idle, or ready if others wait
//	                ▲                           │
//	                └────────── again ──────────┘ the operations need another swap
type key struct {
	storeKey [16]byte
	domain   string
	waiting  []*operation
	busy     bool          // it is ready, or its swap is under way
	idle     *list.Element // unless busy: in keys.idle
	bytes    int           // of it while it is idle

	// isSum says that all operations add up. Then the value is a sum and not a record: see sum.go.
	//
	//	             key of a record                        key of a sum
	//	prepare      decides on the value known last        prepareSum: adds the units, knowing no value
	//	learnResult  done, or to be decided on a new value  learnSum: done, or errEnded
	//	rest         keeps the value while idle             forgets the key
	//	retried by   keys.again, for the same key           call.operationDone, for the key of another window
	isSum bool

	// The value.
	record          *record.Record // nil = as far as is known, none is there
	nonce           []byte         // of the value; nil = none
	startingUntilNs int64          // until when the store is starting, by its clock: the last Young swap has said so

	// The swap that is under way.
	swap    []*operation // decided together
	reads   bool         // the swap only reads, because its operations change nothing
	value   []byte       // memory for what is swapped in
	sentNs  int64        // when it left, by the service's clock
	slackNs int64        // how much later the store may carry it out
	untilNs int64        // when the first window ends that it counts in
	firstNs int64        // when the first swap of these operations left
	late    int          // how often the store found it Late
}

// size is about what the key takes.
func (k *key) size() int {
	n := 300 + cap(k.value) + 8*(cap(k.swap)+cap(k.waiting))
	if k.record != nil {
		for i := range k.record.Windows {
			n += 2*windowBytes + 8*cap(k.record.Usages[i].Log)
		}
		n += holderBytes * cap(k.record.Holders)
	}
	return n
}

// keys are those with operations, and the last ones that had some.
type keys struct {
	byStoreKey map[[16]byte]*key
	ready      []*key     // have operations and no swap under way
	idle       *list.List // of *key, longest idle first
	max        int        // idle ones that are kept
	bytes      int        // of idle ones
}

func newKeys() keys { return keys{byStoreKey: map[[16]byte]*key{}, idle: list.New(), max: maxIdle} }

// removeIdle takes a key out of the idle ones.
func (ks *keys) removeIdle(k *key) {
	ks.idle.Remove(k.idle)
	ks.bytes -= k.bytes
	k.idle = nil
}

// add lets an operation wait for its key's turn.
func (ks *keys) add(o *operation) {
	k := ks.byStoreKey[o.storeKey]
	if k == nil {
		k = &key{storeKey: o.storeKey, domain: o.domain, isSum: o.adds != nil}
		ks.byStoreKey[o.storeKey] = k
	}
	k.waiting = append(k.waiting, o)
	if k.busy {
		return
	}
	k.busy = true
	if k.idle != nil {
		ks.removeIdle(k)
	}
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

// again has a key take another swap for the operations of the last one.
func (ks *keys) again(k *key) { ks.ready = append(ks.ready, k) }

// rest ends a key's swap: its next operations come, or it is idle.
func (ks *keys) rest(k *key) {
	clear(k.swap)
	k.swap = k.swap[:0]
	if len(k.waiting) > 0 {
		ks.ready = append(ks.ready, k)
		return
	}
	k.busy = false
	if k.isSum { // the next swap does without the store's value
		delete(ks.byStoreKey, k.storeKey)
		return
	}
	k.idle, k.bytes = ks.idle.PushBack(k), k.size()
	ks.bytes += k.bytes
	for ks.idle.Len() > ks.max || ks.bytes > maxIdleBytes {
		oldest := ks.idle.Front().Value.(*key)
		ks.removeIdle(oldest)
		delete(ks.byStoreKey, oldest.storeKey)
	}
}
