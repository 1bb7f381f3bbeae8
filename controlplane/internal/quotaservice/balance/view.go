package balance

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// View is a State as one definition sees it, at the State's NowNs. What it counts is in the State.
type View struct {
	State *State
	// Windows are the definition's, shifted for the key. The State has the same ones first, in this order. A
	// limit.Block is the last one.
	Windows []limit.Window
	// HoldLimit is the definition's limit.Concurrency: how many units may be held at once, and for how long a silent
	// worker holds its own. nil = the definition holds none, and nothing of hold.go is for it.
	HoldLimit *limit.Window
	// IsStarting says that the store has lost what workers hold: they report it, and nothing is granted to hold.
	IsStarting bool
}

func (v *View) window(i int) viewWindow { return viewWindow{v.State.windowWith(&v.Windows[i], i)} }

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
func (v *View) LeftBesideHeld() uint32 { return minus(v.Left(), v.State.Holders.Held()) }

// Left returns how many units all windows have left for spending at once. What is held is left, too.
func (v *View) Left() uint32 { return v.leftUntil(v.State.NowNs) }

// LeftIn returns how many units one window has left for spending at once.
func (v *View) LeftIn(i int) uint32 { return v.window(i).left(v.State.NowNs) }

// leftUntil is Left for spending until endNs.
func (v *View) leftUntil(endNs int64) uint32 {
	left := uint32(saturated)
	for i := range v.Windows {
		left = min(left, v.window(i).left(endNs))
	}
	return left
}

// WaitNs returns how long a denied cost must wait if nobody else asks; limit.Never.
func (v *View) WaitNs(cost uint32) (wait int64) {
	for i := range v.Windows {
		own := v.window(i).waitNs(cost)
		if own == limit.Never {
			return limit.Never
		}
		wait = max(wait, own)
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
	block.def.Deny(block.usage, block.nowNs)
	return block.usage.EndNs != before
}

// Add counts units in all windows, whatever is left. They count as spent at once.
func (v *View) Add(units uint32) {
	for i := range v.Windows {
		v.AddIn(i, units)
	}
}

// AddIn counts units in one window, as Add does in all.
func (v *View) AddIn(i int, units uint32) { v.window(i).add(units, v.State.NowNs) }

// Clear has a window forget what it has counted.
func (v *View) Clear(i int) {
	w := v.window(i)
	*w.usage = limit.Usage{}
	if w.isBucket() {
		w.setSpendBy(w.nowNs) // what is leased of it counts no more
	}
}

// Take counts units in all windows that may be spent until spendBy. It returns what Return and Undo need.
func (v *View) Take(units uint32, spendBy int64) HowCounted {
	c := HowCounted{AtNs: v.State.NowNs, SpendByNs: spendBy}
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

// HowCounted says how a View has counted units. Another View of the same windows can take them back.
type HowCounted struct {
	AtNs      int64       // when
	SpendByNs int64       // until when they may be spent: the end of their lease, or AtNs
	Windows   []CountedIn // by window; nil = all are zero
}

// IsLeased reports whether the units may be spent later than they were counted.
func (c *HowCounted) IsLeased() bool { return c.SpendByNs > c.AtNs }

// Return takes units that a proxy has returned out of the windows that counted them, if these are still open. It
// reports whether no window counts the units any more.
func (v *View) Return(c *HowCounted, units uint32) (ok bool) { return v.takeBack(c, units, false) }

// Undo is Return of units that nobody got, so no request was admitted: a window that they opened closes again.
func (v *View) Undo(c *HowCounted, units uint32) (ok bool) { return v.takeBack(c, units, true) }

func (v *View) takeBack(c *HowCounted, units uint32, closes bool) (ok bool) {
	ok = true
	for i := range v.Windows {
		var how CountedIn
		if c.Windows != nil {
			how = c.Windows[i]
		}
		how.Opened = how.Opened && closes
		ok = v.window(i).refund(units, c.AtNs, how) && ok
	}
	return ok
}
