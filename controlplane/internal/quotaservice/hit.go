package quotaservice

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// hit takes the units of a part, if all windows of its key have them left. An operator's and a call's part has
// a Cost alone.
type hit struct {
	part         quota.Part
	takesNothing bool // another part of its ask is denied already, or has failed
}

// takesLast reports whether a hit of the definition waits for the others of its ask: it takes units, and one denied
// for lack of these begins a block, although they may be uncounted at once. A denial for lack of units that are only
// held begins no block, so such a hit need not wait.
func (d *definition) takesLast() bool { return d.hasBlock && d.holdLimit == nil }

// carryOut does the first of these that holds. Units that the part has Spent count first, also if it is denied.
//
//	if                                                what it writes to o   what the record counts
//	the definition holds units                        see takeHold          see takeHold
//	a window is about to end, and the part asks       againNs               nothing yet, also no Spent
//	for units or has Spent some
//	the part is Inspect                               nothing               nothing
//	it is denied: too few units, or a blocked key     denied, waitNs        what countDenial counts, unless in shadow
//	takesNothing                                      nothing               nothing
//	it is granted units                               taken                 these units
//	it asks for nothing, and the key is not blocked   taken.validNs         nothing
func (h *hit) carryOut(o *operation, r *record, s quota.State) (changed bool) {
	if o.holdLimit != nil {
		return o.takeHold(&s, &h.part)
	}
	p := &h.part
	decision, units, terms := s.Decide(o.Lease, p)
	if decision == quota.NotYet && !p.Inspect && (p.Cost > 0 || p.Spent > 0) {
		o.againNs = terms.AgainNs
		return false
	}
	if p.Spent > 0 {
		s.CountClaimed(p.Spent)
		decision, units, terms = s.Decide(o.Lease, p)
		changed = true
	}
	switch {
	case p.Inspect:
	case decision != quota.Passes && (p.Cost > 0 || o.blocked):
		changed = o.deny(&s, p) || changed
	case h.takesNothing:
	case units > 0:
		counts := counted{s.Add(units, terms), r.generation}
		o.taken = taken{units: units, leased: terms.EndNs != 0, counted: counts}
		o.taken.validNs = s.ValidNs(terms)
		changed = true
	default: // it asks for nothing
		o.taken.validNs = s.ValidNs(terms)
	}
	return changed
}

// deny denies a part. A denial in shadow counts only once no other part has denied: see keepDenial.
func (o *operation) deny(s *quota.State, p *quota.Part) (changed bool) {
	o.denied, o.waitNs = true, s.WaitNs(p.Cost)
	if o.waitNs == 0 { // only what workers of another policy hold leaves no room
		o.waitNs = limit.HeldRetryNs
	}
	return !p.Shadow && o.countDenial(s, p)
}

// countDenial keeps of a denied part what its definition says: what waits for it counts, and the windows' denial
// begins the key's block or prolongs it. It reports whether that changed something. The wait is from
// the new count.
func (o *operation) countDenial(s *quota.State, p *quota.Part) (changed bool) {
	if p.Cost == 0 {
		return false
	}
	if !p.NoBlock && s.Left(quota.Unleased) < p.Cost { // not only what is held leaves no room
		changed = s.Deny()
	}
	if o.CountDenied {
		s.CountClaimed(max(p.Waiting, p.Cost))
		changed = true
	}
	if changed {
		o.waitNs = s.WaitNs(p.Cost)
	}
	return changed
}

// keepDenial counts the denial of a part in shadow, whose hit was denied and whose ask is granted.
type keepDenial struct{ part *quota.Part }

// keepsDenial reports whether a denial of the part would change something.
func (d *definition) keepsDenial(p *quota.Part) bool {
	return d.CountDenied || d.hasBlock && !p.NoBlock
}

func (k *keepDenial) carryOut(o *operation, _ *record, s quota.State) (changed bool) {
	o.denied, o.waitNs = true, s.WaitNs(k.part.Cost)
	o.noted = o.holdLimit != nil // the proxy need not report again: the hit has noted its report
	if s.Left(quota.Unleased) >= k.part.Cost {
		return false // a window has ended since
	}
	return o.countDenial(&s, k.part)
}

// undo uncounts what a hit has taken, because nobody got it.
type undo struct {
	taken  *taken
	report *quota.Report // of the hit's part; nil = the units are not held
}

// undo returns an operation that undoes this one, a hit that has taken something.
func (o *operation) undo(report *quota.Report) *operation {
	return o.followedBy(&undo{&o.taken, report})
}

func (u *undo) carryOut(o *operation, r *record, s quota.State) (changed bool) {
	if u.report != nil {
		return o.refundHold(&s, u.report, u.taken.units)
	}
	if !u.taken.counted.isIn(r) {
		return false
	}
	if s.Undo(&u.taken.counted.Counted, u.taken.units) {
		o.uncounted = u.taken.units
	}
	return true
}

// giveUp uncounts units of a grant that a proxy returns.
type giveUp struct {
	units   uint32
	counted counted
}

func (g *giveUp) carryOut(o *operation, r *record, s quota.State) (changed bool) {
	if !g.counted.isIn(r) {
		return false
	}
	if s.Refund(&g.counted.Counted, g.units) {
		o.uncounted = g.units
	}
	return true
}

// isIn reports whether the record may still count the units. If it has been made anew since, they are gone already.
func (c *counted) isIn(r *record) bool { return r.generation == c.generation }

// followedBy returns an operation that does something else to the same key, for the same owner.
func (o *operation) followedBy(a action) *operation {
	return &operation{
		definition: o.definition, action: a, storeKey: o.storeKey, domain: o.domain, shifted: o.shifted, owner: o.owner,
	}
}
