package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// What operations do to a key whose definition has a HoldLimit: its units are held until workers report what
// they have cost.
//
//	takeHold   a hit: notes a worker's report, and holds what it asks for
//	hitHeld    an operator's hit counts at once, and holds nothing
//	judgeHeld  an inspect, and hitHeld: whether units are left beside what is held
//	undoHold   an undo: takes back what was held

// takeHold notes what a worker reports of a key, and holds what it asks for. Without a report it
// is an operator's hit, whose answer is known.
func (o *Operation) takeHold(v *balance.View, p *quota.Part) (changed bool) {
	if p.Inspect {
		return false
	}
	if p.Number == 0 {
		return o.hitHeld(v, p)
	}
	changed, room, err := v.Note(p)
	if err != nil {
		o.Err = err
		return false
	}
	o.Noted = true
	o.Taken = Taken{Units: room.Units, ValidNs: o.HoldLimit.EighthNs()}
	o.NeedsAge = room.Units > 0
	if room.OK {
		return changed
	}
	o.refuseHold(&room)
	if o.Denied && !p.Shadow {
		changed = o.countDenial(v, p) || changed
	}
	return changed
}

// hitHeld counts an operator's hit, if there is room for it beside what is held.
func (o *Operation) hitHeld(v *balance.View, p *quota.Part) (changed bool) {
	o.judgeHeld(v, p.Cost)
	switch {
	case o.Denied:
		return o.countDenial(v, p)
	case o.Err != nil || p.Cost == 0:
		return false
	}
	v.Add(p.Cost)
	o.NeedsAge = true
	return true
}

// undoHold takes back what was held, unless the worker has reported since. Then o is not noted: the worker's next
// report says what it holds.
func (o *Operation) undoHold(v *balance.View, report *quota.Report, units uint32) (changed bool) {
	o.Noted = v.State.Holders.Refund(report, units)
	if o.Noted {
		o.Uncounted = units
	}
	return o.Noted
}

// judgeHeld finds out whether units are left beside what is held.
func (o *Operation) judgeHeld(v *balance.View, units uint32) {
	if room := v.Room(units, units); !room.OK {
		o.refuseHold(&room)
	}
}

// refuseHold says why a cost is not held.
func (o *Operation) refuseHold(room *balance.Room) {
	if room.IsStarting {
		o.Err = ErrStarting
		return
	}
	o.Denied = true
	o.WaitNs, o.HeldBack = room.WaitNs, room.HeldBack
}
