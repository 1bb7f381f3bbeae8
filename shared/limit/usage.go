package limit

import "math/bits"

// Usage is what one window has counted for one key, as of the instant at which
// its record was last written. The zero value has counted nothing.
type Usage struct {
	Used   uint32
	EndNs  int64 // FixedWindowPerKey: the open window ends here; 0 = none is open
	Slides bool  // FixedWindowPerKey: every counted hit moves the end to now+W
}

// Start returns the start of the aligned window that holds now.
func (w Window) Start(now int64) int64 {
	since := now - w.OffsetNs
	in := since % w.PeriodNs
	if in < 0 {
		in += w.PeriodNs
	}
	return now - in
}

// End returns the end of the aligned window that holds now. That instant
// itself belongs to the next window.
func (w Window) End(now int64) int64 { return w.Start(now) + w.PeriodNs }

// Roll returns u, written at last, as it stands at now: what lay in a window
// that has ended counts no more. now must not be before last.
func (w Window) Roll(u Usage, last, now int64) Usage {
	if w.endOf(u, last) <= now {
		return Usage{}
	}
	return u
}

// Expiry returns the instant from which u, written at last, counts nothing.
func (w Window) Expiry(u Usage, last int64) int64 {
	if u.Used == 0 && u.EndNs == 0 {
		return 0
	}
	return w.endOf(u, last)
}

func (w Window) endOf(u Usage, last int64) int64 {
	if w.Algorithm == FixedWindowPerKey {
		return u.EndNs
	}
	return w.End(last)
}

// Check returns the earliest instant at which a hit of cost units would pass
// if nobody else came: now itself when it passes at once, Never when it cannot.
// u must have been rolled to now.
func (w Window) Check(u Usage, now int64, cost uint32) int64 {
	switch {
	case w.Limit == 0 || cost > w.Limit:
		return Never
	case u.Used <= w.Limit-cost:
		return now
	default:
		return w.endOf(u, now)
	}
}

// Add returns u with cost more units counted at now, saturating. u must have
// been rolled to now. It does not check the limit.
func (w Window) Add(u Usage, now int64, cost uint32) Usage {
	u.Used = addSaturating(u.Used, cost)
	if w.Algorithm == FixedWindowPerKey && (u.EndNs == 0 || u.Slides) {
		u.EndNs = now + w.PeriodNs
	}
	return u
}

// Remaining returns how many units still fit, at least 0.
func (w Window) Remaining(u Usage) uint32 {
	if u.Used >= w.Limit {
		return 0
	}
	return w.Limit - u.Used
}

// Reset returns when the window's count starts anew: the end of the aligned
// window, or of the key's open one (now when none is open). u must have been
// rolled to now.
func (w Window) Reset(u Usage, now int64) int64 {
	if w.Algorithm == FixedWindowPerKey && u.EndNs == 0 {
		return now
	}
	return w.endOf(u, now)
}

// TakeBack returns u without a hit of cost units that had left the window as
// after at the instant at, and whether none of its charge is left behind: it
// was taken back, or went with its window. opened says that the hit had opened
// the key's window. A window in which nothing is left closes; one that lost
// its opener slides from now on, because its true opening is not known any
// more: any hit counted so far may be the first one left, so it ends a whole
// period from now. u must have been rolled to now.
func (w Window) TakeBack(u, after Usage, at, now int64, cost uint32, opened bool) (Usage, bool) {
	if w.endOf(after, at) <= now {
		return u, !u.Slides // a window that slid on still counts the hit
	}
	if w.Algorithm == FixedWindowPerKey && u.EndNs != after.EndNs && !u.Slides {
		return u, false
	}
	if u.Used < cost {
		return u, false
	}
	u.Used -= cost
	switch {
	case u.Used == 0:
		return Usage{}, true
	case opened:
		u.EndNs, u.Slides = now+w.PeriodNs, true
	}
	return u, true
}

// Join returns the floor f after a record that held v was removed: no key that
// starts from the result gets more than the removed one had left. Both must
// have been rolled to the same instant.
func (w Window) Join(f, v Usage) Usage {
	return Usage{Used: max(f.Used, v.Used), EndNs: max(f.EndNs, v.EndNs)}
}

// Inherit returns the usage with which a key without a record starts at now
// when its bucket's floor is f, rolled to now. A window whose true opening is
// not known slides.
func (w Window) Inherit(f Usage, now int64) Usage {
	if w.Algorithm == FixedWindowPerKey && f.EndNs != 0 {
		return Usage{Used: f.Used, EndNs: now + w.PeriodNs, Slides: true}
	}
	return f
}

// Shift returns u with its instants moved by delta nanoseconds.
func (w Window) Shift(u Usage, delta int64) Usage {
	if u.EndNs != 0 {
		u.EndNs += delta
	}
	return u
}

// Load is the part of a limit that is used, as a fraction to compare.
type Load struct{ Used, Limit uint32 }

// Load returns how much of the limit u uses.
func (w Window) Load(u Usage) Load { return Load{u.Used, max(w.Limit, 1)} }

// Less reports whether l is the smaller fraction.
func (l Load) Less(m Load) bool {
	return uint64(l.Used)*uint64(m.Limit) < uint64(m.Used)*uint64(l.Limit)
}

func addSaturating(a, b uint32) uint32 {
	sum, carry := bits.Add32(a, b, 0)
	if carry != 0 {
		return 1<<32 - 1
	}
	return sum
}
