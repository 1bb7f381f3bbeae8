package balance

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Usage is what one window of a Record has counted.
//
// Units that are leased may be spent until their lease ends. A fixed window or a counter counts them at once, because
// no lease outlives it. A log or a bucket forgets units one after the other, so it counts them at the end of their
// lease. A log has that instant of each unit. A bucket has one number for all, so its whole usage stands for it.
type Usage struct {
	limit.Usage
	AsOfNs int64 // the instant for which it stands: the Record's NowNs, or later in a bucket of which units are leased
}

// spendByNs is until when the units that it has counted may be spent: AsOfNs, or later in a log.
func (u *Usage) spendByNs() int64 {
	if n := len(u.Log); n > 0 { // in order
		return max(u.AsOfNs, u.Log[n-1])
	}
	return u.AsOfNs
}

// A window of a key has two types, because only a definition knows the limits:
//
//	recordWindow  as a Record has it. It may lack limits. It moves to a later instant, and counts
//	viewWindow    as a View has it, with the limits of a definition. It is also asked, at nowNs
//
// def has the arithmetic of package limit. Its methods get the usage with its AsOfNs, which is nowNs but in a bucket.

// recordWindow is one window of a key as a Record has it.
type recordWindow struct {
	def   *limit.Window // see Record for what it may lack
	usage *Usage
	nowNs int64
}

func (r *Record) window(i int) recordWindow {
	return recordWindow{def: &r.Windows[i], usage: &r.Usages[i], nowNs: r.NowNs}
}

// roll brings the window to now. A bucket that stands for a later instant already stays as it is.
func (w recordWindow) roll(now int64) {
	if w.def.Pays > 0 && w.hasEnded(now) {
		w.usage.Usage = w.usageOnceEnded()
	}
	w.rollUsage(max(now, w.usage.AsOfNs))
}

// rollUsage has the usage stand for a later instant.
func (w recordWindow) rollUsage(at int64) {
	w.def.Roll(&w.usage.Usage, w.usage.AsOfNs, at)
	w.usage.AsOfNs = at
}

// setBack moves the window back to now, because the clock was set back.
func (w recordWindow) setBack(now int64) {
	w.def.SetBack(&w.usage.Usage, w.nowNs, now)
	w.usage.AsOfNs += now - w.nowNs
}

// usageOnceEnded is the usage as it will be stored once its window has ended. So whatever looks beyond that end goes by
// it. It differs only of a fixed window with Pays: that counts at most what it pays within the longest period of a
// policy, or two limits if that is more. Until its end, requests with larger limits may use more of it.
func (w recordWindow) usageOnceEnded() limit.Usage {
	u := w.usage.Usage
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

// expiryNs is from when the window counts nothing.
func (w recordWindow) expiryNs() int64 {
	u := w.usageOnceEnded()
	return max(w.usage.AsOfNs, w.def.Expiry(&u, w.usage.AsOfNs))
}

func (w recordWindow) isBucket() bool { return w.def.Algorithm == limit.TokenBucket }

// add counts units that may be spent until spendBy, and says how. A block counts none.
func (w recordWindow) add(units uint32, spendBy int64) (how CountedIn) {
	switch {
	case w.def.Algorithm == limit.Block:
		return how
	case quota.ForgetsByUnit(w.def):
		return w.addAtEnd(units, spendBy)
	}
	isOpen := w.usage.EndNs != 0
	w.def.Add(&w.usage.Usage, w.usage.AsOfNs, units)
	how.WindowEndNs = w.usage.EndNs
	how.Opened = !isOpen && how.WindowEndNs != 0 && w.def.Algorithm == limit.FixedWindowPerKey
	return how
}

// addAtEnd counts units in a log or a bucket, at the end of their lease. If it has counted others that may be spent
// until later, it counts these then too: a usage's instants never go back.
func (w recordWindow) addAtEnd(units uint32, spendBy int64) CountedIn {
	atNs := max(spendBy, w.usage.spendByNs())
	if w.isBucket() {
		w.rollUsage(atNs)
	}
	w.def.Add(&w.usage.Usage, atNs, units)
	return CountedIn{CountedAtNs: atNs}
}

// CountedIn is how one window has counted units.
type CountedIn struct {
	CountedAtNs int64 // a log or a bucket: when, see addAtEnd; 0 = another window, at HowCounted.AtNs
	WindowEndNs int64 // a window whose usage has its end: that end; 0 = another one
	Opened      bool  // they opened the key's window
}

// refund takes out units that were counted at atNs, or as how says. isOut says that it does not count them any more.
// changed says that it did before: its window has not ended since.
func (w recordWindow) refund(units uint32, atNs int64, how CountedIn) (isOut, changed bool) {
	if w.usage.Used == saturated || w.usage.Prev == saturated { // it may have counted only some of them
		return false, false
	}
	if how.CountedAtNs != 0 {
		atNs = how.CountedAtNs
	}
	after := limit.Usage{EndNs: how.WindowEndNs} // Refund reads no more of it than the end
	before := w.usage.Usage
	isOut = w.def.Refund(&w.usage.Usage, &after, atNs, w.usage.AsOfNs, units, how.Opened)
	return isOut, !countsTheSame(&before, &w.usage.Usage)
}

// countsTheSame compares what a window counts before and after a refund. A refund only takes units out of a log.
func countsTheSame(before, after *limit.Usage) bool {
	return before.Used == after.Used && before.Prev == after.Prev && len(before.Log) == len(after.Log) &&
		before.EndNs == after.EndNs && before.Slides == after.Slides && before.Tokens == after.Tokens
}

// gained is how many tokens a bucket gains in ns, rounded up.
func (w recordWindow) gained(ns int64) uint32 {
	hi, lo := bits.Mul64(uint64(w.def.Limit), uint64(ns))
	lo, carry := bits.Add64(lo, uint64(w.def.PeriodNs-1), 0)
	hi += carry
	if hi >= uint64(w.def.PeriodNs) {
		return saturated
	}
	n, _ := bits.Div64(hi, lo, uint64(w.def.PeriodNs))
	return uint32(min(n, saturated))
}

// viewWindow is one window of a key as a View has it.
type viewWindow struct{ recordWindow }

// unused returns how many units are unused if they may be spent until spendBy: nowNs, or later because a lease is
// offered. Until then, all windows but a bucket only forget: what they count at any instant of it, they count now, also
// units of a log whose instant is later. So what is unused now holds for these.
func (w viewWindow) unused(spendBy int64) uint32 {
	switch {
	case w.def.Unlimited, w.def.Algorithm == limit.Block && w.usage.EndNs == 0:
		return saturated
	case w.def.Algorithm == limit.Block:
		return 0
	case w.isBucket():
		return w.bucketUnused(spendBy)
	}
	return w.def.Remaining(&w.usage.Usage, w.usage.AsOfNs)
}

// waitNs is how long a cost must wait if nobody else asks; limit.Never.
func (w viewWindow) waitNs(cost uint32) int64 {
	if w.def.Unlimited {
		return 0
	}
	u := w.usageOnceEnded()
	pass := w.def.Check(&u, w.usage.AsOfNs, cost)
	switch {
	case pass == limit.Never:
		return limit.Never
	case w.isBucket() && cost <= w.def.Remaining(&u, w.usage.AsOfNs): // then it may pass before
		pass = w.bucketPass(cost)
	}
	return pass - w.nowNs
}

func (w viewWindow) standing() quota.Standing {
	u := w.usageOnceEnded()
	reset := w.def.Reset(&u, w.usage.AsOfNs)
	used := w.def.Count(&w.usage.Usage, w.usage.AsOfNs)
	if w.isBucket() && !w.def.Unlimited {
		// unused does not have what the bucket gains until AsOfNs, and Count does. But only Count says what it owes.
		used = max(used, w.def.Burst-w.unused(w.nowNs))
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

// A token bucket gains tokens all the time, and counts leased units at the end of their lease, when it has gained more.
// For example, units of it are leased from 0 s to 10 s, and it is asked at 4 s:
//
//	0 s ──────── 4 s ───────────────▶ 10 s
//	the lease    nowNs                AsOfNs: the lease ends, and the usage has what remains then
//	begins        └─ the bucket gains ─┘ tokens, which nobody may spend before: bucketUnused takes them off

// bucketUnused is unused of a bucket. It would count the units at spendBy, or at its AsOfNs if that is later. It gains
// tokens until then, but the units may be spent before it has them. So its gain is taken away from what remains then.
// For example, with a gain of 10 tokens a second:
//
//	nowNs ───── 1 s, gains 10 ─────▶ AsOfNs
//	4 are unused                     14 remain
func (w viewWindow) bucketUnused(spendBy int64) uint32 {
	u, atNs := w.usage.Usage, max(spendBy, w.usage.AsOfNs)
	w.def.Roll(&u, w.usage.AsOfNs, atNs)
	return minus(w.def.Remaining(&u, atNs), w.gained(atNs-w.nowNs))
}

// bucketPass is when a cost passes that a bucket has at its AsOfNs. Before that, bucketUnused takes off what the bucket
// gains until then. So the cost passes once this is no more than what remains beside it. For example, a cost of 6 in
// the picture above bucketUnused:
//
//	nowNs ── 200 ms, gains 2 ──▶ passes ──── 800 ms, gains 8 ────▶ AsOfNs
//	4 are unused                 6 are unused                      14 remain: 8 beside the cost
func (w viewWindow) bucketPass(cost uint32) int64 {
	if cost == 0 {
		return w.nowNs
	}
	asOf := w.usage.AsOfNs
	beside := w.def.Remaining(&w.usage.Usage, asOf) - cost
	hi, lo := bits.Mul64(uint64(beside), uint64(w.def.PeriodNs))
	gains := uint64(w.def.Limit) // in a period: not 0, or the cost would never pass
	if hi >= gains {
		return w.nowNs
	}
	gainNs, _ := bits.Div64(hi, lo, gains)
	return asOf - int64(min(gainNs, uint64(asOf-w.nowNs)))
}
