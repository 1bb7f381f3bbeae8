package balance

import (
	"cmp"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Units are granted only if they are left. But other units have been used already, or an operator has them counted.
// These count, whatever is left. A window that has counted more than its limit owes the rest:
//
//	what counts                     by          in a window        in a bucket: until it lacks
//	what held units have cost       charge      all                what it gains in 366 days, or two bursts if more
//	what a proxy or a caller says   AddClaimed  at most one limit  two bursts
//	an operator's inc and set       Add         all                any number
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

// AddClaimed counts in all windows units for which there is nothing but the word of a proxy or a caller.
func (v *View) AddClaimed(units uint32) {
	for i := range v.Windows {
		v.AddClaimedIn(i, units)
	}
}

// AddClaimedIn counts units in one window, as AddClaimed does in all.
func (v *View) AddClaimedIn(i int, units uint32) {
	w := v.window(i)
	if !w.def.Unlimited {
		units = min(units, w.def.Max())
	}
	if w.isBucket() {
		units = w.boundLack(units, 2*uint64(w.def.Burst))
	}
	w.add(units, w.nowNs)
}

// charge counts what held units have cost.
func (w recordWindow) charge(units uint32) {
	if w.isBucket() {
		most := max(w.gained(limit.MaxPeriodNs), limit.AddSaturating(w.def.Burst, w.def.Burst))
		units = w.boundLack(units, uint64(most))
	}
	w.add(units, w.nowNs)
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

// chargeSilent is charge without a definition that asks. So two things are not known:
//
//	how many units a log remembers          it remembers as many as any log can
//	when the key's window with jitter ends  an open one keeps its end, and another one ends after a whole period,
//	                                        because the key's own ends no later
func (w recordWindow) chargeSilent(units uint32) {
	def, end := *w.def, w.usage.EndNs
	if def.Algorithm == limit.SlidingWindowLog {
		def.Units = limit.MaxLog
	}
	w.def = &def
	w.charge(units)
	if def.Algorithm == limit.FixedWindow && def.Jitter > 0 {
		w.usage.EndNs = cmp.Or(end, w.nowNs+def.PeriodNs)
	}
}
