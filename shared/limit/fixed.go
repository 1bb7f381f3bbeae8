package limit

// start returns the start of the aligned window that holds now, if all are equally long.
func (w *Window) start(now int64) int64 {
	since := now - w.OffsetNs
	in := since % w.PeriodNs
	if in < 0 {
		in += w.PeriodNs
	}
	return now - in
}

// Span returns the start and the end of the aligned window that holds now. The end
// itself belongs to the next window.
func (w *Window) Span(now int64) (start, end int64) {
	if w.Algorithm == Calendar {
		return w.calendar(now)
	}
	start = w.start(now)
	return start, start + w.PeriodNs
}

// End returns the end of the aligned window that holds now.
func (w *Window) End(now int64) int64 {
	_, end := w.Span(now)
	return end
}

// LengthNs returns how long the window is that holds now.
func (w *Window) LengthNs(now int64) int64 {
	start, end := w.Span(now)
	return end - start
}

// OnGrid reports whether the window is aligned alike for all keys. Usage does
// not change between two instants of the same aligned window.
func (w *Window) OnGrid() bool {
	return w.Algorithm == SlidingWindowCounter || w.Algorithm == Calendar || w.Algorithm == FixedWindow && w.Jitter == 0
}

// endOf is the end of the fixed window that u, written at last, counts in. A
// jittered window ends at another time for each key, so the usage holds its end.
func (w *Window) endOf(u *Usage, last int64) int64 {
	if w.Algorithm == FixedWindowPerKey || w.Jitter > 0 {
		return u.EndNs
	}
	return w.End(last)
}
