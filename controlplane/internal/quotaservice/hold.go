package quotaservice

import "github.com/sluice-ratelimit/sluice/shared/quota"

// What operations do to a key whose definition has a holdLimit: its units are held until workers report what
// they have cost.
//
//	takeHold    a Hit: notes a worker's report, and holds what it asks for
//	hitHeld     an operator's Hit counts at once, and holds nothing
//	judgeHeld   an Inspect: whether units are left beside what is held
//	refundHold  undo and giveUp: takes back what was held

// takeHold notes what a worker reports of a key, and holds what it asks for. Without a report it
// is an operator's hit, whose answer is known.
func (o *operation) takeHold(s *quota.State) (changed bool) {
	p := &o.part
	if p.Inspect {
		return false
	}
	if p.Number == 0 {
		return o.hitHeld(s)
	}
	n, err := s.Note(p, o.holdLimit)
	if err != nil {
		o.err = err
		return false
	}
	o.noted = true
	o.units, o.validNs = n.Units, o.holdLimit.EighthNs()
	o.needsAge = n.Units > 0
	if n.OK {
		return n.Noted
	}
	o.refuseHold(s, p.Cost)
	changed = n.Noted
	if o.denied && !p.Shadow {
		changed = o.keepDenial(s) || changed
	}
	return changed
}

// hitHeld counts an operator's hit, if there is room for it beside what is held.
func (o *operation) hitHeld(s *quota.State) (changed bool) {
	cost := o.part.Cost
	o.judgeHeld(s, cost)
	switch {
	case o.denied:
		return o.keepDenial(s)
	case o.err != nil || cost == 0:
		return false
	}
	s.Add(cost, quota.Unleased)
	o.needsAge = true
	return true
}

// refundHold takes back what was held, unless the worker has reported since.
func (o *operation) refundHold(s *quota.State) (changed bool) {
	o.noted = s.Holders.Refund(&o.part.Report, o.back)
	if o.noted {
		o.uncounted = o.back
	}
	return o.noted
}

// judgeHeld finds out whether units are left beside what is held.
func (o *operation) judgeHeld(s *quota.State, units uint32) {
	if !s.HasRoom(units, o.holdLimit) {
		o.refuseHold(s, units)
	}
}

// refuseHold says why a cost is not held.
func (o *operation) refuseHold(s *quota.State, cost uint32) {
	if s.AwaitsStart(cost, o.holdLimit) {
		o.err = ErrStarting
		return
	}
	o.denied = true
	o.waitNs, o.heldBack = s.HeldWaitNs(cost, o.holdLimit)
}
