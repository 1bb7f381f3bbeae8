package quotaservice

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/recordbytes"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// value is what the service knows of a key's value in the store: a *recordValue, or a sumValue if the key's operations
// are additions.
type value interface {
	// nextSwap returns the swap that carries out operations, without its key. It will be at the store at storeNs.
	nextSwap(operations []operation, storeNs int64) swapstore.Swap
	// learn takes the result of that swap.
	learn(operations []operation, r swapstore.Result) learned
	// isWorthKeeping reports whether to remember the value once its operations are done, for the next ones.
	isWorthKeeping() bool
	// bytes is about how much memory the value takes here.
	bytes() int
}

// learned is what is known of a batch of operations once the result of its swap is there. It has one of these.
type learned struct {
	outcomes  []action.Outcome // what has come of each operation
	err       error            // why all have failed
	needsSwap bool             // nothing has come of them yet: they need another swap
}

const (
	second = 1_000_000_000
	// linger is how much longer a value lives than what it has counted.
	linger = 10 * second
)

// recordValue is a value that is a record: operations are decided on what is known of it, before it is swapped.
//
//	nextSwap   decides them on the record at storeNs: what the store's clock will say when the swap arrives, as far as
//	           the service knows that clock
//	the store  swaps if its clock is between storeNs and decision.untilNs. Before storeNs, units could be spent before
//	           the window begins that counts them. After untilNs, what was decided may not hold any more
//	learn      if Swapped, the decision holds. If Failed, the operations have failed. Else the result has the value that
//	           is there and the store's time, and the operations are decided by these: see decideAgain. If they need
//	           another swap, nextSwap decides them once more, at the instant when that swap will arrive
//
// A hold meets a store that is starting in these steps. The store has had its state for 1 s, and the key does not know:
//
//	nextSwap   View.OfferNow Passes, and NeedsAge: so the swap has an AgeNs, StartingNs
//	the store  is Young
//	learn      startingUntilNs is 3 s from now. By that View.OfferNow is Starting, so the hold has an ErrStarting,
//	           and NeedsAge no more. If it has a report to note, it needs another swap
//	nextSwap   decides the same, and the swap has no AgeNs
//	the store  has Swapped: the report is noted
type recordValue struct {
	known           knownRecord
	next            nextRecord // while a swap is under way
	startingUntilNs int64      // until when the store is starting, by its clock: the last Young swap has said so
}

// knownRecord is what the store has, as far as is known. Without a record, the store has nothing or nothing is known:
// then a swap expects nothing, and if there is something, the result has it.
type knownRecord struct {
	record *balance.Record
	nonce  [swapstore.NonceBytes]byte // of the record
}

// nextRecord is what operations have made of the knownRecord. It is known if it is Swapped. If not, learn drops it, so
// nothing counts twice if its operations are decided again.
type nextRecord struct {
	record   *balance.Record
	decision decision // of the operations on it
	bytes    []byte   // of the record, if the swap writes. Their memory is used again
}

// This compiles only if a nonce has one size in both packages.
var _ = [1]struct{}{}[recordbytes.NonceBytes-swapstore.NonceBytes]

// nextSwap implements value. A swap that only reads shows whether the decision not to change anything holds.
func (v *recordValue) nextSwap(operations []operation, storeNs int64) (s swapstore.Swap) {
	next := &v.next
	if v.known.record == nil {
		next.record = balance.NewRecord(storeNs)
	} else {
		next.record, v.known.record = v.known.record, nil // it is changed in place
		s.Old = v.known.nonce[:]
	}
	next.decision.decide(next.record, operations, storeNs, v.startingForNs(storeNs))
	if next.decision.needsAge {
		s.AgeNs = StartingNs
	}
	if !next.decision.changes {
		return s
	}
	nonce := rand.Uint64() //nolint:gosec // nobody gains by guessing it
	next.bytes = recordbytes.Append(next.bytes[:0], next.record, nonce)
	s.Kind, s.New = swapstore.Replacing, next.bytes
	s.FromNs, s.UntilNs = storeNs, next.decision.untilNs
	s.ExpireNs = next.record.ExpiryNs() + linger
	return s
}

// decision is what comes of operations, if the store has the record on which they are decided.
type decision struct {
	outcomes []action.Outcome // of each operation
	changes  bool             // the record counts something else, which must be swapped in
	needsAge bool             // one was decided by what is held, which a store that is starting does not know
	untilNs  int64            // until when the decision holds
}

// decide decides the operations on a record, one after the other, when the store is starting for startingForNs more. It
// puts what comes of that in place of what the decision was, in its memory. Nobody has outcomes in that memory: learn
// drops a decision that it delivers.
func (d *decision) decide(r *balance.Record, operations []operation, storeNs, startingForNs int64) {
	outcomes := slices.Grow(d.outcomes[:0], len(operations))[:len(operations)]
	*d = decision{outcomes: outcomes, untilNs: math.MaxInt64}
	for i := range operations {
		o, out := operations[i].(*recordOperation), &outcomes[i]
		d.changes = o.Decide(r, storeNs, startingForNs, out) || d.changes
		d.needsAge = out.NeedsAge || d.needsAge
		d.untilNs = min(d.untilNs, out.UntilNs, storeNs+balance.SlackNs(o.Windows.Shifted))
	}
}

// startingForNs is how much longer than storeNs the store is starting. By a clock that was set back it is not.
func (v *recordValue) startingForNs(storeNs int64) int64 {
	if left := v.startingUntilNs - storeNs; left <= StartingNs {
		return max(left, 0)
	}
	return 0
}

// learn implements value.
func (v *recordValue) learn(operations []operation, r swapstore.Result) learned {
	next := v.next
	v.next = nextRecord{bytes: next.bytes}
	switch r.Status {
	case swapstore.Swapped:
		v.known = knownRecord{next.record, [swapstore.NonceBytes]byte(next.bytes)}
		return learned{outcomes: next.decision.outcomes}
	case swapstore.Failed: // the store may have either record, or another one: nothing is known
		return learned{err: r.Err}
	case swapstore.Young:
		v.startingUntilNs = r.NowNs - r.AgeNs + StartingNs
	case swapstore.Late, swapstore.Read:
	}
	var err error
	v.known, err = read(r.Value)
	if err != nil {
		return learned{err: err}
	}
	return v.decideAgain(operations, next.decision, r.NowNs)
}

// read returns the record of a value that is in the store; none if there is no value.
func read(bytes []byte) (knownRecord, error) {
	if bytes == nil {
		return knownRecord{}, nil
	}
	record, err := recordbytes.Parse(bytes)
	if err != nil {
		return knownRecord{}, err
	}
	return knownRecord{record, [swapstore.NonceBytes]byte(bytes)}, nil
}

// decideAgain decides the operations by what the store had at storeNs. d is the decision of the last swap. They need
// another one in two cases:
//
//	they change the record   The change must be swapped in.
//	they need an age of the  Units that look free may be held by workers that have not reported yet. The last swap had
//	store, and the last      no AgeNs, because the record that it was decided on had no room for them.
//	swap did not ask for it
func (v *recordValue) decideAgain(operations []operation, d decision, storeNs int64) learned {
	var trial *balance.Record
	if v.known.record == nil {
		trial = balance.NewRecord(storeNs)
	} else {
		trial = v.known.record.Clone()
	}
	hadAge := d.needsAge
	d.decide(trial, operations, storeNs, v.startingForNs(storeNs))
	if d.changes || d.needsAge && !hadAge {
		return learned{needsSwap: true}
	}
	return learned{outcomes: d.outcomes}
}

// About what a window and a holder take.
const windowBytes, holderBytes = 64, 56

// isWorthKeeping implements value.
func (v *recordValue) isWorthKeeping() bool { return true }

// bytes implements value.
func (v *recordValue) bytes() int {
	n := 100 + cap(v.next.bytes)
	if record := v.known.record; record != nil {
		for i := range record.Windows {
			n += 2*windowBytes + 8*cap(record.Usages[i].Log)
		}
		n += holderBytes * cap(record.Holders)
	}
	return n
}
