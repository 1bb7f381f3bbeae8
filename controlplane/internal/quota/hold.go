package quota

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

// hold notes what a worker states of a key, and holds what it asks for. What states nothing is
// an operator's hit, whose answer is known.
func (o *operation) hold(s *lease.State) (changed bool) {
	p := &o.part
	switch {
	case p.Inspect:
		return false
	case p.Number == 0:
		if o.judgeHeld(s, p.Cost); o.denied || p.Cost == 0 {
			return false
		}
		s.Add(p.Cost, lease.Terms{})
		return true
	}
	units, ok, stated, err := s.Say(p, o.slots)
	if err != nil {
		o.err = err
		return false
	}
	o.stated = true
	o.units, o.validNs = units, o.slots.EighthNs()
	if !ok {
		o.denied = true
		o.waitNs, o.heldBack = s.HeldWaitNs(p.Cost, o.slots)
	}
	return stated
}

// judgeHeld finds out whether units are left beside what is held.
func (o *operation) judgeHeld(s *lease.State, units uint32) {
	if !s.HasRoom(units, o.slots) {
		o.denied = true
		o.waitNs, o.heldBack = s.HeldWaitNs(units, o.slots)
	}
}

func (r *record) appendRows(b []byte) []byte {
	for i := range r.Windows {
		b = binary.AppendUvarint(b, uint64(r.Windows[i].Pays))
	}
	b = binary.AppendUvarint(b, uint64(max(r.Rows.QuietNs-r.NowNs, 0)))
	b = binary.AppendUvarint(b, uint64(len(r.Rows.Rows)))
	for i := range r.Rows.Rows {
		row := &r.Rows.Rows[i]
		b = binary.LittleEndian.AppendUint64(b, row.Worker)
		for _, n := range [...]uint64{row.Since, row.Number, row.Charged, uint64(row.Held), uint64(r.NowNs - row.SaidNs), uint64(row.HoldNs)} {
			b = binary.AppendUvarint(b, n)
		}
	}
	return b
}

// rows reads what appendRows has written.
func (r *reader) rows(to *record) {
	const any64 = 1<<64 - 1
	for i := range to.Windows {
		to.Windows[i].Pays = uint32(r.uint(maxUnits))
	}
	to.Rows = &lease.Rows{QuietNs: to.NowNs + int64(r.uint(uint64(maxInstant-to.NowNs)))}
	for range r.uint(lease.MaxRows) {
		if r.bad || len(r.b) < 8 {
			r.bad = true
			return
		}
		row := lease.Row{Worker: binary.LittleEndian.Uint64(r.b)}
		r.b = r.b[8:]
		row.Since, row.Number, row.Charged = r.uint(any64), r.uint(any64), r.uint(any64)
		row.Held = uint32(r.uint(maxUnits))
		row.SaidNs = to.NowNs - int64(r.uint(uint64(to.NowNs)))
		row.HoldNs = int64(r.uint(uint64(limit.MaxPeriodNs)))
		to.Rows.Rows = append(to.Rows.Rows, row)
	}
}
