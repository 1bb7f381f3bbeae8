package limit

// start returns the start of the aligned window that holds now.
func (w *Window) start(now int64) int64 {
	since := now - w.OffsetNs
	in := since % w.PeriodNs
	if in < 0 {
		in += w.PeriodNs
	}
	return now - in
}

// End returns the end of the aligned window that holds now. That instant
// itself belongs to the next window.
func (w *Window) End(now int64) int64 { return w.start(now) + w.PeriodNs }

// OnGrid reports whether the window counts in aligned windows that are the same
// for all keys. What was counted within one of them counts in all of it.
func (w *Window) OnGrid() bool {
	return w.Algorithm == SlidingWindowCounter || w.Algorithm == FixedWindow && w.Jitter == 0
}

// endOf is when the fixed window ends in which u, written at last, counts. Each
// key of a jittered window has a grid of its own, so its usage says.
func (w *Window) endOf(u *Usage, last int64) int64 {
	if w.Algorithm == FixedWindowPerKey || w.Jitter > 0 {
		return u.EndNs
	}
	return w.End(last)
}
