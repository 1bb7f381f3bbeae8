package balance

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// View is a Record as one definition sees it, at the Record's NowNs. What it counts is in the Record. Record.ArrangeFor
// makes it, and it holds until the Record is arranged for another definition: by then, its windows are elsewhere there.
// action.Operation.Decide has one for as long as it carries its action out.
type View struct {
	record *Record
	// Windows are the definition's, shifted for the key. The Record has the same ones first, in this order. A
	// limit.Block is the last one.
	Windows []limit.Window
	// HoldLimit is the definition's limit.Concurrency: how many units may be held at once, and for how long a silent
	// worker holds its own. nil = the definition holds none, and no Note is for it.
	HoldLimit *limit.Window
	// StartingForNs is for how much longer the store is starting: it has lost what workers hold. They report it, and
	// nothing is granted to hold. 0 = it knows what they hold.
	StartingForNs int64
}

// NowNs is when it is asked, and counts.
func (v *View) NowNs() int64 { return v.record.NowNs }

// Held is how many units of the key workers hold.
func (v *View) Held() uint32 { return v.record.Holders.Held() }

func (v *View) window(i int) viewWindow {
	w := viewWindow{v.record.window(i)}
	w.def = &v.Windows[i]
	return w
}

// What is left. For example, 60 of 100 a minute and 990 of 1000 an hour are used, and workers hold 4:
//
//	who asks                                    by              finds
//	a hit: how many units may it take?          LeftBesideHeld  6: the hour has 10, of which 4 are held
//	a lease: how many until it ends?            leftUntil       10, with what is held. A bucket has fewer
//	a denial: are only held units in the way?   Left            10: a block begins only if these are too few
//	a call: does this window have some left?    LeftIn          40 in the minute, 10 in the hour
//	a proxy: how does the key stand?            Standing        60 and 990 are used. What is held counts in neither
//
// Workers may hold units of the key by a policy of theirs, even if the definition itself holds none.

// LeftBesideHeld returns how many units a hit may take, to be spent at once.
func (v *View) LeftBesideHeld() uint32 { return minus(v.Left(), v.Held()) }

// Left returns how many units all windows have left for spending at once. What is held is left, too.
func (v *View) Left() uint32 { return v.leftUntil(v.record.NowNs) }

// LeftIn returns how many units one window has left for spending at once.
func (v *View) LeftIn(i int) uint32 { return v.window(i).left() }

// leftUntil is Left for spending until endNs.
func (v *View) leftUntil(endNs int64) uint32 {
	left := uint32(saturated)
	for i := range v.Windows {
		left = min(left, v.window(i).leftUntil(endNs))
	}
	return left
}

// WaitNs returns how long a denied cost must wait if nobody else asks; limit.Never.
func (v *View) WaitNs(cost uint32) (wait int64) {
	for i := range v.Windows {
		ns := v.window(i).waitNs(cost)
		if ns == limit.Never {
			return limit.Never
		}
		wait = max(wait, ns)
	}
	return wait
}

// Standing returns how a window stands.
func (v *View) Standing(i int) quota.Standing { return v.window(i).standing() }

// FirstEndNs is when the first of the windows ends that count units now; MaxInt64 if they only forget unit by unit.
func (v *View) FirstEndNs() int64 {
	first := int64(math.MaxInt64)
	for i := range v.Windows {
		if w := &v.Windows[i]; !quota.ForgetsByUnit(w) && w.Algorithm != limit.Block {
			first = min(first, v.window(i).endNs())
		}
	}
	return first
}

// How long leases last, and how much is granted ahead, if few units are left. The times for when enough are left are
// in times.go of package quota: a proxy needs these, too.
const (
	// leastAhead is how many units must be left for some to be granted ahead.
	leastAhead = 16
	// aheadShare makes a quarter: at most that part of what is left is granted ahead.
	aheadShare = 4
	// scarce makes a quarter, too: if less than that part of a limit is left, leases are short.
	scarce = 4
	// shortLease is how long a lease lasts once less than a quarter of the limit is left. A log or bucket whose
	// leases would be shorter leases nothing.
	shortLease = 100 * ms
	// soonShare makes a tenth: units that are not leased may be spent for at most that part of the shortest period.
	soonShare = 10
	// slackShare makes a twentieth: the slack is at most that part of the shortest period.
	slackShare = 20
)

// SlackNs is how much later than a decision was made the store may apply it.
func SlackNs(windows []limit.Window) int64 { return min(5*ms, quota.Shortest(windows)/slackShare) }

// Offer is what View.Offer finds.
type Offer struct {
	Verdict   Verdict
	Units     uint32 // if it Passes: what waits and what is granted ahead
	SpendByNs int64  // if it Passes: the end of their lease; NowNs if they are not leased
}

// Verdict says whether a part passes.
type Verdict uint8

// The verdicts.
const (
	Passes Verdict = iota
	TooFew         // too few units are left for it, or the key is blocked
	NotYet         // a lease would end within SlackNs with its window: decide again at FirstEndNs
)

// Offer finds what a part can be granted: the units that wait, as far as they are left, and ahead of need at most a
// quarter of the rest. It counts nothing: Take does. If the cost does not fit with a lease and fits without one, the
// units are granted without a lease.
//
// For example, 3 units of a limit of 1000 a minute are asked for, and 600 ahead, 40 s before the minute ends:
//
//	left  granted                   may be spent
//	400   3 + 397/4 = 102           for 10 s, less SlackNs
//	200   3 + 197/4 = 52            for 100 ms, less SlackNs, because less than a quarter is left
//	15    3, because 15 are few     for 100 ms, less SlackNs
//	2     2, or none if the first request costs 3
func (v *View) Offer(lease uint32, p *quota.Part) Offer {
	now, firstEndNs := v.record.NowNs, v.FirstEndNs()
	endNs := v.leaseEndNs(lease, firstEndNs)
	if endNs > now && firstEndNs-now <= SlackNs(v.Windows) {
		return Offer{Verdict: NotYet}
	}
	left := minus(v.leftUntil(endNs), v.Held())
	if left < p.Cost && endNs > now {
		endNs = now
		left = v.LeftBesideHeld()
	}
	if left < p.Cost || v.IsBlocked() {
		return Offer{Verdict: TooFew}
	}
	d := Offer{Verdict: Passes, Units: min(left, max(p.Waiting, p.Cost)), SpendByNs: endNs}
	if endNs == now || left < leastAhead {
		return d
	}
	ahead := min(v.aheadUntil(endNs, p.Ahead), (left-d.Units)/aheadShare)
	if lease != quota.LeaseAuto {
		ahead = min(ahead, lease)
	}
	d.Units += ahead
	return d
}

// leaseEndNs is when a lease that began now would end: at firstEndNs, or before. It is now if nothing is leased.
func (v *View) leaseEndNs(lease uint32, firstEndNs int64) int64 {
	now := v.record.NowNs
	if lease == quota.LeaseOff {
		return now
	}
	end := min(now+quota.MaxLeaseNs, firstEndNs)
	for i := range v.Windows {
		w := &v.Windows[i]
		switch {
		case w.Elastic: // each hit moves its end, and so would each unit that is spent later
			return now
		case quota.ForgetsByUnit(w):
			leaseNs := quota.LeaseNs(w)
			if leaseNs < shortLease {
				return now
			}
			end = min(end, now+leaseNs)
		case !w.Unlimited && uint64(v.LeftIn(i))*scarce < uint64(w.Limit):
			end = min(end, now+shortLease)
		}
	}
	return end
}

// aheadUntil is what a proxy expects to need until a lease ends. The proxy says what it needs in quota.HorizonNs: of
// a lease that ends much sooner, because a window does, it needs less.
func (v *View) aheadUntil(endNs int64, ahead uint32) uint32 {
	rest, horizon := endNs-v.record.NowNs, quota.HorizonNs(v.Windows)
	if rest >= min(shortLease, horizon) {
		return ahead
	}
	return uint32(uint64(ahead) * uint64(rest) / uint64(horizon))
}

// ValidNs returns how long units may be spent, counted from the moment before they were asked for; spendBy is the
// Offer's. No unit is spent in a later window than it was counted in, even if it is not leased: the worker
// asked before the store applies the decision, and the store applies it at most SlackNs after NowNs.
//
// What is not leased may be spent for 1 ns at least, so that an answer without delay is in time. If one comes too late,
// the worker returns the units and asks again at once, until it gets units of the next window. They may deny others
// meanwhile: the exact limiter would, too, because all these requests came before the window's end.
func (v *View) ValidNs(spendBy int64) int64 {
	now, slack := v.record.NowNs, SlackNs(v.Windows)
	if spendBy > now { // which is no later than the first window's end
		return spendBy - now - slack
	}
	left := max(v.FirstEndNs()-now-slack, 1)
	return min(shortLease, quota.Shortest(v.Windows)/soonShare, left)
}

// Take counts units in all windows that may be spent until spendBy. It returns what Return and Undo need.
func (v *View) Take(units uint32, spendBy int64) HowCounted {
	c := HowCounted{AtNs: v.record.NowNs, SpendByNs: spendBy, generation: v.record.Generation}
	for i := range v.Windows {
		how := v.window(i).add(units, spendBy)
		if how == (CountedIn{}) {
			continue
		}
		if c.Windows == nil {
			c.Windows = make([]CountedIn, len(v.Windows))
		}
		c.Windows[i] = how
	}
	return c
}

// HowCounted says how a View has counted units, and in which record. Another View of the same windows can take them
// back.
type HowCounted struct {
	AtNs       int64       // when
	SpendByNs  int64       // until when they may be spent: the end of their lease, or AtNs
	Windows    []CountedIn // by window; nil = all are zero
	generation uint64      // of the record
}

// IsLeased reports whether the units may be spent later than they were counted.
func (c *HowCounted) IsLeased() bool { return c.SpendByNs > c.AtNs }

// Return takes units that a proxy has returned out of the windows that counted them, if these are still open. It
// returns how many no window counts any more: all, or 0.
//
// It does not change a record that was made anew since: what was counted then is gone already.
func (v *View) Return(c *HowCounted, units uint32) (uncounted uint32, changed bool) {
	return v.refund(c, units, false)
}

// Undo is Return of units that nobody got, so no request was admitted: a window that they opened closes again.
func (v *View) Undo(c *HowCounted, units uint32) (uncounted uint32, changed bool) {
	return v.refund(c, units, true)
}

func (v *View) refund(c *HowCounted, units uint32, closes bool) (uncounted uint32, changed bool) {
	if c.generation != v.record.Generation {
		return 0, false
	}
	areOut := true
	for i := range v.Windows {
		var how CountedIn
		if c.Windows != nil {
			how = c.Windows[i]
		}
		how.Opened = how.Opened && closes
		isOut, hasChanged := v.window(i).refund(units, c.AtNs, how)
		areOut, changed = areOut && isOut, changed || hasChanged
	}
	if areOut {
		uncounted = units
	}
	return uncounted, changed
}

// EndReturns has no Return and no Undo change what was counted before.
func (v *View) EndReturns() { v.record.Renew() }

// Clear has a window forget what it has counted.
func (v *View) Clear(i int) {
	v.record.Usages[i] = Usage{AsOfNs: v.record.NowNs} // what is leased of a bucket counts no more, either
}

// block returns the definition's limit.Block, if it has one.
func (v *View) block() (block viewWindow, ok bool) {
	last := len(v.Windows) - 1
	if last < 0 || v.Windows[last].Algorithm != limit.Block {
		return block, false
	}
	return v.window(last), true
}

// IsBlocked reports whether the key is blocked.
func (v *View) IsBlocked() bool {
	block, ok := v.block()
	return ok && block.usage.EndNs != 0
}

// BeginBlock counts a denied hit in the key's block, if there is one: see limit.Window.Deny. It reports whether the
// block has begun, or lasts longer.
func (v *View) BeginBlock() (changed bool) {
	block, ok := v.block()
	if !ok {
		return false
	}
	before := block.usage.EndNs
	block.def.Deny(&block.usage.Usage, block.nowNs)
	return block.usage.EndNs != before
}
