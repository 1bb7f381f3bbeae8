package balance

import (
	"cmp"
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// recordWindow is one window of a key as a Record has it: it may lack limits, so it is only rolled. def has the
// arithmetic of package limit, which knows one instant. The methods here are for units that are leased.
//
// Leased units may be spent at any time until their lease ends. A fixed window or a counter counts them at nowNs,
// because no lease outlives it. A log or a bucket forgets units one after the other, so it counts them at the end of
// their lease, which is after nowNs:
//
//	window                  asOf: instant of its usage  spendBy: last end of a lease counted
//	fixed, calendar         nowNs                       nowNs
//	sliding window counter  nowNs                       nowNs
//	sliding window log      nowNs                       that of its newest unit, or nowNs
//	token bucket            its spendBy                 in the Record
type recordWindow struct {
	def           *limit.Window // see Record for what it may lack
	usage         *limit.Usage
	nowNs         int64
	bucketSpendBy *int64 // in the Record: not before nowNs; nil = it is no bucket. For spendBy and setSpendBy alone
}

func (r *Record) window(i int) recordWindow { return r.windowWith(&r.Windows[i], i) }

// windowWith returns window i with the limits of a definition.
func (r *Record) windowWith(def *limit.Window, i int) recordWindow {
	w := recordWindow{def: def, usage: &r.Usages[i], nowNs: r.NowNs}
	if def.Algorithm == limit.TokenBucket {
		w.bucketSpendBy = &r.bucketSpendBy[i]
	}
	return w
}

// roll brings the window to now.
func (w recordWindow) roll(now int64) {
	last, to := w.asOf(), now
	switch {
	case w.isBucket():
		to = max(now, last)
		w.setSpendBy(to)
	case w.def.Pays > 0 && w.hasEnded(now):
		w.usage.Used = w.usageBounded().Used // stored only once it has ended: see usageBounded
	}
	w.def.Roll(w.usage, last, to)
}

// expiryNs is from when the window counts nothing.
func (w recordWindow) expiryNs() int64 {
	u := w.usageBounded()
	return max(w.spendBy(), w.def.Expiry(&u, w.asOf()))
}

func (w recordWindow) isBucket() bool { return w.bucketSpendBy != nil }

// asOf is the instant of its usage.
func (w recordWindow) asOf() int64 {
	if w.isBucket() {
		return w.spendBy()
	}
	return w.nowNs
}

// spendBy is the instant until which the units that the window has counted may be spent. A log keeps this instant
// for each unit, in order.
func (w recordWindow) spendBy() int64 {
	if w.isBucket() {
		return *w.bucketSpendBy
	}
	if log := w.usage.Log; len(log) > 0 {
		return max(w.nowNs, log[len(log)-1])
	}
	return w.nowNs
}

// setSpendBy sets the spendBy of a bucket. That of another window follows from its usage.
func (w recordWindow) setSpendBy(spendBy int64) { *w.bucketSpendBy = spendBy }

// viewWindow is one window of a key with the limits of a definition, as a View has it: it is also asked, and counts.
type viewWindow struct{ recordWindow }

// left returns how many units are left if they may be spent until endNs.
func (w viewWindow) left(endNs int64) uint32 {
	switch {
	case w.def.Unlimited, w.def.Algorithm == limit.Block && w.usage.EndNs == 0:
		return saturated
	case w.def.Algorithm == limit.Block:
		return 0
	case w.isBucket():
		return bucketWindow{w}.leftUntil(endNs)
	}
	return w.def.Remaining(w.usage, w.nowNs)
}

// waitNs is how long a cost must wait if nobody else asks; limit.Never.
func (w viewWindow) waitNs(cost uint32) int64 {
	if w.def.Unlimited {
		return 0
	}
	u := w.usageBounded()
	pass := w.def.Check(&u, w.asOf(), cost)
	switch {
	case pass == limit.Never:
		return limit.Never
	case w.isBucket() && pass == w.spendBy():
		pass = bucketWindow{w}.passBefore(cost)
	}
	return pass - w.nowNs
}

func (w viewWindow) standing() quota.Standing {
	u := w.usageBounded()
	reset := w.def.Reset(&u, w.asOf())
	used := w.def.Count(w.usage, w.asOf())
	if w.isBucket() && !w.def.Unlimited {
		// left does not have what the bucket gains until its spendBy, and Count does. But only Count says what it owes.
		used = max(used, w.def.Burst-w.left(w.nowNs))
	}
	return quota.Standing{Used: used, ResetNs: max(reset-w.nowNs, 0)}
}

// endNs is when a fixed window or a counter's period ends, if it counts units now.
func (w viewWindow) endNs() int64 {
	switch {
	case w.def.Algorithm != limit.FixedWindowPerKey:
		return w.def.End(w.nowNs)
	case w.usage.EndNs == 0 || w.usage.Slides:
		return w.nowNs + w.def.PeriodNs
	}
	return w.usage.EndNs
}

// add counts units that may be spent until spendBy, and says how. A block counts none.
func (w viewWindow) add(units uint32, spendBy int64) (how CountedIn) {
	switch {
	case w.def.Algorithm == limit.Block:
		return how
	case quota.ForgetsByUnit(w.def):
		return w.addAtEnd(units, spendBy)
	}
	isOpen := w.usage.EndNs != 0
	w.def.Add(w.usage, w.nowNs, units)
	how.WindowEndNs = w.usage.EndNs
	how.Opened = !isOpen && how.WindowEndNs != 0 && w.def.Algorithm == limit.FixedWindowPerKey
	return how
}

// addAtEnd counts units in a log or a bucket, at the end of their lease. If it has counted others that may be spent
// until later, it counts these then too: a usage's instants never go back.
func (w viewWindow) addAtEnd(units uint32, spendBy int64) CountedIn {
	spendBy = max(spendBy, w.spendBy())
	if w.isBucket() {
		w.def.Roll(w.usage, w.spendBy(), spendBy)
		w.setSpendBy(spendBy)
	}
	w.def.Add(w.usage, spendBy, units)
	return CountedIn{CountedAtNs: spendBy}
}

// CountedIn is how one window has counted units.
type CountedIn struct {
	CountedAtNs int64 // a log or a bucket: when, see addAtEnd; 0 = another window, at HowCounted.AtNs
	WindowEndNs int64 // a window whose usage has its end: that end; 0 = another one
	Opened      bool  // they opened the key's window
}

// refund takes out units that were counted at atNs, or as how says. It reports whether it does not count them any more.
func (w viewWindow) refund(units uint32, atNs int64, how CountedIn) bool {
	if w.usage.Used == saturated || w.usage.Prev == saturated { // it may have counted only some of them
		return false
	}
	if how.CountedAtNs != 0 {
		atNs = how.CountedAtNs
	}
	after := limit.Usage{EndNs: how.WindowEndNs} // Refund reads no more of it than the end
	return w.def.Refund(w.usage, &after, atNs, w.asOf(), units, how.Opened)
}

// bucketWindow is a window that is a token bucket. It gains tokens all the time, and counts leased units at the end of
// their lease, when it has gained more. For example, it was leased from at 0 s until 10 s, and is asked at 4 s:
//
//	0 s ──────── 4 s ───────────────▶ 10 s
//	the lease    nowNs                spendBy: the lease ends, and the usage has what remains then
//	begins        └─ the bucket gains ─┘ tokens, which nobody may spend before: leftUntil takes them off
type bucketWindow struct{ viewWindow }

// leftUntil is left: the bucket counts the units at endNs, or at its spendBy if that is later. Until then it gains
// tokens, but the units may be spent before it has them. So its gain is taken away from what remains then. For example,
// with a gain of 10 tokens a second:
//
//	nowNs ───── 1 s, gains 10 ─────▶ spendBy
//	4 are left                       14 remain
func (b bucketWindow) leftUntil(endNs int64) uint32 {
	u, spendBy := *b.usage, max(endNs, b.spendBy())
	b.def.Roll(&u, b.spendBy(), spendBy)
	return minus(b.def.Remaining(&u, spendBy), b.gained(spendBy-b.nowNs))
}

// passBefore is when a cost passes that a bucket has at its spendBy. Before that, leftUntil takes off what the bucket
// gains until then. So the cost passes once this is no more than what remains beside it. For example, a cost of 6 in
// the picture above leftUntil:
//
//	nowNs ── 200 ms, gains 2 ──▶ passes ──── 800 ms, gains 8 ────▶ spendBy
//	4 are left                   6 are left                        14 remain: 8 beside the cost
func (b bucketWindow) passBefore(cost uint32) int64 {
	if cost == 0 {
		return b.nowNs
	}
	spendBy := b.spendBy()
	beside := b.def.Remaining(b.usage, spendBy) - cost
	hi, lo := bits.Mul64(uint64(beside), uint64(b.def.PeriodNs))
	gains := uint64(b.def.Limit) // in a period: not 0, or the cost would never pass
	if hi >= gains {
		return b.nowNs
	}
	gainNs, _ := bits.Div64(hi, lo, gains)
	return spendBy - int64(min(gainNs, uint64(spendBy-b.nowNs)))
}

// gained is how many tokens a bucket gains in ns, rounded up.
func (b bucketWindow) gained(ns int64) uint32 {
	hi, lo := bits.Mul64(uint64(b.def.Limit), uint64(ns))
	lo, carry := bits.Add64(lo, uint64(b.def.PeriodNs-1), 0)
	hi += carry
	if hi >= uint64(b.def.PeriodNs) {
		return saturated
	}
	n, _ := bits.Div64(hi, lo, uint64(b.def.PeriodNs))
	return uint32(min(n, saturated))
}

// Debt. Units are granted only if they are left. But other units have been used already, or an operator has them
// counted: these count whatever is left. A window that has counted more than its limit owes the rest:
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
//	               limit, and the rest goes on into the next. usageBounded bounds that rest. Without Pays, it ends with
//	               its window.
//	counter, log   They forget a debt as they forget all units.
//
// By Record.ExpiryNs all debts have ended: TestNothingCountsFromExpiryOn.

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
		units = bucketWindow{w}.boundLack(units, 2*uint64(w.def.Burst))
	}
	w.add(units, w.nowNs)
}

// charge counts what held units have cost.
func (w viewWindow) charge(units uint32) {
	if w.isBucket() {
		b := bucketWindow{w}
		most := max(b.gained(limit.MaxPeriodNs), limit.AddSaturating(w.def.Burst, w.def.Burst))
		units = b.boundLack(units, uint64(most))
	}
	w.add(units, w.nowNs)
}

// boundLack returns how many of the units a bucket may count: until it lacks so many tokens, the most that it may.
func (b bucketWindow) boundLack(units uint32, most uint64) uint32 {
	lacks := uint64(b.def.Count(b.usage, b.spendBy()))
	return uint32(min(uint64(units), most-min(lacks, most)))
}

// chargeSilent charges units that silent workers held. No definition asks, so the windows are as the Record has them.
// These lack two things that charge needs:
//
//	how many units a log remembers          it remembers as many as any log can
//	when the key's window with jitter ends  an open one keeps its end, and another one ends after a whole period,
//	                                        because the key's own ends no later
func (r *Record) chargeSilent(units uint32) {
	if units == 0 {
		return
	}
	for i, def := range r.Windows {
		if def.Algorithm == limit.SlidingWindowLog {
			def.Units = limit.MaxLog
		}
		w := viewWindow{r.windowWith(&def, i)}
		end := w.usage.EndNs
		w.charge(units)
		if def.Algorithm == limit.FixedWindow && def.Jitter > 0 {
			w.usage.EndNs = cmp.Or(end, w.nowNs+def.PeriodNs)
		}
	}
}

// usageBounded is the usage as all questions see it that look beyond the end of the window. It differs only of a fixed
// window with Pays: that counts at most what it pays within the longest period of a policy, or two limits if that is
// more. Only roll stores it, when the window has ended: until then, requests with larger limits may use more of it.
func (w recordWindow) usageBounded() limit.Usage {
	u := *w.usage
	if w.def.Pays > 0 {
		most := uint64(w.def.Pays) * uint64(min(max(limit.MaxPeriodNs/w.def.PeriodNs, 2), saturated))
		u.Used = uint32(min(uint64(u.Used), most))
	}
	return u
}

// hasEnded reports whether a fixed window that has counted something ends at now or before.
func (w recordWindow) hasEnded(now int64) bool {
	if end := w.usage.EndNs; end != 0 {
		return end <= now
	}
	return w.def.End(w.nowNs) <= now
}
