package limit

// The time at which a TokenBucket is full does not tell what is in it to who
// knows other limits: four tokens that are back in two seconds are two that are
// back in two seconds at half the rate. A key's record has its tokens beside
// that time, but a floor, being of many keys, has not, and who evicts a record
// does not know whose it is. So where keys have limits of their own the low bits
// of that time say which set of such limits it was made under, and under
// another set it counts as the time at which the slowest key would be full had
// it been empty.
//
// A time with a stamp is odd, one without is even; it is up to 4095 ns late.
const stampMask = 1<<12 - 1

// foreignStamp is of no set: the time is that of limits which the rule no longer
// has, so how far off it is says nothing about debt.
const foreignStamp = 1

// NewStamp returns the stamp of a set of limits with that hash: one of 2,047.
func NewStamp(hash uint64) uint16 { return 3 + 2*uint16(hash%(stampMask/2)) }

// Fill is how long an empty TokenBucket takes to be full; 0 for one that never
// lets a hit pass, or every one.
func (w *Window) Fill() int64 {
	if w.Algorithm != TokenBucket || w.Limit == 0 || w.Unlimited {
		return 0
	}
	return w.full().ceilDiv(uint64(w.Limit))
}

// stamped returns the first instant from ns on with w's stamp.
func (w *Window) stamped(ns int64) int64 { return withStamp(ns, int64(w.Stamp)) }

func withStamp(ns, stamp int64) int64 {
	if stamp == 0 {
		return ns + ns&1
	}
	return ns + (stamp-ns)&stampMask
}

// stampOf returns the stamp of such an instant, 0 for none.
func stampOf(ns int64) int64 {
	if ns&1 == 0 {
		return 0
	}
	return ns & stampMask
}

// stale reports whether the instant says nothing about the keys of w that have
// limits of their own.
func (w *Window) stale(ns int64) bool { return w.Stamp != 0 && stampOf(ns) != int64(w.Stamp) }
