package state

import "math"

// Stats is Table.Stats of leases: it counts the keys of which the table holds something.
func (l *Leases) Stats(e *LeaseEntry, wallNs, nowNs int64) (s Stats, status Status) {
	e.entry.HeldNs = nowNs
	return l.table.Stats(&e.entry, l.table.def.Windows, wallNs)
}

// Live is Table.Live of leases.
func (l *Leases) Live(e *LeaseEntry, wallNs, nowNs int64, value []byte) uint64 {
	e.entry.HeldNs = nowNs
	return l.table.Live(&e.entry, l.table.def.Windows, wallNs, value)
}

// Clean is Table.Clean of leases: it frees the slots of records that hold nothing.
func (l *Leases) Clean(e *LeaseEntry, wallNs, nowNs int64) (freed uint64, status Status) {
	e.entry.HeldNs = nowNs
	return l.table.Clean(&e.entry, l.table.def.Windows, wallNs)
}

// leaseExpiry is expiry of a lease: its record says something that would be missed, or not.
// That are units that may be spent or returned, units that the service has not counted yet, or
// how long not to ask it.
func (t *Table) leaseExpiry(e *Entry, slot int) int64 {
	var l Lease
	l.read(e.page.lease(&t.layout, slot)[:leaseBytes])
	missed := l.Uncharged > 0 || max(l.DeniedNs, l.AskedNs, l.SilentNs) > e.HeldNs
	for i := range l.Grants {
		missed = missed || l.Grants[i].Units > 0 && l.Grants[i].EndNs+strandedNs >= e.HeldNs
	}
	if missed && e.page.time(&t.layout, slot) <= e.HeldNs+MaxLeaseNs {
		return math.MaxInt64
	}
	return 0
}
