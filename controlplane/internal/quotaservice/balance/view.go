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
	block.def.Deny(&block.usage.Usage, block.usage.AsOfNs)
	return block.usage.EndNs != before
}
