package quotaservice

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
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

// addUp is a Charge that the store carries out: it adds the units to the sum of one window.
type addUp struct {
	action.Charge
	clientKey      [16]byte // the storeKey without the window
	startNs, endNs int64    // of the window
	restarts       int      // because the window before it had ended
}

// beginIn makes the addUp, which is the operation's Action, count in the window that holds storeNs. A key is as good as
// random, so those of two windows differ.
func (a *addUp) beginIn(o *keyOperation, storeNs int64) {
	a.startNs, a.endNs = o.Shifted[0].Span(storeNs)
	first, last := binary.LittleEndian.Uint64(a.clientKey[:]), binary.LittleEndian.Uint64(a.clientKey[8:])
	binary.LittleEndian.PutUint64(o.storeKey[:], first^uint64(a.startNs))
	binary.LittleEndian.PutUint64(o.storeKey[8:], last^uint64(a.endNs))
}

// errEnded is for an addUp whose window has ended, or not begun, by the store's clock.
var errEnded = errors.New("the window has ended")

// restart has an addUp that came too late count in the window that holds storeNs, and reports whether it does. It does
// not if it came too late too often, or has failed otherwise, or if the operation is no addUp.
func (o *keyOperation) restart(storeNs int64) bool {
	a, isSum := o.Action.(*addUp)
	if !isSum || !errors.Is(o.Outcome.Err, errEnded) || a.restarts >= maxLate {
		return false
	}
	a.restarts++
	o.Outcome.Err = nil
	a.beginIn(o, storeNs)
	return true
}

// sumValue is a value that is a sum: the store adds to it, so the service need not know it. All its operations are
// addUps. Their call restarts those that come too late, under the key of another window.
type sumValue struct{}

// prepare implements value: the swap adds what waits, while the store's clock is in the window.
func (sumValue) prepare(operations []*keyOperation, _ int64) swapstore.Swap {
	window := operations[0].Action.(*addUp) // the same for all
	s := swapstore.Swap{
		Adds: true, FromNs: window.startNs, UntilNs: window.endNs, ExpireNs: window.endNs + linger,
	}
	for _, o := range operations {
		s.Units += uint64(o.Action.(*addUp).Units)
	}
	return s
}

// learn implements value: it says to each operation what the sum was with its units and with those before it.
func (sumValue) learn(operations []*keyOperation, r swapstore.Result) (e swapEnding, err error) {
	switch r.Status {
	case swapstore.Swapped:
	case swapstore.Late:
		return swapFailed, errEnded
	case swapstore.Failed:
		return swapFailed, r.Err
	case swapstore.Read, swapstore.Young:
		return swapFailed, record.ErrDamage
	}
	sum := r.Sum
	for _, o := range operations {
		sum -= uint64(o.Action.(*addUp).Units)
	}
	for _, o := range operations {
		sum += uint64(o.Action.(*addUp).Units)
		left := o.Action.(*addUp).endNs - r.NowNs
		o.Outcome = action.Outcome{
			NowNs: r.NowNs, Denied: sum > uint64(o.Shifted[0].Limit),
			Standings: append(o.Outcome.Standings[:0], quota.Standing{Used: uint32(min(sum, math.MaxUint32)), ResetNs: left}),
		}
		if o.Outcome.Denied {
			o.Outcome.WaitNs = left
		}
	}
	return swapDecided, nil
}

// size implements value.
func (sumValue) size() int { return 0 }
