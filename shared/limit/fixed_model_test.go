package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// event is one counted hit.
type event struct {
	at   int64
	cost uint32
}

// fixedReference keeps the hits of the open window.
type fixedReference struct {
	window Window
	hits   []fixedHit
	last   int64
	endNs  int64 // FixedWindowPerKey: end of the open window, 0 = none is open
	slides bool
}

type fixedHit struct {
	event
	opened bool  // the key's window
	endNs  int64 // of the window, as the hit left it
}

// gridStart is floor((at − offset) / W) · W + offset, or by the calendar.
func gridStart(w Window, at int64) *big.Int {
	if w.Algorithm == Calendar {
		start, _ := civilSpan(w, at)
		return big.NewInt(start)
	}
	offset, period := big.NewInt(w.OffsetNs), big.NewInt(w.PeriodNs)
	k := new(big.Int).Div(new(big.Int).Sub(big.NewInt(at), offset), period) // rounds down: the period is positive
	return k.Add(k.Mul(k, period), offset)
}

func (m *fixedReference) define(w Window) { m.window = w }

func (m *fixedReference) isPerKey() bool { return m.window.Algorithm == FixedWindowPerKey }

// live are the hits of the window that holds at.
func (m *fixedReference) live(at int64) (hits []fixedHit) {
	for _, h := range m.hits {
		if m.isPerKey() && at < m.endNs || !m.isPerKey() && gridStart(m.window, h.at).Cmp(gridStart(m.window, at)) == 0 {
			hits = append(hits, h)
		}
	}
	return hits
}

// advance closes the window that has ended at at.
func (m *fixedReference) advance(at int64) {
	m.hits = m.live(at)
	m.last = at
	if len(m.hits) == 0 {
		m.close()
	}
}

// close forgets all hits and the window that they opened.
func (m *fixedReference) close() {
	m.hits = nil
	m.endNs = 0
	m.slides = false
}

func (m *fixedReference) used(at int64) *big.Int {
	sum := new(big.Int)
	for _, h := range m.live(at) {
		sum.Add(sum, number(int64(h.cost)))
	}
	return number(atMost(sum, math.MaxUint32))
}

func (m *fixedReference) reset(at int64) *big.Int {
	switch {
	case m.window.Algorithm == Calendar:
		_, end := civilSpan(m.window, at)
		return number(end)
	case !m.isPerKey():
		return plus(gridStart(m.window, at), number(m.window.PeriodNs))
	}
	return number(max(at, m.endNs))
}

// expiry is 0 if all hits were of 0 units, unless their window has an end of its own in the
// usage.
func (m *fixedReference) expiry() *big.Int {
	hasEnd := m.isPerKey() || m.window.Jitter > 0
	if len(m.live(m.last)) == 0 || !hasEnd && m.used(m.last).Sign() == 0 {
		return number(0)
	}
	return m.reset(m.last)
}

func (m *fixedReference) add(at int64, cost uint32) {
	m.advance(at)
	h := fixedHit{event: event{at, cost}, opened: m.isPerKey() && m.endNs == 0}
	if m.isPerKey() && (h.opened || m.slides || m.window.Elastic) {
		m.endNs, m.slides = at+m.window.PeriodNs, m.slides || m.window.Elastic
	}
	h.endNs = m.reset(at).Int64()
	m.hits = append(m.hits, h)
}

func (m *fixedReference) set(at int64, n uint32) {
	m.close()
	m.add(at, n)
}

// refund drops the hit. A window that has lost the hit that opened it slides from now on.
func (m *fixedReference) refund(hit, at int64, cost uint32, opened bool) bool {
	m.advance(at)
	i := slices.IndexFunc(m.hits, func(h fixedHit) bool { return h.event == event{hit, cost} && h.opened == opened })
	if i < 0 {
		return true
	}
	if m.hits[i].endNs <= at {
		return !m.slides
	}
	m.hits = slices.Delete(m.hits, i, i+1)
	switch {
	case m.used(at).Sign() == 0:
		m.close()
	case opened:
		m.endNs, m.slides = at+m.window.PeriodNs, true
	}
	return true
}

var periods = []int64{
	MinPeriodNs, MinPeriodNs + 1, 7 * ms, second, 60 * second, 3600 * second, day, 7 * day, MaxPeriodNs,
}

var limits = []uint32{0, 1, 2, 3, 5, 10, 1000, math.MaxUint32 - 1, math.MaxUint32}

func randomWindow(r *rand.Rand) Window {
	w := Window{Algorithm: FixedWindow, Limit: limits[r.IntN(len(limits))], PeriodNs: periods[r.IntN(len(periods))]}
	if r.IntN(3) == 0 {
		w.PeriodNs = MinPeriodNs + r.Int64N(MaxPeriodNs-MinPeriodNs+1)
	}
	switch r.IntN(5) {
	case 0:
		units := w.Limit
		w = NewCalendar([]int64{1, 2, 3, 4, 6, 12}[r.IntN(6)], r.Int64N(MaxOffsetNs), r.Int64N(EastNs+WestNs)-WestNs)
		w.Limit = units
	case 1, 2:
		w.Algorithm, w.Elastic = FixedWindowPerKey, r.IntN(3) == 0
	case 3:
		w.OffsetNs = r.Int64N(w.PeriodNs)
		if r.IntN(2) == 0 {
			w.Jitter = uint8(1 + r.IntN(100))
			w = w.Shifted(w.KeyShift(r.Uint64()))
		}
	}
	return w
}

func randomCost(r *rand.Rand, units uint32) uint32 {
	switch r.IntN(8) {
	case 0:
		return units
	case 1:
		return units/2 + uint32(r.IntN(2))
	case 2:
		return r.Uint32()
	case 3:
		return 1 + uint32(r.IntN(3))
	default:
		return 1
	}
}

// step moves a clock: mostly ahead by less than a window, sometimes to the edge of
// one, far ahead, or back.
func step(r *rand.Rand, w Window, now int64) int64 {
	switch r.IntN(10) {
	case 0:
		now -= r.Int64N(w.PeriodNs/2 + 1)
	case 1:
		now = w.End(now) - int64(r.IntN(2))
	case 2:
		now += w.PeriodNs - int64(r.IntN(2))
	case 3:
		now += r.Int64N(3*w.PeriodNs) + 1
	case 4, 5:
	default:
		now += r.Int64N(w.PeriodNs/4 + 1)
	}
	return max(now, 0)
}

// A fixed window of each kind: aligned, with an offset or jitter, by the calendar, of a key's own.
func TestTheFixedWindowsAgainstTheReference(t *testing.T) {
	for seed := range uint64(6) {
		runCourses(t, 34+seed, "fixed windows", randomWindow, relimitAny,
			func(w Window) reference { return &fixedReference{window: w} })
	}
}

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
				start := time.Date(1969, 1, 1, 0, 0, 0, 0, zone)
				for start.Year() <= 2260 {
					from := start.Add(offset).UnixNano()
					start = start.AddDate(0, int(months), 0)
					to := start.Add(offset).UnixNano()
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
