package limit

// The time at which a TokenBucket is full implies its tokens only for the limits
// it was computed with: if the bucket is full in two seconds, it lacks four tokens
// at two a second, but two at one a second. A record holds its tokens beside that
// time. A floor cannot, because it covers many keys, and an eviction does not know
// which key a record belongs to. So if overrides give some keys limits of their
// own, the low bits of the time are a stamp: the hash of the overrides it was
// computed under. Under other overrides the slowest bucket counts as empty at the
// time of writing.
//
// A time with a stamp is odd, one without is even. The stamp makes it up to
// 4095 ns late.
const stampMask = 1<<12 - 1

// foreignStamp belongs to no set of overrides. The time comes from limits that the
// rule no longer has, so it says nothing about debt.
const foreignStamp = 1

// NewStamp returns the stamp for the hash of a set of overrides: an odd number
// from 3 to 4095.
func NewStamp(hash uint64) uint16 { return 3 + 2*uint16(hash%(stampMask/2)) }

// Fill is how many nanoseconds an empty TokenBucket takes to be full. It is 0 for
// a bucket that passes no hit and for one that passes every hit.
func (w *Window) Fill() int64 {
	if w.Algorithm != TokenBucket || w.Limit == 0 || w.Unlimited {
		return 0
	}
	return w.full().ceilDiv(uint64(w.Limit))
}

// stamped returns the first instant at or after ns that has w's stamp.
func (w *Window) stamped(ns int64) int64 { return withStamp(ns, int64(w.Stamp)) }

// withStamp leaves the latest instants room for further stamps.
func withStamp(ns, stamp int64) int64 {
	ns = min(ns, maxInstant)
	if stamp == 0 {
		return ns + ns&1
	}
	return ns + (stamp-ns)&stampMask
}

// stampOf returns the stamp of an instant, 0 for none.
func stampOf(ns int64) int64 {
	if ns&1 == 0 {
		return 0
	}
	return ns & stampMask
}

// stale reports whether the instant was computed under other overrides than w's.
func (w *Window) stale(ns int64) bool { return w.Stamp != 0 && stampOf(ns) != int64(w.Stamp) }
