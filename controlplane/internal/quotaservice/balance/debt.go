package balance

import (
	"cmp"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Units are granted only if they are left. But other units have been used already, or an operator has them counted.
// These count, whatever is left. A window that has counted more than its limit owes the rest:
//
//	what counts                     by            in a window        in a bucket: until it lacks
//	what held units have cost       charge        all                what it gains in 366 days, or two bursts if more
//	what a proxy has admitted       AddUncharged  at most one limit  two bursts
//	what a call uses, or is denied  AddClaimed    at most one limit  two bursts
//	an operator's inc and set       Add           all                any number
//
// What a log has no room for takes the place of its oldest units. Of what was admitted (charge, AddUncharged) it has
// room for all: see withWholeLog.
//
// TestAChargeIsTwoLimitsAtLeast and TestAClaimCountsALimitAtMost test these bounds. They are there because a wrong
// number must not lock a key for long:
//
//	          locks the key for at most                                   tested by
//	a claim   as long as using up the limit does                          TestClaimedUnitsAreBounded of quotaservice
//	a charge  the longest period of a policy, because its cost is true    TestHoldsNeverOver, by workers that lie
//
// How a debt ends depends on the window:
//
//	bucket         It gains tokens until it lacks none.
//	fixed window   If its definition holds units, the quota service sets limit.Window.Pays: each period pays one
//	               limit, and the rest goes on into the next. usageOnceEnded bounds that rest. Without Pays, it ends with
//	               its window.
//	counter, log   They forget a debt as they forget all units.
//
// By Record.ExpiryNs all debts have ended: TestNothingCountsFromExpiryOn.

// Add counts units in all windows, whatever is left. They count as spent at once.
func (v *View) Add(units uint32) {
	for i := range v.Windows {
		v.AddIn(i, units)
	}
}

// AddIn counts units in one window, as Add does in all.
func (v *View) AddIn(i int, units uint32) { v.window(i).add(units, v.record.NowNs) }

// AddUncharged counts in all windows units that a proxy has admitted by itself. There is nothing but its word for them.
func (v *View) AddUncharged(units uint32) {
	for i := range v.Windows {
		w := v.window(i)
		w.withWholeLog().add(w.boundClaim(units), w.nowNs)
	}
}

// AddClaimed counts in all windows units that need not have been admitted. There is nothing but the word of a proxy or
// a caller for them.
func (v *View) AddClaimed(units uint32) {
	for i := range v.Windows {
		v.AddClaimedIn(i, units)
	}
}

// AddClaimedIn counts units in one window, as AddClaimed does in all.
func (v *View) AddClaimedIn(i int, units uint32) {
	w := v.window(i)
	w.add(w.boundClaim(units), w.nowNs)
}

// boundClaim returns how many of the units count for which there is nothing but somebody's word.
func (w recordWindow) boundClaim(units uint32) uint32 {
	if !w.def.Unlimited {
		units = min(units, w.def.Max())
	}
	if w.isBucket() {
		units = w.boundLack(units, 2*uint64(w.def.Burst))
	}
	return units
}

// charge counts what held units have cost.
func (w recordWindow) charge(units uint32) {
	if w.isBucket() {
		most := max(w.gained(limit.MaxPeriodNs), limit.AddSaturating(w.def.Burst, w.def.Burst))
		units = w.boundLack(units, uint64(most))
	}
	w.withWholeLog().add(units, w.nowNs)
}

// withWholeLog returns the window with a log that remembers as many units as any log can. Another definition may have a
// larger limit than the one that asks. It would grant too much if its log forgot units that were admitted:
//
//	a log of 10   7 are used
//	a log of 5    asks, and 2 are charged. If these took the place of 2 of the 7, the log of 10 would have 3 left
//
// Units that were denied may take the place of others. The log counts no fewer by that, and none of them was admitted.
func (w recordWindow) withWholeLog() recordWindow {
	if w.def.Algorithm == limit.SlidingWindowLog {
		def := *w.def
		def.Units = limit.MaxLog
		w.def = &def
	}
	return w
}

// boundLack returns how many of the units a bucket may count: until it lacks so many tokens, the most that it may.
func (w recordWindow) boundLack(units uint32, most uint64) uint32 {
	lacks := uint64(w.def.Count(&w.usage.Usage, w.usage.AsOfNs))
	return uint32(min(uint64(units), most-min(lacks, most)))
}

// chargeSilent charges units that silent workers held.
func (r *Record) chargeSilent(units uint32) {
	if units == 0 { // nothing opens no window
		return
	}
	for i := range r.Windows {
		r.window(i).chargeSilent(units)
	}
}

// chargeSilent is charge without a definition that asks. So it is not known when the key's window with jitter ends: an
// open one keeps its end, and another one ends after a whole period, because the key's own ends no later.
func (w recordWindow) chargeSilent(units uint32) {
	end := w.usage.EndNs
	w.charge(units)
	if w.def.Algorithm == limit.FixedWindow && w.def.Jitter > 0 {
		w.usage.EndNs = cmp.Or(end, w.nowNs+w.def.PeriodNs)
	}
}
