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
	w := &c.definition.Windows[0]
	return len(c.definition.Windows) == 1 && w.Algorithm == limit.FixedWindow && !w.Unlimited
}

// addUp has the store add units to the sum of one window.
type addUp struct {
	units          uint32
	clientKey      [16]byte // the storeKey without the window
	startNs, endNs int64    // of the window
	restarts       int      // because the window before it had ended
}

// errEnded is for an operation whose window has ended, or not begun, by the store's clock.
var errEnded = errors.New("the window has ended")

// addUpAt makes the operation count in the window that holds storeNs. A key is as good as random, so
// those of two windows differ.
func (o *operation) addUpAt(storeNs int64) {
	a := o.adds
	a.startNs, a.endNs = o.Shifted[0].Span(storeNs)
	first, last := binary.LittleEndian.Uint64(a.clientKey[:]), binary.LittleEndian.Uint64(a.clientKey[8:])
	binary.LittleEndian.PutUint64(o.storeKey[:], first^uint64(a.startNs))
	binary.LittleEndian.PutUint64(o.storeKey[8:], last^uint64(a.endNs))
}

// sumValue is a value that is a sum: the store adds to it, so the service need not know it. A key that adds up is
// retried by its call, under the key of another window: see call.operationDone.
type sumValue struct{}

// prepare implements value: the swap adds what waits, while the store's clock is in the window.
func (sumValue) prepare(operations []*operation, _ int64) swapstore.Swap {
	window := operations[0].adds // the same for all
	s := swapstore.Swap{
		Adds: true, FromNs: window.startNs, UntilNs: window.endNs, ExpireNs: window.endNs + linger,
	}
	for _, o := range operations {
		s.Units += uint64(o.adds.units)
	}
	return s
}

// learn implements value: it says to each operation what the sum was with its units and with those before it.
func (sumValue) learn(operations []*operation, r swapstore.Result) (e swapEnding, err error) {
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
		sum -= uint64(o.adds.units)
	}
	for _, o := range operations {
		sum += uint64(o.adds.units)
		left := o.adds.endNs - r.NowNs
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
