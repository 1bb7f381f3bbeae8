package action

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// ActionFor returns what the part of an ask does first. A definition that holds units takes a part without a report to
// be spent at once.
func (terms *Terms) ActionFor(p *quota.Part) Action {
	switch {
	case terms.HoldLimit == nil:
		return &Hit{Part: p}
	case p.Number > 0 || p.Inspect:
		return &Hold{p}
	}
	return &Take{Units: p.Cost, NoBlock: p.NoBlock || p.Shadow} // if in shadow, keepDenial begins the block
}

// Hit takes the units of a part, if all windows of its key have them left.
type Hit struct {
	Part *quota.Part
	// IsRefused says that another part of the ask is denied already, or has failed: see TakesLast. Such a hit takes
	// nothing.
	IsRefused bool
}

// carryOut does the first of these that holds. Units that are Uncharged count first, also if the part is denied.
//
//	if                                                what it writes        what the record counts
//	a window is about to end, and the part asks       AgainNs               nothing yet, also nothing Uncharged
//	for units or has some Uncharged
//	the part is Inspect                               nothing               nothing
//	it is denied: too few units, or a blocked key     Denial                what countDenial counts, unless in shadow
//	the hit is refused                                nothing               nothing
//	it is granted units                               Taken                 these units
//	it is granted none: its cost is 0                 Taken.ValidNs         nothing
func (h *Hit) carryOut(terms *Terms, v balance.View, did *Effect) (changed bool) {
	p := h.Part
	offer := v.OfferLease(terms.Lease, p)
	if offer.Verdict == balance.NotYet && !p.Inspect && (p.Cost > 0 || p.Uncharged > 0) {
		did.AgainNs = v.FirstEndNs()
		return false
	}
	if p.Uncharged > 0 {
		v.AddUncharged(p.Uncharged)
		changed = true
		offer = v.OfferLease(terms.Lease, p) // of what is left beside them
	}
	switch {
	case p.Inspect:
	case offer.Verdict == balance.TooFew:
		if !p.Shadow { // else it counts once no other part has denied: see keepDenial
			changed = terms.countDenial(&v, attemptOf(p)) || changed
		}
		did.Denial = v.Denial(p.Cost)
	case h.IsRefused:
	case offer.Units > 0:
		did.Taken = takeUnits(&v, offer.Units, offer.SpendByNs)
		changed = true
	default: // it costs nothing, so it passes also if NotYet
		did.Taken.ValidNs = v.ValidNs(v.NowNs())
	}
	return changed
}

// TakesLast reports whether a hit of the definition waits for the other parts of its ask. For example, an ask has a
// part of user, which has no unit left, and a part of address, which has 1 left and a block. If address took its unit
// first, other asks for address would be denied until user is, and that unit is uncounted. Each of them would begin the
// block, although the unit was left all the time. So address takes last: nothing, because user is denied by then. Two
// parts that both take last do not wait for each other, and between them this can still happen.
//
// A denial for lack of units that are only held begins no block, so a hit that holds units need not wait.
func (terms *Terms) TakesLast() bool { return terms.HasBlock && terms.HoldLimit == nil }

// Hold notes what a worker reports of a key, and holds what its part asks for: these units are held until the worker
// reports what they have cost.
type Hold struct{ Part *quota.Part }

func (h *Hold) carryOut(terms *Terms, v balance.View, did *Effect) (changed bool) {
	p := h.Part
	if p.Inspect {
		return false
	}
	isKept, offer, err := v.Note(p)
	if err != nil {
		did.Err = err
		return false
	}
	changed = isKept
	did.Noted = true // also if it is forgotten, because it says nothing
	did.Taken = Taken{Units: offer.Units, ValidNs: v.HoldLimit.EighthNs()}
	did.NeedsAge = offer.NeedsAge
	switch offer.Verdict {
	case balance.Starting:
		did.waitForStart(&v)
	case balance.TooFew:
		if !p.Shadow { // else keepDenial counts it
			changed = terms.countDenial(&v, attemptOf(p)) || changed
		}
		did.Denial = v.Denial(p.Cost)
	default: // it passes
	}
	return changed
}

// attempt is what a denied request asked for, as far as the record may count that.
type attempt struct {
	cost    uint32
	waiting uint32 // of all requests that wait, if it is more than the cost
	noBlock bool   // see quota.Part
}

func attemptOf(p *quota.Part) attempt { return attempt{p.Cost, p.Waiting, p.NoBlock} }

// mayChange says what the denial changes by the definition: its units count, or it may begin the key's block.
func (a attempt) mayChange(terms *Terms) (counts, blocks bool) {
	costs := a.cost > 0
	return costs && terms.CountDenied, costs && terms.HasBlock && !a.noBlock
}

// countDenial changes by a denial what the definition says: what waits counts, and the windows' denial begins the key's
// block or prolongs it. It reports whether that changed something. Whoever calls it denies after it, so that the wait
// is from the new count.
func (terms *Terms) countDenial(v *balance.View, a attempt) (changed bool) {
	counts, blocks := a.mayChange(terms)
	if blocks && v.WaitNs(a.cost) != 0 { // not only what is held is in the way
		changed = v.BeginBlock()
	}
	if counts {
		v.AddClaimed(max(a.waiting, a.cost))
		changed = true
	}
	return changed
}

// keepDenial counts the denial of a part in shadow, once its ask is granted.
type keepDenial struct {
	part    *quota.Part
	isNoted bool // the first action has noted the part's report
}

// KeepDenial returns what keeps the denial of a part in shadow. first is the outcome of its first action. nil = to keep
// it would change nothing.
func (terms *Terms) KeepDenial(p *quota.Part, first *Outcome) Action {
	counts, blocks := attemptOf(p).mayChange(terms)
	if first.Err != nil || !first.Denied || first.HeldBack || !counts && !blocks {
		return nil
	}
	return &keepDenial{p, first.Noted}
}

func (k *keepDenial) carryOut(terms *Terms, v balance.View, did *Effect) (changed bool) {
	did.Noted = k.isNoted
	cost := k.part.Cost
	if v.OfferNow(cost, cost).Verdict != balance.TooFew { // it passes by now: a window has ended since, or less is held
		did.Denied = true
		return false
	}
	changed = terms.countDenial(&v, attemptOf(k.part))
	did.Denial = v.Denial(cost)
	return changed
}

// Three actions give back what was taken:
//
//	undo      nobody got the units. No request was admitted, so a window that they opened closes again
//	undoHold  the same, of units that are held: no window has counted them
//	Return    a proxy got them, and returns what it has not spent. A window that they opened stays open

// Undo returns what gives back what the operation has taken by its outcome, because nobody got it; nil = it has taken
// nothing.
func (o *Operation) Undo(out *Outcome) Action {
	if out.Err != nil || out.Taken.Units == 0 {
		return nil
	}
	if hold, holds := o.Action.(*Hold); holds {
		return &undoHold{&hold.Part.Report, out.Taken.Units}
	}
	return &undo{out.Taken}
}

type undo struct{ taken Taken }

func (u *undo) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	did.Uncounted, changed = v.Undo(&u.taken.Counted, u.taken.Units)
	return changed
}

type undoHold struct {
	granted *quota.Report
	units   uint32
}

// carryOut does nothing if the worker has reported since. Then it is not noted: the worker's next report says what it
// holds.
func (u *undoHold) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	did.Noted = v.UndoHold(u.granted, u.units)
	if did.Noted {
		did.Uncounted = u.units
	}
	return did.Noted
}

// Return uncounts units of a grant that a proxy returns.
type Return struct {
	Units   uint32
	Counted balance.HowCounted
}

func (t *Return) carryOut(_ *Terms, v balance.View, did *Effect) (changed bool) {
	did.Uncounted, changed = v.Return(&t.Counted, t.Units)
	return changed
}
