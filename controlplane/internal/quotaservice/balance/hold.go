package balance

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// What a View with a HoldLimit is asked: parts report what is held, and are granted units to hold.

// Noting is what came of a part with a report.
type Noting struct {
	Noted bool   // the report is noted
	OK    bool   // the part's cost is held, or it asks for nothing and the key is not blocked
	Units uint32 // what is held from now on beside what the report says
}

// Note notes the report of a part: it charges what the report has charged and the store has not counted yet. If the
// part asks for units, it holds them if all windows and the hold have room for them. A report that says nothing and
// is denied is not noted, so that a denied worker needs no holder.
func (v *View) Note(p *quota.Part) (n Noting, err error) {
	h := v.State.Holders.find(p.Worker)
	if h != nil && p.Number <= h.Number {
		return n, ErrStale
	}
	held := min(p.Held, v.mostHeld(h))
	charges := uncounted(&p.Report, h)
	// Such a report may be forgotten: the worker's next one says all that the store must know.
	saysNothing := h == nil && held == 0 && charges == 0 && isFirst(&p.Report)
	if saysNothing && p.Cost > 0 && !v.HasRoom(p.Cost) {
		return n, nil
	}
	h, err = v.State.Holders.findOrAdd(p.Worker)
	if err != nil {
		return n, err
	}
	*h = Holder{
		Worker: p.Worker, Since: p.Since, Number: p.Number, Charged: p.Charged,
		Held: held, NotedNs: v.State.NowNs, HoldNs: v.HoldLimit.PeriodNs,
	}
	if charges > 0 { // only what is charged opens a window
		for i := range v.Windows {
			v.window(i).charge(uint32(min(charges, saturated)))
		}
	}
	n.Noted = true
	n.Units, n.OK = v.room(p.Cost, p.Waiting) // after the charge, and beside what h holds
	h.Held = limit.AddSaturating(held, n.Units)
	return n, nil
}

// uncounted is what a report has charged and the store has not counted. h is what the store has of the worker, nil
// if it has nothing. Without it, or if the worker sums up anew since, the worker's own word says what was counted.
func uncounted(r *quota.Report, h *Holder) uint64 {
	counted := r.Known
	if h != nil && h.Since == r.Since {
		counted = h.Charged
	}
	return r.Charged - min(counted, r.Charged)
}

// isFirst reports whether no earlier report of the worker can be under way. If one can be, this report is noted even
// if it holds nothing, so that the earlier one is stale when it arrives.
func isFirst(r *quota.Report) bool { return r.Since == r.Number }

// mostHeld is how many units the store believes one worker to hold: as many as all workers may hold together. So if
// the worker falls silent, at most one whole limit is charged. It may go on to hold what its holder h has, because
// requests of one key may have several limits.
func (v *View) mostHeld(h *Holder) uint32 {
	most := uint32(saturated)
	if !v.HoldLimit.Unlimited {
		most = v.HoldLimit.Limit
	}
	for i := range v.Windows {
		if w := &v.Windows[i]; !w.Unlimited && w.Algorithm != limit.Block {
			most = min(most, w.Max())
		}
	}
	if h != nil {
		most = max(most, h.Held)
	}
	return most
}

// room is how many units may be held, at most those that wait. ok says that the cost fits. A cost of 0 asks only
// whether the key is blocked.
func (v *View) room(cost, waiting uint32) (units uint32, ok bool) {
	left := v.leftToHold()
	switch {
	case cost == 0:
		return 0, !v.IsBlocked()
	case left < cost || v.IsStarting:
		return 0, false
	}
	return min(left, max(waiting, cost)), true
}

// leftToHold is how many units are left beside what all workers hold.
func (v *View) leftToHold() uint32 {
	left := v.Left()
	if !v.HoldLimit.Unlimited {
		left = min(left, v.HoldLimit.Limit)
	}
	return minus(left, v.State.Holders.Held())
}

// HasRoom reports whether a cost would be held, or of a cost of 0 that the key is not blocked.
func (v *View) HasRoom(cost uint32) bool {
	_, ok := v.room(cost, cost)
	return ok
}

// AwaitsStart reports whether nothing but the store's start keeps a cost from being held. If a worker's report asks
// for it, the report is noted.
func (v *View) AwaitsStart(cost uint32) bool {
	return v.IsStarting && cost > 0 && v.leftToHold() >= cost
}

// HeldWaitNs is how long a cost must wait that was not held. heldBack says that the windows have room for the cost,
// and that only held units are in its way.
func (v *View) HeldWaitNs(cost uint32) (wait int64, heldBack bool) {
	if !v.HoldLimit.Unlimited && cost > v.HoldLimit.Limit {
		return limit.Never, false
	}
	wait = v.WaitNs(cost)
	if wait != 0 {
		return wait, false
	}
	return limit.HeldRetryNs, true
}
