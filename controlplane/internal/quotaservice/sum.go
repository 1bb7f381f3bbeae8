package quotaservice

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/recordbytes"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Most calls count in one aligned fixed window. Its units need no compare-and-swap: the store adds
// them up, under a key of its own for each window. So services that count under one key at the same
// time do not wait for each other, however far they are from the store.

// isSum reports whether the store adds up what calls count in the counter.
func (c *Counter) isSum() bool {
	w := &c.terms.Windows[0]
	return len(c.terms.Windows) == 1 && w.Algorithm == limit.FixedWindow && !w.Unlimited
}

// addition is an operation on the sum of one window: units of a use that the store adds.
type addition struct {
	onKey
	charge         *charge // learns what came of it
	startNs, endNs int64   // of the window
}

// newAddition returns an addition in the window that holds storeNs, under a storeKey of that window. The hashes of
// charges are as good as random, so no two windows have the same storeKey, and no record has it.
func newAddition(u *charge, storeNs int64) *addition {
	a := &addition{onKey: onKey{domain: u.Counter.domain}, charge: u}
	a.startNs, a.endNs = u.Counter.terms.Windows[0].Span(storeNs)
	first, last := binary.LittleEndian.Uint64(u.hash[:]), binary.LittleEndian.Uint64(u.hash[8:])
	binary.LittleEndian.PutUint64(a.storeKey[:], first^uint64(a.startNs))
	binary.LittleEndian.PutUint64(a.storeKey[8:], last^uint64(a.endNs))
	return a
}

func (a *addition) newValue() value { return sumValue{} }

func (a *addition) done(outcome *action.Outcome) { a.charge.additionDone(a, outcome) }

// errEnded is for an addition whose window has ended, or not begun, by the store's clock.
var errEnded = errors.New("the window has ended")

// sumValue is a value that is a sum: the store adds to it, so the service need not know it. All its operations are
// additions. If one comes too late, its charge starts another, under the key of another window.
type sumValue struct{}

// nextSwap implements value: the swap adds what waits, while the store's clock is in the window.
func (sumValue) nextSwap(operations []operation, _ int64) swapstore.Swap {
	window := operations[0].(*addition) // the same for all: the storeKey is made of it
	s := swapstore.Swap{
		Kind: swapstore.Adding, FromNs: window.startNs, UntilNs: window.endNs, ExpireNs: window.endNs + linger,
	}
	for _, o := range operations {
		s.Units += uint64(o.(*addition).charge.Units)
	}
	return s
}

// learn implements value: it says to each operation what the sum was with its units and with those before it.
func (sumValue) learn(operations []operation, r swapstore.Result) learned {
	switch r.Status {
	case swapstore.Swapped:
	case swapstore.Late:
		return learned{err: errEnded}
	case swapstore.Failed:
		return learned{err: r.Err}
	case swapstore.Read, swapstore.Young:
		return learned{err: recordbytes.ErrDamage}
	}
	outcomes := make([]action.Outcome, len(operations))
	sum := r.Sum
	for i, o := range slices.Backward(operations) {
		a := o.(*addition)
		outcomes[i] = action.Outcome{
			NowNs:     r.NowNs,
			Standings: []quota.Standing{{Used: uint32(min(sum, math.MaxUint32)), ResetNs: a.endNs - r.NowNs}},
		}
		outcomes[i].Denied = sum > uint64(a.charge.Counter.terms.Windows[0].Limit)
		sum -= uint64(a.charge.Units)
	}
	return learned{outcomes: outcomes}
}

// isWorthKeeping implements value.
func (sumValue) isWorthKeeping() bool { return false }

// bytes implements value.
func (sumValue) bytes() int { return 0 }
