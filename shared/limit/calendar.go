package limit

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
