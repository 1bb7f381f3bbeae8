package policy

import "github.com/sluice-ratelimit/sluice/shared/limit"

const (
	// MaxLease is the most units a lease may hold.
	MaxLease = 1_000_000
	// LeaseShare is the part of what a key has left that one lease takes at
	// most: a sixteenth.
	LeaseShare = 16
	// LeastLeased is the lowest limit with room for a lease of two requests of one
	// unit: what a key has left is what it has beside the first of its hits.
	LeastLeased = 2*LeaseShare + 1
	// LeaseKeys is how many keys of a counter a worker leases at a time.
	LeaseKeys = 256

	// A worker remembers this much of each of those keys, and of each window.
	leaseKeyBytes    = 64
	leaseWindowBytes = 8
)

// LeaseBytes is the memory that a counter's leases take in a worker, once there
// was one.
func LeaseBytes(windows int) uint64 {
	return LeaseKeys * (leaseKeyBytes + leaseWindowBytes*uint64(windows))
}

// leaseOff is the word for no leases.
const leaseOff = "off"

var leaseShape = choice("lease", `off or a whole number from 1 to 1000000 of units that a worker may take at once`)

func readLease(r *reader, v value, rule *Rule) {
	switch v.node.Kind {
	case Number:
		v.shape = integer(1, MaxLease)
		n := r.integer(v)
		rule.Lease = uint32(n)
	case Bool:
		r.fail(v, "must be "+leaseShape.String()+", not "+describe(v.node)+": write off, in quotes where YAML takes it for false")
	default:
		if v.node.Kind != String || v.node.Text != leaseOff {
			r.mismatch(v)
		}
	}
}

// fitsLease refuses leases where a hit that is served later than it was counted
// would be a hit too many, and warns where there will never be one.
func (r *reader) fitsLease(v value, rule *Rule) {
	if rule.Lease == 0 {
		return
	}
	at := fieldAt(v, "lease")
	if rule.CountDenied {
		r.fail(at, "does not go with count_denied, which must see every request: remove one of the two")
	}
	least := uint32(0)
	for i := range rule.Limits {
		l := &rule.Limits[i]
		switch l.Algorithm {
		case limit.FixedWindow, limit.SlidingWindowCounter, 0: // 0 is refused already
		default:
			r.fail(at, "goes with fixed_window and sliding_window_counter alone, and limits["+itoa(int64(i))+"] is a "+algorithmName(l.Algorithm)+
				", which counts each request at its own time: remove lease, or use sliding_window_counter")
			return
		}
		if i == 0 || l.Limit < least {
			least = l.Limit
		}
	}
	if has(v, "counter") { // another rule of the counter may have cheaper requests
		return
	}
	cost := uint64(max(rule.Cost.Least(), 1))
	switch lowest := LeastLeased * cost; {
	case uint64(rule.Lease) < 2*cost:
		r.warn(at, "does nothing: a lease is for two requests at least, and one takes "+inUnits(cost)+" or more: write "+itoa(int64(2*cost))+" or more, or remove it")
	case len(rule.Limits) > 0 && uint64(least) < lowest && len(rule.Overrides) == 0:
		r.warn(at, "does nothing: a lease is at most a sixteenth of what a key has left beside its first request, so with a limit below "+
			itoa(int64(lowest))+" there is none of "+itoa(int64(2*cost))+", for two requests; remove it")
	}
}

// Least is the lowest cost of a request.
func (c *Cost) Least() uint32 {
	if c.Header == "" && c.Query == "" {
		return c.Fixed
	}
	return c.Min
}

func inUnits(n uint64) string {
	if n == 1 {
		return "1 unit"
	}
	return itoa(int64(n)) + " units"
}

// sameLease refuses rules of one counter that lease differently: a worker has
// one lease for a key, whichever of the rules is served from it.
func (r *reader) sameLease(v value, shares string, rule, first *Rule) {
	if rule.Lease != first.Lease {
		r.fail(fieldAt(v, "lease"), shares+"their leases must be the same, not "+leaseText(rule.Lease)+" and "+leaseText(first.Lease))
	}
}

func leaseText(n uint32) string {
	if n == 0 {
		return leaseOff
	}
	return itoa(int64(n))
}
