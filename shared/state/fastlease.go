package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// FastLease is the fast path through a lease table: a hit that units of one grant
// suffice for, in straight code over the bytes of a page.
//
// Its law: it leaves shared data as Leases.Read, Lease.Take and Leases.Write would, or
// it declines and has changed nothing.
type FastLease struct {
	fastPages
	leases *Leases
	refill Refill
}

// NewFast returns the fast path through the table.
func (l *Leases) NewFast(refill Refill) *FastLease {
	return &FastLease{fastPages{table: l.table}, l, refill}
}

// Take takes cost units of the key, and stores the record. taken is false where it
// declines. due says that the next units are to be asked for by this hit: nobody else
// does until askNs; none is where askNs is 0. Of e.Lease nothing is known but after
// Unpack.
func (f *FastLease) Take(e *LeaseEntry, key []byte, nowNs int64, cost uint32, askNs int64) (s Status, due, taken bool) {
	t := f.table
	if f.adopted != t.adopted {
		f.prepare()
		// A configuration with fewer windows may have made the table.
		f.usable = f.usable && t.layout.Windows[0].Units >= t.def.Windows[0].Units
	}
	if !t.open || !f.usable || cost == 0 {
		return OK, false, false
	}
	e.place = f.leases.placeOf(key)
	e.entry.hash = e.place.hash
	if !f.get(&e.entry) {
		return OK, false, false
	}
	slot, record := f.find(e.entry.page, uint32(e.place.hash))
	if slot < 0 || int64(le.Uint64(record)-1) > nowNs+MaxLeaseNs || le.Uint64(record[recordHeadBytes:]) != e.place.of {
		f.decline(&e.entry)
		return OK, false, false
	}
	b := record[recordHeadBytes:]
	var first []byte
	left, firstNs := uint32(0), int64(math.MaxInt64)
	for i := offGrants; i < offDenied; i += grantBytes {
		g := b[i : i+grantBytes]
		units, endNs := le.Uint32(g[offUnits:]), int64(le.Uint64(g[offEnd:]))
		if units == 0 || endNs <= nowNs {
			continue
		}
		if left = limit.AddSaturating(left, units); endNs < firstNs {
			first, firstNs = g, endNs
		}
	}
	if first == nil || le.Uint32(first[offUnits:]) < cost {
		f.decline(&e.entry)
		return OK, false, false
	}
	le.PutUint32(first[offUnits:], le.Uint32(first[offUnits:])-cost)
	le.PutUint64(record, uint64(nowNs)+1)
	var rate Rate
	rate.read(b[offRate:])
	rate.Spent(nowNs, f.refill.RateNs, cost)
	rate.put(b[offRate:])
	asked := b[offAsked:]
	if askNs > 0 && int64(le.Uint64(asked)) <= nowNs && f.refill.IsDue(left-cost, rate.Over(nowNs, f.refill.RateNs)) {
		due = true
		le.PutUint64(asked, uint64(askNs))
	}
	e.packed = b
	s = t.tables.store.Set(e.entry.key[:], e.entry.page, e.entry.cas)
	return s, due && s == OK, true
}

// Unpack reads the lease that FastLease.Take has left.
func (e *LeaseEntry) Unpack() { e.read(e.packed) }
