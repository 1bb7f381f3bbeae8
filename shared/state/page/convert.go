package page

import "github.com/sluice-ratelimit/sluice/shared/limit"

// A policy may change the windows of a table. Its pages stay as they are until somebody reads them: then each is
// converted to the windows that the table has now.

// Convert returns the page in another layout. Windows that both have keep their usage, new ones start empty, and
// the others are dropped. A serial is beside what a record holds, in the last column: if both layouts hold, it is kept
// with that, and if only the new one does, each record gets firstSerial.
func (p *Page) Convert(to *Layout, epoch uint32) Page {
	out := New(to, epoch)
	from := p.Layout
	le.PutUint16(out.Bytes[offGeneration:], p.generation())
	out.SetFloorTime(p.FloorTime())
	slots := min(from.Slots, to.Slots) // they differ only if the page is damaged: a table keeps its geometry
	for slot := range slots {
		if p.IsFree(slot) {
			continue
		}
		fingerprint := p.Bytes[from.fingerprintsAt+slot*fingerprintBytes:][:fingerprintBytes]
		copy(out.Bytes[to.fingerprintsAt+slot*fingerprintBytes:], fingerprint)
		copy(out.record(slot), p.record(slot)[:recordHeadBytes])
		if to.HasHolds {
			putSerial(out.holdsOf(slot), firstSerial)
		}
	}
	for column := range Column(len(to.Windows)) {
		source := from.ColumnOf(to.Windows[column])
		if source == NoColumn {
			continue
		}
		out.takeFloor(column, p, source)
		for slot := range slots {
			if !p.IsFree(slot) {
				out.takeUsage(slot, column, p, source)
			}
		}
	}
	return out
}

// takeFloor copies the floor of old's column source.
func (p *Page) takeFloor(column Column, old *Page, source Column) {
	switch p.Layout.Windows[column].Algorithm {
	case Lease: // has no floor
	case limit.Concurrency:
		p.takeHolds(p.floorHolds(), old, old.floorHolds())
	default:
		p.SetFloor(column, old.Floor(source))
	}
}

// takeUsage copies a slot's usage of old's column source.
func (p *Page) takeUsage(slot int, column Column, old *Page, source Column) {
	switch w := &p.Layout.Windows[column]; w.Algorithm {
	case Lease:
		copy(p.Lease(slot), old.Lease(slot))
	case limit.Concurrency:
		p.takeHolds(p.holdsOf(slot), old, old.holdsOf(slot))
	default:
		var u limit.Usage
		old.ReadUsage(slot, source, nil, &u)
		u = fitLog(u, int(w.Units))
		p.SetUsage(slot, column, &u)
	}
}

// takeHolds copies what is held in a record or the floor of old.
func (p *Page) takeHolds(to []byte, old *Page, from []byte) {
	copy(to, from)
	h := readHolds(from)
	h.Scale(&old.Layout.Windows[old.Layout.HoldsColumn()], &p.Layout.Windows[p.Layout.HoldsColumn()])
	putHolds(to, &h)
}

// fitLog fits u's log into that many units. If there is room again for units that
// were dropped, copies of the oldest unit take their place, so that the key gains
// no quota.
func fitLog(u limit.Usage, units int) limit.Usage {
	if drop := len(u.Log) - units; drop > 0 {
		u.Log = u.Log[drop:]
		u.Cut = true
	}
	for u.Cut && len(u.Log) > 0 && len(u.Log) < units {
		u.Log = append(u.Log[:1:1], u.Log...)
	}
	return u
}
