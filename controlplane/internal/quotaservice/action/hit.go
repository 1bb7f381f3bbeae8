package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Hit takes the units of a part, if all windows of its key have them left. An operator's and a call's part has
// a Cost alone.
type Hit struct {
	Part         quota.Part
	TakesNothing bool // another part of its ask is denied already, or has failed
}

// TakesLast reports whether a hit of the definition waits for the other parts of its ask. For example, an ask has a
// part of user, which has no unit left, and a part of address, which has 1 left and a block. If address took its unit
// first, other asks for address would be denied until user is, and that unit is uncounted. Each of them would begin the
// block, although the unit was left all the time. So address takes last: nothing, because user is denied by then.
//
// A denial for lack of units that are only held begins no block, so a hit that holds units need not wait.
func (terms *Terms) TakesLast() bool { return terms.HasBlock && terms.HoldLimit == nil }

// carryOut does the first of these that holds. Units that the part has Spent count first, also if it is denied.
//
//	if                                                what it writes        what the record counts
//	the definition holds units                        see takeHold          see takeHold
//	a window is about to end, and the part asks       AgainNs               nothing yet, also no Spent
//	for units or has Spent some
//	the part is Inspect                               nothing               nothing
//	it is denied: too few units, or a blocked key     Denied, WaitNs        what countDenial counts, unless in shadow
//	TakesNothing                                      nothing               nothing
//	it is granted units                               Taken                 these units
//	it is granted none: it asks for none, or only     Taken.ValidNs         nothing
//	for some ahead
func (h *Hit) carryOut(terms *Terms, v balance.View, out *Outcome) (changed bool) {
	if v.HoldLimit != nil {
		return h.takeHold(terms, &v, out)
	}
	p := &h.Part
	offer := v.Offer(terms.Lease, p)
	if offer.Verdict == balance.NotYet && !p.Inspect && (p.Cost > 0 || p.Spent > 0) {
		out.AgainNs = v.FirstEndNs()
		return false
	}
	if p.Spent > 0 {
		v.AddClaimed(p.Spent)
		offer = v.Offer(terms.Lease, p)
		changed = true
	}
	switch {
	case p.Inspect:
	case offer.Verdict != balance.Passes && (p.Cost > 0 || out.Blocked):
		out.deny(&v, p.Cost)
		if !p.Shadow { // else it counts once no other part has denied: see keepDenial
			changed = countDenial(terms, &v, p, out) || changed
		}
	case h.TakesNothing:
	case offer.Units > 0:
		out.Taken = take(&v, &offer)
		changed = true
	default:
		out.Taken.ValidNs = v.ValidNs(offer.SpendByNs)
	}
	return changed
}

// take counts the units of an offer.
func take(v *balance.View, offer *balance.Offer) Taken {
	counted := v.Take(offer.Units, offer.SpendByNs)
	return Taken{Units: offer.Units, ValidNs: v.ValidNs(offer.SpendByNs), Counted: counted}
}

// keeps says what a denial of the part changes: its units count, or it may begin the key's block.
func (terms *Terms) keeps(p *quota.Part) (counts, blocks bool) {
	costs := p.Cost > 0
	return costs && terms.CountDenied, costs && terms.HasBlock && !p.NoBlock
}

// countDenial keeps of a denied part what its definition says: what waits for it counts, and the windows' denial
// begins the key's block or prolongs it. It reports whether that changed something. The wait is from
// the new count.
func countDenial(terms *Terms, v *balance.View, p *quota.Part, out *Outcome) (changed bool) {
	counts, blocks := terms.keeps(p)
	if blocks && v.Left() < p.Cost { // not only what is held leaves no room
		changed = v.BeginBlock()
	}
	if counts {
		v.AddClaimed(max(p.Waiting, p.Cost))
		changed = true
	}
	if changed {
		out.deny(v, p.Cost)
	}
	return changed
}

// keepDenial counts the denial of a part in shadow.
type keepDenial struct{ part *quota.Part }

// NewKeepDenial returns what counts the denial of this hit, whose part is in shadow, once its ask is granted; nil =
// that would change nothing, or this is no hit.
func (o *Operation) NewKeepDenial() Action {
	hit, isHit := o.Action.(*Hit)
	out := &o.Outcome
	if !isHit || out.Err != nil || !out.Denied || out.HeldBack {
		return nil
	}
	if counts, blocks := o.Terms.keeps(&hit.Part); !counts && !blocks {
		return nil
	}
	return &keepDenial{&hit.Part}
}

func (k *keepDenial) carryOut(terms *Terms, v balance.View, out *Outcome) (changed bool) {
	out.Noted = v.HoldLimit != nil // the proxy need not report again: the hit has noted its report
	passes := v.LeftBesideHeld() >= k.part.Cost
	if passes { // by now: a window has ended since, or less is held
		out.Denied = true
		return false
	}
	out.deny(&v, k.part.Cost)
	return countDenial(terms, &v, k.part, out)
}

// Two actions uncount what a hit has taken:
//
//	undo    nobody got the units. The hit was never admitted, so a window that it opened closes again
//	Return  a proxy got them, and returns what it has not spent. A window that they opened stays open

// undo uncounts what a hit has taken, because nobody got it.
type undo struct {
	hit   *Hit
	taken Taken
}

// NewUndo returns what uncounts the units of this hit, because nobody got them; nil = it has taken none, or is no hit.
func (o *Operation) NewUndo() Action {
	hit, isHit := o.Action.(*Hit)
	if !isHit || o.Outcome.Err != nil || o.Outcome.Taken.Units == 0 {
		return nil
	}
	return &undo{hit, o.Outcome.Taken}
}

func (u *undo) carryOut(_ *Terms, v balance.View, out *Outcome) (changed bool) {
	if v.HoldLimit != nil {
		return u.undoHold(&v, out)
	}
	counted := &u.taken.Counted
	if !counted.IsIn(v.Record) {
		return false
	}
	if v.Undo(counted, u.taken.Units) {
		out.Uncounted = u.taken.Units
	}
	return true
}

// Return uncounts units of a grant that a proxy returns.
type Return struct {
	Units   uint32
	Counted balance.HowCounted
}

func (t *Return) carryOut(_ *Terms, v balance.View, out *Outcome) (changed bool) {
	if !t.Counted.IsIn(v.Record) {
		return false
	}
	if v.Return(&t.Counted, t.Units) {
		out.Uncounted = t.Units
	}
	return true
}

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
	out.Noted = v.Record.Holders.Undo(&u.hit.Part.Report, u.taken.Units)
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
