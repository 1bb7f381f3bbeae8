package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// civilSpan is Span of a Calendar by the time package.
func civilSpan(w Window, at int64) (start, end int64) {
	months := int(w.PeriodNs / MonthNs)
	shift := time.Duration(w.OffsetNs - EastNs)
	local := time.Unix(0, at).UTC().Add(-shift)
	first := time.Date(local.Year(), local.Month()-time.Month((int(local.Month())-1)%months), 1, 0, 0, 0, 0, time.UTC)
	return first.Add(shift).UnixNano(), first.AddDate(0, months, 0).Add(shift).UnixNano()
}

// TestCalendarAgainstTheTimePackage goes through all windows from 1969 to 2260.
func TestCalendarAgainstTheTimePackage(t *testing.T) {
	for _, months := range []int64{1, 2, 3, 4, 6, 12} {
		for _, offset := range []time.Duration{0, 1, 14 * 24 * time.Hour, 28*24*time.Hour - 1} {
			for _, east := range []time.Duration{-12 * time.Hour, 0, 5*time.Hour + 45*time.Minute, 14 * time.Hour} {
				w := NewCalendar(months, int64(offset), int64(east))
				require.True(t, w.InRange())
				require.Equal(t, months, w.Months())
				require.Equal(t, int64(offset-east), w.ShiftNs())
				zone := time.FixedZone("", int(east/time.Second))
				for start := time.Date(1969, 1, 1, 0, 0, 0, 0, zone); start.Year() <= 2260; start = start.AddDate(0, int(months), 0) {
					from := start.Add(offset).UnixNano()
					to := start.AddDate(0, int(months), 0).Add(offset).UnixNano()
					for _, at := range []int64{from, from + 1, from + (to-from)/2, to - 1} {
						gotStart, gotEnd := w.Span(at)
						if gotStart != from || gotEnd != to || w.LengthNs(at) != to-from || to-from > w.PeriodNs {
							t.Fatalf("%d months, offset %s, UTC offset %s, at %d: %d to %d, not %d to %d",
								months, offset, east, at, gotStart, gotEnd, from, to)
						}
					}
				}
			}
		}
	}
}

func TestInRange(t *testing.T) {
	calendar := func(months, offset int64) Window {
		return Window{Algorithm: Calendar, PeriodNs: months * MonthNs, OffsetNs: offset}
	}
	for name, c := range map[string]struct {
		window Window
		want   bool
	}{
		"shortest":                {aligned(1, MinPeriodNs, 0), true},
		"longest":                 {aligned(1, MaxPeriodNs, MaxPeriodNs-1), true},
		"too short":               {aligned(1, MinPeriodNs-1, 0), false},
		"too long":                {aligned(1, MaxPeriodNs+1, 0), false},
		"offset of a period":      {aligned(1, second, second), false},
		"negative offset":         {aligned(1, second, -1), false},
		"no month":                {calendar(0, 0), false},
		"five months":             {calendar(5, 0), false},
		"24 months":               {calendar(24, 0), false},
		"minus a month":           {calendar(-1, 0), false},
		"no whole month":          {Window{Algorithm: Calendar, PeriodNs: MonthNs + 1}, false},
		"least shift":             {calendar(1, 0), true},
		"below the least shift":   {calendar(1, -1), false},
		"greatest shift":          {calendar(12, EastNs+WestNs+MaxOffsetNs-1), true},
		"above the greatest":      {calendar(12, EastNs+WestNs+MaxOffsetNs), false},
		"months of another count": {Window{Algorithm: SlidingWindowLog, PeriodNs: 12 * MonthNs}, false},
	} {
		require.Equal(t, c.want, c.window.InRange(), name)
	}
}
