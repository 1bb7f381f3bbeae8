package limit

// IsFixed reports whether w counts in one window after another.
func (w *Window) IsFixed() bool {
	return w.Algorithm == FixedWindow || w.Algorithm == FixedWindowPerKey || w.Algorithm == Calendar
}

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

// LengthNs returns how long the window is that holds now; what only holds has no length.
func (w *Window) LengthNs(now int64) int64 {
	if w.Algorithm == Concurrency {
		return 0
	}
	start, end := w.Span(now)
	return end - start
}

// OnGrid reports whether the window is aligned alike for all keys. Usage does
// not change between two instants of the same aligned window.
func (w *Window) OnGrid() bool {
	return w.Algorithm == SlidingWindowCounter || w.Algorithm == Calendar || w.Algorithm == FixedWindow && w.Jitter == 0
}

// endOf is the end of the fixed window that u, written at last, counts in. A
// jittered window and a Block end at another time for each key, so the usage holds its end.
func (w *Window) endOf(u *Usage, last int64) int64 {
	if w.Algorithm == FixedWindowPerKey || w.Algorithm == Block || w.Jitter > 0 {
		return u.EndNs
	}
	return w.End(last)
}

// rollFixed brings u, the usage of a fixed window that was written at last, to now. What
// it has used beyond what each window pays goes on into the next.
func (w *Window) rollFixed(u *Usage, last, now int64) {
	end := w.endOf(u, last)
	switch {
	case end > now:
	case w.Pays == 0 || u.Used <= w.Pays:
		*u = Usage{}
	case w.Algorithm == Calendar:
		for ; end <= now && u.Used > 0; end = w.End(end) {
			u.Used -= min(u.Used, w.Pays)
		}
	default:
		ended := (now-end)/w.PeriodNs + 1
		if paid := uint64(ended) * uint64(w.Pays); uint64(ended) > uint64(u.Used) || paid >= uint64(u.Used) {
			*u = Usage{}
			return
		}
		u.Used -= uint32(ended) * w.Pays
		if u.EndNs != 0 {
			u.EndNs = end + ended*w.PeriodNs
		}
	}
}

// paid is when u, the usage of a fixed window as of now, has at most room units if nothing
// more is counted.
func (w *Window) paid(u *Usage, now int64, room uint32) int64 {
	end := w.endOf(u, now)
	if w.Pays == 0 || u.Used <= room+w.Pays || room+w.Pays < room {
		return end
	}
	switch more := int64((u.Used - room - 1) / w.Pays); { // windows after this one
	case more > maxWait/w.PeriodNs:
		return after(end, maxWait)
	case w.Algorithm != Calendar:
		return after(end, more*w.PeriodNs)
	default:
		for ; more > 0; more-- {
			end = w.End(end)
		}
		return end
	}
}

const dayNs int64 = 86_400 * 1_000_000_000

const (
	// MonthNs stands for each month in the PeriodNs of a Calendar: 31 days, so that
	// no window is longer than its PeriodNs.
	MonthNs = 31 * dayNs
	// MaxOffsetNs is the shortest month, which the offset of a Calendar is below.
	MaxOffsetNs = 28 * dayNs
	// EastNs is how far a clock is ahead of UTC at most.
	EastNs = 14 * dayNs / 24
	// WestNs is how far a clock is behind UTC at most.
	WestNs = 12 * dayNs / 24
)

// NewCalendar returns a window of 1, 2, 3, 4, 6 or 12 whole months, of which one
// starts with each year. They start offset after the month does on a clock that is
// utcOffset ahead of UTC; both are in nanoseconds.
func NewCalendar(months, offset, utcOffset int64) Window {
	return Window{Algorithm: Calendar, PeriodNs: months * MonthNs, OffsetNs: offset - utcOffset + EastNs}
}

// Months returns how many months a Calendar has, and 0 for other windows.
func (w *Window) Months() int64 {
	if w.Algorithm != Calendar {
		return 0
	}
	return w.PeriodNs / MonthNs
}

// ShiftNs returns how long after a month of UTC a Calendar starts; below 0, before it.
func (w *Window) ShiftNs() int64 { return w.OffsetNs - EastNs }

// InRange reports whether the period and the offset are ones that a window may have.
func (w *Window) InRange() bool {
	if w.Algorithm == Calendar {
		months := w.Months()
		return months > 0 && 12%months == 0 && w.PeriodNs == months*MonthNs &&
			w.OffsetNs >= 0 && w.OffsetNs < EastNs+WestNs+MaxOffsetNs
	}
	return w.PeriodNs >= MinPeriodNs && w.PeriodNs <= MaxPeriodNs && w.OffsetNs >= 0 && w.OffsetNs < w.PeriodNs
}

// calendar is Span of a Calendar.
func (w *Window) calendar(now int64) (start, end int64) {
	const averageNs = 2_629_746_000_000_000 // of a month: 146,097 days have 4800 of them
	months, since := w.Months(), now-w.ShiftNs()
	first := since / averageNs / months * months // the window's first month, or one near it
	for monthStart(first) > since {
		first -= months
	}
	for monthStart(first+months) <= since {
		first += months
	}
	return monthStart(first) + w.ShiftNs(), monthStart(first+months) + w.ShiftNs()
}

// monthStart returns when a month starts in UTC. It counts months from January 1970
// and computes in years from March of the year 0 on, so that a leap day is the last
// day of its year.
func monthStart(month int64) int64 {
	month += 1970*12 - 2
	year, month := month/12, month%12
	days := 365*year + year/4 - year/100 + year/400 + (153*month+2)/5
	return (days - 719_468) * dayNs // which is 1970-01-01
}
