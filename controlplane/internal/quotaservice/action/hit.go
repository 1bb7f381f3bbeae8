package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/record"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Hit takes the units of a part, if all windows of its key have them left. An operator's and a call's part has
// a Cost alone.
type Hit struct {
	Part         quota.Part
	TakesNothing bool // another part of its ask is denied already, or has failed
}

// TakesLast reports whether a hit of the definition waits for the others of its ask: it takes units, and one denied
// for lack of these begins a block, although they may be uncounted at once. A denial for lack of units that are only
// held begins no block, so such a hit need not wait.
func (d *Definition) TakesLast() bool { return d.HasBlock && d.HoldLimit == nil }

// carryOut does the first of these that holds. Units that the part has Spent count first, also if it is denied.
//
//	if                                                what it writes to o   what the record counts
//	the definition holds units                        see takeHold          see takeHold
//	a window is about to end, and the part asks       AgainNs               nothing yet, also no Spent
//	for units or has Spent some
//	the part is Inspect                               nothing               nothing
//	it is denied: too few units, or a blocked key     Denied, WaitNs        what countDenial counts, unless in shadow
//	TakesNothing                                      nothing               nothing
//	it is granted units                               Taken                 these units
//	it asks for nothing, and the key is not blocked   Taken.ValidNs         nothing
func (h *Hit) carryOut(o *Operation, r *record.Record, v balance.View) (changed bool) {
	if o.HoldLimit != nil {
		return o.takeHold(&v, &h.Part)
	}
	p := &h.Part
	d := v.Decide(o.Lease, p)
	if d.Verdict == balance.NotYet && !p.Inspect && (p.Cost > 0 || p.Spent > 0) {
		o.AgainNs = v.FirstEndNs()
		return false
	}
	if p.Spent > 0 {
		v.AddClaimed(p.Spent)
		d = v.Decide(o.Lease, p)
		changed = true
	}
	switch {
	case p.Inspect:
	case d.Verdict != balance.Passes && (p.Cost > 0 || o.Blocked):
		changed = o.deny(&v, p) || changed
	case h.TakesNothing:
	case d.Units > 0:
		counts := Counted{v.Take(d.Units, d.SpendByNs), r.Generation}
		o.Taken = Taken{Units: d.Units, Leased: counts.IsLeased(), ValidNs: v.ValidNs(d.SpendByNs), Counted: counts}
		changed = true
	default: // it asks for nothing
		o.Taken.ValidNs = v.ValidNs(d.SpendByNs)
	}
	return changed
}

// deny denies a part. A denial in shadow counts only once no other part has denied: see keepDenial.
func (o *Operation) deny(v *balance.View, p *quota.Part) (changed bool) {
	o.refuse(v, p.Cost)
	return !p.Shadow && o.countDenial(v, p)
}

// countDenial keeps of a denied part what its definition says: what waits for it counts, and the windows' denial
// begins the key's block or prolongs it. It reports whether that changed something. The wait is from
// the new count.
func (o *Operation) countDenial(v *balance.View, p *quota.Part) (changed bool) {
	if p.Cost == 0 {
		return false
	}
	if !p.NoBlock && v.Left() < p.Cost { // not only what is held leaves no room
		changed = v.Deny()
	}
	if o.CountDenied {
		v.AddClaimed(max(p.Waiting, p.Cost))
		changed = true
	}
	if changed {
		o.WaitNs = v.WaitNs(p.Cost)
	}
	return changed
}

// keepDenial counts the denial of a part in shadow.
type keepDenial struct{ part *quota.Part }

// KeepDenial counts the denial of this hit, whose part is in shadow, because its ask is granted; nil = that would
// change nothing.
func (o *Operation) KeepDenial() Action {
	p := &o.Action.(*Hit).Part
	keeps := o.CountDenied || o.HasBlock && !p.NoBlock
	if o.Err != nil || !o.Denied || o.HeldBack || !keeps {
		return nil
	}
	return &keepDenial{p}
}

func (k *keepDenial) carryOut(o *Operation, _ *record.Record, v balance.View) (changed bool) {
	o.Denied, o.WaitNs = true, v.WaitNs(k.part.Cost)
	o.Noted = o.HoldLimit != nil // the proxy need not report again: the hit has noted its report
	if v.Left() >= k.part.Cost {
		return false // a window has ended since
	}
	return o.countDenial(&v, k.part)
}

// Two actions uncount what a hit has taken:
//
//	undo    nobody got the units. The hit was never admitted, so a window that it opened closes again
//	Return  a proxy got them, and returns what it has not spent. A window that they opened stays open

// undo uncounts what a hit has taken, because nobody got it.
type undo struct {
	hit   *Hit
	taken *Taken
}

// Undo uncounts what this hit has taken, because nobody got it; nil = it has taken nothing.
func (o *Operation) Undo() Action {
	if o.Err != nil || o.Taken.Units == 0 {
		return nil
	}
	return &undo{o.Action.(*Hit), &o.Taken}
}

func (u *undo) carryOut(o *Operation, r *record.Record, v balance.View) (changed bool) {
	if o.HoldLimit != nil {
		return o.undoHold(&v, &u.hit.Part.Report, u.taken.Units)
	}
	counted := &u.taken.Counted
	if !counted.isIn(r) {
		return false
	}
	if v.Undo(&counted.Counted, u.taken.Units) {
		o.Uncounted = u.taken.Units
	}
	return true
}

// Return uncounts units of a grant that a proxy returns.
type Return struct {
	Units   uint32
	Counted Counted
}

func (t *Return) carryOut(o *Operation, r *record.Record, v balance.View) (changed bool) {
	if !t.Counted.isIn(r) {
		return false
	}
	if v.Refund(&t.Counted.Counted, t.Units) {
		o.Uncounted = t.Units
	}
	return true
}
