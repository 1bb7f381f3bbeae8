package quotaservice

import (
	"container/list"
	"errors"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// maxContendedNs is for how long an operation is decided anew because another
	// service has written first. How often is no bound: a service whose answers come a
	// little later can lose a busy key to the others a hundred times in a row.
	maxContendedNs = second
	// maxLate is how often it is decided anew because the store's clock had moved on. If
	// windows are short, that may be each time.
	maxLate = 64
	// maxIdle and maxIdleBytes bound the keys whose last value is kept: usual keys by
	// number, those with long logs by their bytes.
	maxIdle      = 1 << 15
	maxIdleBytes = 16 << 20
	// About what a window and a holder take.
	windowBytes = 64
	holderBytes = 56
)

var (
	errContended = errors.New("the key's value changed each time before it was swapped")
	errLate      = errors.New("each swap came too late to the store: " +
		"it, this service or the way between them is overloaded")
)

// A key's operations reach the store by swaps, one at a time:
//
//	prepare     decides what waits on the value known last, at storeNs: what the store's clock will
//	            say when the swap arrives, as far as the service knows that clock
//	the store   swaps only while its own clock is between these two:
//
//	              storeNs ───────────── AtNs ───────────── storeNs + slackNs
//	                      ◀─ SlackNs ─▶      ◀─ SlackNs ─▶
//
//	            Before storeNs, units could be spent before the window begins that counts them. After
//	            storeNs + slackNs, what was decided may not hold any more.
//	takeResult  Swapped: the operations are done. Failed: they end with the error. Else the
//	            store has said which value is there and what its clock says. The operations are
//	            decided on that. If they change nothing, they are done; if they change something,
//	            the next swap has to carry it, so prepare decides them once more.

// key is one key's operations, which are carried out one after the other, and its
// last value as far as it is known.
type key struct {
	id              [16]byte
	domain          string
	record          *record // nil = as far as is known, none is there
	nonce           []byte  // of the value; nil = none
	startingUntilNs int64   // until when the store is starting, by its clock and as far as is known
	waiting         []*operation
	busy            bool          // it is ready, or its swap is under way
	idle            *list.Element // unless busy: in keys.idle
	bytes           int           // of it while it is idle

	// isSum says that all operations are addUp. Then the value is a sum and not a record: there is
	// nothing to decide on, and no value or nonce to know. See sum.go.
	isSum bool

	// The swap that is under way.
	swap    []*operation // decided together
	reads   bool         // the swap only reads, because its operations change nothing
	value   []byte       // memory for what is swapped in
	sentNs  int64        // when it left, by the service's clock
	slackNs int64        // how much later the store may carry it out
	untilNs int64        // when the first window ends that it counts in
	firstNs int64        // when it was tried first
	late    int          // how often the store found it Late
}

// size is about what the key takes.
func (k *key) size() int {
	n := 300 + cap(k.value) + 8*(cap(k.swap)+cap(k.waiting))
	if k.record != nil {
		for i := range k.record.Windows {
			n += 2*windowBytes + 8*cap(k.record.Usages[i].Log)
		}
		if k.record.Holders != nil {
			n += holderBytes * cap(k.record.Holders.List)
		}
	}
	return n
}

// keys are those with operations, and the last ones that had some.
type keys struct {
	byID  map[[16]byte]*key
	idle  *list.List // of *key, longest idle first
	ready []*key     // have operations and no swap under way
	max   int        // idle ones that are kept
	bytes int        // of idle ones
}

func newKeys() keys { return keys{byID: map[[16]byte]*key{}, idle: list.New(), max: maxIdle} }

// removeIdle takes a key out of the idle ones.
func (ks *keys) removeIdle(k *key) {
	ks.idle.Remove(k.idle)
	ks.bytes -= k.bytes
	k.idle = nil
}

// add lets an operation wait for its key's turn.
func (ks *keys) add(o *operation) {
	k := ks.byID[o.key]
	if k == nil {
		k = &key{id: o.key, domain: o.domain, isSum: o.what == addUp}
		ks.byID[o.key] = k
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
		delete(ks.byID, k.id)
		return
	}
	k.idle, k.bytes = ks.idle.PushBack(k), k.size()
	ks.bytes += k.bytes
	for ks.idle.Len() > ks.max || ks.bytes > maxIdleBytes {
		oldest := ks.idle.Front().Value.(*key)
		ks.removeIdle(oldest)
		delete(ks.byID, oldest.id)
	}
}

// clock is what the service knows of the store's clock: how far it will be ahead of the
// service's own when a swap that leaves now has arrived. That is the smallest lead that was seen, so
// the fastest way to the store. The store finds a swap Late if it is even faster, because the store's
// clock is still before storeNs, or if it takes longer than the slack.
//
// In all of the package localNs is a time by the service's own clock. storeNs is one by the store's clock, as
// the store has said it or as far as the service knows it.
type clock struct {
	known   bool
	aheadNs int64
}

// note notes that the store's clock said storeNs to a swap that left at sentNs. isWrong says that
// what was known of the clock has misled the swap, so that this replaces it also if it is larger.
func (c *clock) note(sentNs, storeNs int64, isWrong bool) {
	ahead := storeNs - sentNs
	if !c.known || isWrong || ahead < c.aheadNs {
		c.known, c.aheadNs = true, ahead
	}
}

// storeNs is the earliest time that the store's clock may show to a swap that leaves at localNs.
func (c *clock) storeNs(localNs int64) int64 { return localNs + c.aheadNs }

// storeNow is storeNs of a swap that leaves now.
func (s *Service) storeNow() int64 { return s.clock.storeNs(s.o.Clock.NowNs()) }

// prepare decides what waits, as of storeNs, and returns the swap, which leaves at localNs. A swap that only
// reads shows whether the decision not to change anything holds.
func (k *key) prepare(localNs, storeNs int64) Swap {
	if len(k.swap) == 0 {
		k.swap, k.waiting = k.waiting, k.swap
		k.firstNs, k.late = localNs, 0
	}
	k.sentNs = localNs
	if k.isSum {
		return k.prepareSum()
	}
	s := Swap{Key: k.id, Domain: k.domain, Old: k.nonce, UntilNs: math.MaxInt64}
	k.reads = !k.decide(storeNs)
	if slices.ContainsFunc(k.swap, func(o *operation) bool { return o.needsAge }) {
		s.AgeNs = StartingNs
	}
	if k.reads {
		return s
	}
	k.value = k.record.append(k.value[:0], random())
	s.New = k.value
	s.UntilNs = k.untilNs
	s.ExpireNs = k.record.ExpiryNs() + linger
	// AtNs is half the slack after storeNs, and the swap may be half the slack off it: see the picture above.
	s.AtNs, s.SlackNs = storeNs+k.slackNs/2, k.slackNs/2
	return s
}

// decide carries out the operations on the last known value and reports whether
// that changed it.
func (k *key) decide(storeNs int64) (changed bool) {
	if k.record == nil {
		k.record = &record{generation: random(), State: quota.State{NowNs: storeNs}}
	}
	k.record.startingUntilNs = k.startingUntilNs
	k.slackNs, k.untilNs = math.MaxInt64, math.MaxInt64
	for _, o := range k.swap {
		changed = o.carryOut(k.record, storeNs) || changed
		k.slackNs = min(k.slackNs, quota.SlackNs(o.shifted))
		k.untilNs = min(k.untilNs, o.untilNs)
	}
	return changed
}

// learn takes over the value that is in the store.
func (k *key) learn(value []byte) (err error) {
	k.record, k.nonce = nil, nil
	if value == nil {
		return nil
	}
	k.record, err = parse(value)
	if err == nil {
		k.nonce = append(k.nonce, value[:NonceBytes]...)
	}
	return err
}

// learnResult takes the result of a key's swap, and reports whether its operations are done. If they
// are not, the key needs another swap.
func (k *key) learnResult(r Result) (done bool, err error) {
	if k.isSum {
		return true, k.learnSum(r)
	}
	switch r.Outcome {
	case Failed:
		k.record, k.nonce = nil, nil
		return true, r.Err
	case Swapped:
		k.nonce = append(k.nonce[:0], k.value[:NonceBytes]...)
		return true, nil
	case Young:
		k.startingUntilNs = r.NowNs - r.AgeNs + StartingNs
	case Differs, Late:
	}
	if err := k.learn(r.Value); err != nil {
		return true, err
	}
	if r.Outcome == Late {
		k.late++
	}
	if k.late > maxLate || k.sentNs-k.firstNs >= maxContendedNs {
		if r.Outcome == Late {
			return true, errLate
		}
		return true, errContended
	}
	if !k.decide(r.NowNs) {
		return true, nil
	}
	// decide has changed the record. prepare decides again, from what is in the store.
	return false, k.learn(r.Value)
}
