package quotaservice

import "github.com/sluice-ratelimit/sluice/shared/quota"

// hold notes what a worker states of a key, and holds what it asks for. What states nothing is
// an operator's hit, whose answer is known.
func (o *operation) hold(s *quota.State) (changed bool) {
	p := &o.part
	switch {
	case p.Inspect:
		return false
	case p.Number == 0:
		if o.judgeHeld(s, p.Cost); o.denied || o.err != nil || p.Cost == 0 {
			return false
		}
		s.Add(p.Cost, quota.Terms{})
		o.holds = true
		return true
	}
	n, err := s.Note(p, o.slots)
	if err != nil {
		o.err = err
		return false
	}
	o.stated = true
	o.units = n.Units
	o.validNs = o.slots.EighthNs()
	o.holds = n.Units > 0
	if !n.OK {
		o.refuse(s, p)
	}
	return n.Noted
}

// judgeHeld finds out whether units are left beside what is held.
func (o *operation) judgeHeld(s *quota.State, units uint32) {
	if !s.HasRoom(units, o.slots) {
		o.refuse(s, &quota.Part{Cost: units})
	}
}

// refuse says why a part does not get its cost.
func (o *operation) refuse(s *quota.State, p *quota.Part) {
	if s.AwaitsStart(p, o.slots) {
		o.err = ErrStarting
		return
	}
	o.denied = true
	o.waitNs, o.heldBack = s.HeldWaitNs(p.Cost, o.slots)
}
