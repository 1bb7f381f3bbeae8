package state

// Stats counts the keys of which the table holds something, and its pages. It reads
// every page.
func (l *Leases) Stats(e *LeaseEntry, wallNs, nowNs int64) (s Stats, status Status) {
	_, status = l.each(e, wallNs, func() uint64 {
		s.Pages++
		s.Bytes += uint64(len(e.entry.page))
		s.Keys += l.live(e, nowNs)
		return 0
	})
	s.Slots = uint64(l.table.pages) * uint64(l.table.layout.Slots)
	return s, status
}

// live counts the leases of the entry's page that hold something.
func (l *Leases) live(e *LeaseEntry, nowNs int64) (keys uint64) {
	l.eachHeld(e, nowNs, func(_ int, holds bool) {
		if holds {
			keys++
		}
	})
	return keys
}

// Live is Table.Live of leases.
func (l *Leases) Live(e *LeaseEntry, wallNs, nowNs int64, value []byte) uint64 {
	if e.entry.CallerNs = wallNs; l.table.show(&e.entry, l.table.def.Windows, value) != OK {
		return 0
	}
	return l.live(e, nowNs)
}

// Clean frees the slots of records that hold nothing and returns their number. It
// reads every page.
func (l *Leases) Clean(e *LeaseEntry, wallNs, nowNs int64) (freed uint64, status Status) {
	return l.each(e, wallNs, func() (changes uint64) {
		l.eachHeld(e, nowNs, func(slot int, holds bool) {
			if !holds {
				clear(e.entry.page.record(&l.table.layout, slot))
				changes++
			}
		})
		return changes
	})
}

func (l *Leases) each(e *LeaseEntry, wallNs int64, visit func() uint64) (uint64, Status) {
	return l.table.each(&e.entry, l.table.def.Windows, wallNs, visit)
}

// eachHeld calls visit for the slots of the entry's page that are not free.
func (l *Leases) eachHeld(e *LeaseEntry, nowNs int64, visit func(slot int, holds bool)) {
	t, p := l.table, e.entry.page
	for slot := range t.layout.Slots {
		if p.free(&t.layout, slot) {
			continue
		}
		e.read(p.lease(&t.layout, slot))
		visit(slot, p.time(&t.layout, slot) <= nowNs+MaxLeaseNs && e.holds(nowNs))
	}
}

// holds reports whether the record says something that would be missed: units that
// may be spent or returned, units that the service has not counted yet, or how long
// not to ask it.
func (l *Lease) holds(nowNs int64) bool {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Units > 0 && g.EndNs+strandedNs >= nowNs {
			return true
		}
	}
	return l.Uncharged > 0 || max(l.DeniedNs, l.AskedNs, l.SilentNs) > nowNs
}
