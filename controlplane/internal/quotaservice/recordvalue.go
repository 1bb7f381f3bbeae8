package quotaservice

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// recordValue is a value that is a record: operations are decided on what is known of it, before it is swapped.
//
//	prepare    decides at storeNs: what the store's clock will say when the swap arrives, as far as the service
//	           knows that clock
//	the store  swaps from storeNs on, for as long as lastNs says. Earlier, units could be spent before the window
//	           begins that counts them. Later, what was decided may not hold any more
//	learn      Swapped: the operations are swapDecided. Failed: they are swapFailed. Else the store has said which
//	           value is there and what its clock says. The operations are tried on a copy of that: swapAgain if they
//	           change something, because that must be swapped in
//
// So a retry is decided twice: by learn at the store's time, to see whether it is needed, and by prepare, to send it.
type recordValue struct {
	// record is what the store has, as far as is known. While a swap that writes is under way, it is what this swap
	// writes: prepare decides in place. nil = none.
	record          *record.Record
	nonce           []byte // of the store's value, so of the one that a swap under way replaces; nil = none
	startingUntilNs int64  // until when the store is starting, by its clock: the last Young swap has said so
	newValue        []byte // the record that the swap under way writes
}

// This compiles only if a nonce has one size in both packages.
var _ = [1]struct{}{}[record.NonceBytes-swapstore.NonceBytes]

// prepare implements value. A swap that only reads shows whether the decision not to change anything holds.
func (v *recordValue) prepare(operations []*keyOperation, storeNs int64) swapstore.Swap {
	s := swapstore.Swap{Old: v.nonce}
	if v.record == nil {
		v.record = record.New(storeNs)
	}
	changed := v.decideAll(operations, v.record, storeNs)
	if slices.ContainsFunc(operations, func(o *keyOperation) bool { return o.Outcome.NeedsAge }) {
		s.AgeNs = StartingNs
	}
	if !changed {
		return s
	}
	v.newValue = v.record.Append(v.newValue[:0], rand.Uint64()) //nolint:gosec // nobody gains by guessing a nonce
	s.New = v.newValue
	s.FromNs, s.UntilNs = storeNs, lastNs(operations, storeNs)
	s.ExpireNs = v.record.ExpiryNs() + linger
	return s
}

// lastNs is until when what was decided at storeNs holds.
func lastNs(operations []*keyOperation, storeNs int64) int64 {
	last := int64(math.MaxInt64)
	for _, o := range operations {
		last = min(last, o.Outcome.UntilNs, storeNs+balance.SlackNs(o.Shifted))
	}
	return last
}

// decideAll decides the operations on a record, one after the other, and reports whether that changed it.
func (v *recordValue) decideAll(operations []*keyOperation, on *record.Record, storeNs int64) (changed bool) {
	startingForNs := v.startingForNs(storeNs)
	for _, o := range operations {
		changed = o.Decide(on, storeNs, startingForNs) || changed
	}
	return changed
}

// startingForNs is how much longer than storeNs the store is starting. By a clock that was set back it is not.
func (v *recordValue) startingForNs(storeNs int64) int64 {
	if left := v.startingUntilNs - storeNs; left <= StartingNs {
		return max(left, 0)
	}
	return 0
}

// learn implements value.
func (v *recordValue) learn(operations []*keyOperation, r swapstore.Result) (e swapEnding, err error) {
	switch r.Status {
	case swapstore.Failed:
		v.record, v.nonce = nil, nil
		return swapFailed, r.Err
	case swapstore.Swapped:
		v.nonce = append(v.nonce[:0], v.newValue[:swapstore.NonceBytes]...)
		return swapDecided, nil
	case swapstore.Young:
		v.startingUntilNs = r.NowNs - r.AgeNs + StartingNs
	case swapstore.Late, swapstore.Read:
	}
	err = v.read(r.Value)
	if err != nil {
		return swapFailed, err
	}
	var trial *record.Record
	if v.record == nil {
		trial = record.New(r.NowNs)
	} else {
		trial = v.record.Clone()
	}
	if mustChange := v.decideAll(operations, trial, r.NowNs); mustChange {
		return swapAgain, nil
	}
	return swapDecided, nil
}

// read takes over the value that is in the store.
func (v *recordValue) read(bytes []byte) (err error) {
	v.record, v.nonce = nil, nil
	if bytes == nil {
		return nil
	}
	v.record, err = record.Parse(bytes)
	if err == nil {
		v.nonce = append(v.nonce, bytes[:swapstore.NonceBytes]...)
	}
	return err
}

// About what a window and a holder take.
const windowBytes, holderBytes = 64, 56

// size implements value.
func (v *recordValue) size() int {
	n := 100 + cap(v.newValue)
	if v.record != nil {
		for i := range v.record.Windows {
			n += 2*windowBytes + 8*cap(v.record.Usages[i].Log)
		}
		n += holderBytes * cap(v.record.Holders)
	}
	return n
}
