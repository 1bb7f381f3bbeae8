package quotaservice

import (
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A client that is over its limit often goes on to call. Its calls are answered from memory, without the
// store:
//
//	note    a call was over the limit of a fixed window: remember that window until it ends
//	recall  a later call of the same key: the total is known, and the units count nowhere
//
// Other services and the store know nothing of it: each service finds out for itself.

// maxOver bounds the keys that are remembered as over their limits.
const maxOver = 1 << 16

// overKeys are keys of calls that are over the limit of a fixed window. The window counts no less
// until it ends: nobody sets or resets the keys of calls.
type overKeys map[[16]byte]fullWindow

// fullWindow is the window of a key that is over its limit, of several the one that ends last, and when it
// ends by the store's clock.
type fullWindow struct {
	limit.Window
	endNs int64
}

// recall makes the total of an operation whose key is over the limit of one of its windows.
func (k overKeys) recall(o *keyOperation, storeNs int64, total *Total) bool {
	over, ok := k[o.storeKey]
	i := slices.Index(o.Shifted, over.Window)
	if !ok || i < 0 || over.endNs <= storeNs { // or the limit is another one now
		return false
	}
	left := over.endNs - storeNs
	if left > over.LengthNs(storeNs) { // the store's clock was set back
		return false
	}
	*total = Total{Over: true, WaitNs: left, Remembered: true, Windows: make([]quota.Standing, len(o.Shifted))}
	total.Windows[i] = quota.Standing{Used: over.Limit, ResetNs: left}
	return true
}

// note remembers the key of an operation that found a fixed window over its limit.
func (k overKeys) note(o *keyOperation) {
	if o.Outcome.Err != nil {
		return
	}
	var last fullWindow
	for i, standing := range o.Outcome.Standings {
		w, endNs := o.Shifted[i], o.Outcome.NowNs+standing.ResetNs
		if w.IsFixed() && !w.Elastic && !w.Unlimited && standing.Used > w.Limit && endNs > last.endNs {
			last = fullWindow{w, endNs}
		}
	}
	if last.endNs == 0 {
		return
	}
	isFull := len(k) >= maxOver
	if isFull {
		maps.DeleteFunc(k, func(_ [16]byte, over fullWindow) bool { return over.endNs <= o.Outcome.NowNs })
	}
	if isFull && len(k) > maxOver/2 { // the next look for what has ended would come too soon
		clear(k)
	}
	k[o.storeKey] = last
}
