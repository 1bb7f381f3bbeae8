package quotaservice

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// A key's operations reach the store by swaps, one at a time:
//
//	prepare     decides what waits on the value known last, at storeNs: what the store's clock will
//	            say when the swap arrives, as far as the service knows that clock
//	the store   swaps from storeNs until storeNs + slackNs by its own clock. Earlier, units could be spent
//	            before the window begins that counts them. Later, what was decided may not hold any more.
//	learnResult Swapped: the operations are done. Failed: they end with the error. Else the
//	            store has said which value is there and what its clock says. The operations are
//	            decided on that: see wouldChange. If they change nothing, they are done.
//
// So a retry is decided twice: by wouldChange at r.NowNs, to see whether it is needed, and by prepare at storeNs, to
// send it.

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

// prepare decides what waits, as of storeNs, and returns the swap, which leaves at localNs. A swap that only
// reads shows whether the decision not to change anything holds.
func (k *key) prepare(localNs, storeNs int64) swapstore.Swap {
	if !k.isRetry() {
		k.swap, k.waiting = k.waiting, k.swap
		k.firstNs, k.late = localNs, 0
	}
	k.sentNs = localNs
	if k.isSum {
		return k.prepareSum()
	}
	s := swapstore.Swap{Key: k.storeKey, Domain: k.domain, Old: k.nonce}
	k.reads = !k.decide(storeNs)
	if slices.ContainsFunc(k.swap, func(o *operation) bool { return o.NeedsAge }) {
		s.AgeNs = StartingNs
	}
	if k.reads {
		return s
	}
	k.value = k.record.Append(k.value[:0], rand.Uint64()) //nolint:gosec // nobody gains by guessing a nonce
	s.New = k.value
	s.FromNs, s.UntilNs = storeNs, min(storeNs+k.slackNs, k.untilNs)
	s.ExpireNs = k.record.ExpiryNs() + linger
	return s
}

// isRetry reports whether operations are under way that an earlier swap has not done.
func (k *key) isRetry() bool { return len(k.swap) > 0 }

// decide decides the operations on the record, and reports whether that changed it.
func (k *key) decide(storeNs int64) (changed bool) {
	if k.record == nil {
		k.record = record.New(storeNs)
	}
	startingForNs := k.startingForNs(storeNs)
	k.slackNs, k.untilNs = math.MaxInt64, math.MaxInt64
	for _, o := range k.swap {
		changed = o.Decide(k.record, storeNs, startingForNs) || changed
		k.slackNs = min(k.slackNs, balance.SlackNs(o.Shifted))
		k.untilNs = min(k.untilNs, o.UntilNs)
	}
	return changed
}

// startingForNs is how much longer than storeNs the store is starting. By a clock that was set back it is not.
func (k *key) startingForNs(storeNs int64) int64 {
	if left := k.startingUntilNs - storeNs; left <= StartingNs {
		return max(left, 0)
	}
	return 0
}

// learn takes over the value that is in the store.
func (k *key) learn(value []byte) (err error) {
	k.record, k.nonce = nil, nil
	if value == nil {
		return nil
	}
	k.record, err = record.Parse(value)
	if err == nil {
		k.nonce = append(k.nonce, value[:swapstore.NonceBytes]...)
	}
	return err
}

// learnResult takes the result of a key's swap, and reports whether its operations are done. If they
// are not, the key needs another swap.
func (k *key) learnResult(r swapstore.Result) (done bool, err error) {
	if k.isSum {
		return true, k.learnSum(r)
	}
	switch r.Outcome {
	case swapstore.Failed:
		k.record, k.nonce = nil, nil
		return true, r.Err
	case swapstore.Swapped:
		k.nonce = append(k.nonce[:0], k.value[:swapstore.NonceBytes]...)
		return true, nil
	case swapstore.Young:
		k.startingUntilNs = r.NowNs - r.AgeNs + StartingNs
	case swapstore.Late:
		k.late++
	case swapstore.Read:
	}
	if err := k.learn(r.Value); err != nil {
		return true, err
	}
	if err := k.mayRetry(r.Outcome); err != nil {
		return true, err
	}
	changes, err := k.wouldChange(r)
	return !changes, err
}

// mayRetry says why the operations are not decided anew; nil = they are.
func (k *key) mayRetry(outcome swapstore.Outcome) error {
	switch {
	case k.late <= maxLate && k.sentNs-k.firstNs < maxContendedNs:
		return nil
	case outcome == swapstore.Late:
		return errLate
	}
	return errContended
}

// wouldChange decides the operations on the value that is in the store, at the time of its clock. If they would change
// it, the next swap has to carry that: so it leaves the record as the store has it, and prepare decides once more.
func (k *key) wouldChange(r swapstore.Result) (changes bool, err error) {
	if !k.decide(r.NowNs) {
		return false, nil
	}
	return true, k.learn(r.Value)
}

// isMisled reports whether the storeNs by which prepare decided was wrong. A swap that writes is Late then. The store
// checks no times of a swap that only reads: if its operations change something by the store's clock, although they
// changed nothing at storeNs, that was wrong.
func (k *key) isMisled(r swapstore.Result, done bool) bool {
	return r.Outcome == swapstore.Late || k.reads && !done
}
