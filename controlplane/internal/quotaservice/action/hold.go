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

// hasReport reports whether a worker asks. An operator's hit has no report, because its answer is known.
func (h *Hit) hasReport() bool { return h.Part.Number > 0 }

// takeHold notes what a worker reports of a key, and holds what it asks for.
func (h *Hit) takeHold(terms *Terms, v *balance.View, out *Outcome) (changed bool) {
	p := &h.Part
	switch {
	case p.Inspect:
		return false
	case !h.hasReport():
		return hitHeld(terms, v, p, out)
	}
	changed, room, err := v.Note(p)
	if err != nil {
		out.Err = err
		return false
	}
	out.Noted = true
	out.Taken = Taken{Units: room.Units, ValidNs: v.HoldLimit.EighthNs()}
	out.NeedsAge = room.Units > 0
	if room.OK {
		return changed
	}
	out.denyHold(&room)
	if out.Denied && !p.Shadow {
		changed = countDenial(terms, v, p, out) || changed
	}
	return changed
}

// hitHeld counts an operator's hit, if there is room for it beside what is held.
func hitHeld(terms *Terms, v *balance.View, p *quota.Part, out *Outcome) (changed bool) {
	out.judgeHeld(v, p.Cost)
	switch {
	case out.Denied:
		return countDenial(terms, v, p, out)
	case out.Err != nil || p.Cost == 0:
		return false
	}
	v.Add(p.Cost)
	out.NeedsAge = true
	return true
}

// undoHold takes back what was held, unless the worker has reported since. Then it is not noted: the worker's next
// report says what it holds.
func (u *undo) undoHold(v *balance.View, out *Outcome) (changed bool) {
	out.Noted = v.State.Holders.Undo(&u.hit.Part.Report, u.taken.Units)
	if out.Noted {
		out.Uncounted = u.taken.Units
	}
	return out.Noted
}

// judgeHeld finds out whether units are left beside what is held.
func (out *Outcome) judgeHeld(v *balance.View, units uint32) {
	if room := v.Room(units, units); !room.OK {
		out.denyHold(&room)
	}
}

// denyHold says why a cost is not held.
func (out *Outcome) denyHold(room *balance.Room) {
	if room.IsStarting {
		out.Err = ErrStarting
		return
	}
	out.Denied = true
	out.WaitNs, out.HeldBack = room.WaitNs, room.HeldBack
}
