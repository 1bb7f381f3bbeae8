package quotaservice

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Most calls count in one aligned fixed window. Its units need no compare-and-swap: the store adds
// them up, under a key of its own for each window. So services that count under one key at the same
// time do not wait for each other, however far they are from the store.

// isSum reports whether the store adds up what calls count in the counter.
func (c *Counter) isSum() bool {
	w := &c.definition.Windows[0]
	return len(c.definition.Windows) == 1 && w.Algorithm == limit.FixedWindow && w.Jitter == 0 && !w.Unlimited
}

// span is the window that an operation counts in.
type span struct {
	key            [16]byte // of the client: that of the operation is of the window, too
	startNs, endNs int64
	restarts       int // because the window before it had ended
}

// errEnded is for an operation whose window has ended, or not begun, by the store's clock.
var errEnded = errors.New("the window has ended")

// setSpan makes the operation count in the window that holds storeNs. A key is as good as random, so
// those of two windows differ.
func (o *operation) setSpan(storeNs int64) {
	o.span.startNs, o.span.endNs = o.shifted[0].Span(storeNs)
	first, last := binary.LittleEndian.Uint64(o.span.key[:]), binary.LittleEndian.Uint64(o.span.key[8:])
	binary.LittleEndian.PutUint64(o.key[:], first^uint64(o.span.startNs))
	binary.LittleEndian.PutUint64(o.key[8:], last^uint64(o.span.endNs))
}

// prepareSum returns the swap that adds what waits, while the store's clock is in the window.
func (k *key) prepareSum() Swap {
	window := &k.swap[0].span
	half := (window.endNs - window.startNs) / 2
	s := Swap{
		Key: k.id, Domain: k.domain, Adds: true,
		AtNs: window.startNs + half, SlackNs: half, UntilNs: window.endNs, ExpireNs: window.endNs + linger,
	}
	for _, o := range k.swap {
		s.Units += uint64(o.n)
	}
	return s
}

// learnSum says to each operation what the sum was with its units and with those before it.
func (k *key) learnSum(r Result) error {
	switch r.Outcome {
	case Swapped:
	case Late:
		return errEnded
	case Failed:
		return r.Err
	case Differs, Young:
		return errDamage
	}
	sum := r.Sum
	for _, o := range k.swap {
		sum -= uint64(o.n)
	}
	for _, o := range k.swap {
		sum += uint64(o.n)
		left := o.span.endNs - r.NowNs
		o.outcome = outcome{
			nowNs: r.NowNs, denied: sum > uint64(o.shifted[0].Limit),
			standings: append(o.standings[:0], quota.Standing{Used: uint32(min(sum, math.MaxUint32)), ResetNs: left}),
		}
		if o.denied {
			o.waitNs = left
		}
	}
	return nil
}
