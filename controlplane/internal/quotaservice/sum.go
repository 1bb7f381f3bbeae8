package quotaservice

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
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

// addition is units that the store adds to the sum of one window.
type addition struct {
	units          uint32
	clientKey      [16]byte // the storeKey without the window
	startNs, endNs int64    // of the window: see addIn
	restarts       int      // because the window before it had ended
}

// newAddition returns an operation with an addition, which has no window and no storeKey before addIn.
func newAddition(c *Counter, clientKey [16]byte, units uint32, owner owner) keyOperation {
	all := c.terms.Windows
	return keyOperation{
		Operation: action.Operation{Terms: c.terms, Windows: balance.KeyWindows{Defined: all, Shifted: all}},
		addition:  &addition{units: units, clientKey: clientKey}, domain: c.domain, owner: owner,
	}
}

func (o *keyOperation) isAddition() bool { return o.addition != nil }

// addIn makes an operation with an addition count in the window that holds storeNs, under a storeKey of that window.
// clientKeys are as good as random, so no two windows have the same one, and no record has it. keys have an operation
// by its storeKey, so addIn is for one that has not started, or is done with its last key.
func (o *keyOperation) addIn(storeNs int64) {
	a := o.addition
	a.startNs, a.endNs = o.Windows.Defined[0].Span(storeNs)
	first, last := binary.LittleEndian.Uint64(a.clientKey[:]), binary.LittleEndian.Uint64(a.clientKey[8:])
	binary.LittleEndian.PutUint64(o.storeKey[:], first^uint64(a.startNs))
	binary.LittleEndian.PutUint64(o.storeKey[8:], last^uint64(a.endNs))
}

// errEnded is for an addition whose window has ended, or not begun, by the store's clock.
var errEnded = errors.New("the window has ended")

// restart has an addition that came too late count in the window that holds storeNs, and reports whether the operation
// goes on so. It does not if its addition came too late too often or has failed otherwise, or if it has none.
func (o *keyOperation) restart(storeNs int64) bool {
	a := o.addition
	if !o.isAddition() || !errors.Is(o.outcome.Err, errEnded) || a.restarts >= maxLate {
		return false
	}
	a.restarts++
	o.addIn(storeNs)
	return true
}

// sumValue is a value that is a sum: the store adds to it, so the service need not know it. All its operations are
// additions. Their call restarts those that come too late, under the key of another window.
type sumValue struct{}

// decide implements value: the swap adds what waits, while the store's clock is in the window.
func (sumValue) decide(operations []*keyOperation, _ int64) swapstore.Swap {
	window := operations[0].addition // the same for all: the storeKey is made of it
	s := swapstore.Swap{
		Kind: swapstore.Adding, FromNs: window.startNs, UntilNs: window.endNs, ExpireNs: window.endNs + linger,
	}
	for _, o := range operations {
		s.Units += uint64(o.addition.units)
	}
	return s
}

// learn implements value: it says to each operation what the sum was with its units and with those before it.
func (sumValue) learn(operations []*keyOperation, r swapstore.Result) (end swapEnd, err error) {
	switch r.Status {
	case swapstore.Swapped:
	case swapstore.Late:
		return failed, errEnded
	case swapstore.Failed:
		return failed, r.Err
	case swapstore.Read, swapstore.Young:
		return failed, recordbytes.ErrDamage
	}
	sum := r.Sum
	for _, o := range operations {
		sum -= uint64(o.addition.units)
	}
	for _, o := range operations {
		sum += uint64(o.addition.units)
		left := o.addition.endNs - r.NowNs
		o.outcome = action.Outcome{
			NowNs: r.NowNs, Denied: sum > uint64(o.Windows.Defined[0].Limit),
			Standings: append(o.outcome.Standings[:0], quota.Standing{Used: uint32(min(sum, math.MaxUint32)), ResetNs: left}),
		}
	}
	return decided, nil
}

// isWorthKeeping implements value.
func (sumValue) isWorthKeeping() bool { return false }

// bytes implements value.
func (sumValue) bytes() int { return 0 }
