package limit

import (
	"flag"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// event is one counted hit of the model.
type event struct {
	at   int64
	cost uint32
}

// model is the plainest limiter of one fixed window: a list of counted hits and
// unbounded arithmetic. It shares no code with Window.
type model struct {
	window Window
	last   int64
	events []event
	openNs int64 // FixedWindowPerKey: when the open window was opened
	open   bool
	slides bool
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

// advance drops the events of windows that have ended at now.
func (m *model) advance(now int64) int64 {
	now = max(now, m.last)
	if m.window.Algorithm == FixedWindowPerKey {
		if m.open && now-m.openNs >= m.window.PeriodNs {
			m.open, m.slides, m.events = false, false, nil
		}
		return now
	}
	start := gridStart(m.window, now)
	var kept []event
	for _, e := range m.events {
		if gridStart(m.window, e.at).Cmp(start) == 0 {
			kept = append(kept, e)
		}
	}
	m.events = kept
	return now
}

func (m *model) used() uint32 {
	sum := new(big.Int)
	for _, e := range m.events {
		sum.Add(sum, new(big.Int).SetUint64(uint64(e.cost)))
	}
	if sum.BitLen() > 32 {
		return math.MaxUint32
	}
	return uint32(sum.Uint64())
}

func (m *model) end(now int64) int64 {
	if m.window.Algorithm == FixedWindowPerKey {
		return m.openNs + m.window.PeriodNs
	}
	if m.window.Algorithm == Calendar {
		_, end := civilSpan(m.window, now)
		return end
	}
	start := gridStart(m.window, now)
	return start.Add(start, big.NewInt(m.window.PeriodNs)).Int64()
}

func (m *model) check(now int64, cost uint32) int64 {
	room := new(big.Int).SetUint64(uint64(m.window.Limit))
	room.Sub(room, new(big.Int).SetUint64(uint64(cost)))
	switch {
	case m.window.Limit == 0 || room.Sign() < 0:
		return Never
	case new(big.Int).SetUint64(uint64(m.used())).Cmp(room) <= 0:
		return now
	default:
		return m.end(now)
	}
}

func (m *model) add(now int64, cost uint32) (opened bool) {
	m.last = now
	if m.window.Algorithm == FixedWindowPerKey && (!m.open || m.slides || m.window.Elastic) {
		opened = !m.open
		m.open, m.openNs, m.slides = true, now, m.slides || m.window.Elastic
	}
	m.events = append(m.events, event{now, cost})
	return opened
}

// refund drops the event with that index.
func (m *model) refund(now int64, index int, opened bool) {
	m.last = now
	m.events = slices.Delete(slices.Clone(m.events), index, index+1)
	switch {
	case m.used() == 0:
		m.open, m.slides, m.events = false, false, nil
	case opened && m.window.Algorithm == FixedWindowPerKey:
		m.openNs, m.slides = now, true
	}
}

var periods = []int64{MinPeriodNs, MinPeriodNs + 1, 7 * ms, second, 60 * second, 3600 * second, day, 7 * day, MaxPeriodNs}

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

var (
	modelSequences = flag.Int("model-sequences", 20_000, "random sequences of 45 steps against the model")
	modelSeed      = flag.Uint64("model-seed", 3, "seed of these sequences")
)

// TestAgainstTheModel uses a Window as a record does and compares every result with
// the model's.
func TestAgainstTheModel(t *testing.T) {
	const steps = 45
	r := rand.New(rand.NewPCG(*modelSeed, 14))
	sequences := *modelSequences
	if testing.Short() {
		sequences /= 10
	}
	compared := 0
	for range sequences {
		w := randomWindow(r)
		m := &model{window: w}
		var u Usage
		last, now := int64(0), r.Int64N(60*365*day)
		unchecked := r.IntN(6) == 0 // counts without a check, into saturation
		for range steps {
			now = step(r, w, now)
			if r.IntN(12) == 0 {
				w.Limit = limits[r.IntN(len(limits))]
				m.window.Limit = w.Limit
			}
			cost := randomCost(r, w.Limit)
			at := max(now, last)
			v := rolled(w, u, last, at)
			written := *m
			require.Equal(t, at, m.advance(now))
			compared++
			used := m.used()
			if v.Used != used || w.Remaining(&v, at) != uint32(max(int64(w.Limit)-int64(used), 0)) {
				t.Fatalf("%+v at %d: %+v, the model has used %d", w, at, v, used)
			}
			pass := w.Check(&v, at, cost)
			if want := m.check(at, cost); pass != want {
				t.Fatalf("%+v at %d: %+v: a hit of %d passes at %d, in the model at %d", w, at, v, cost, pass, want)
			}
			if pass > at && pass < now { // nothing may pass before the caller's now
				t.Fatalf("%+v at %d: passes at %d, before %d", w, at, pass, now)
			}
			if (pass != at && !unchecked) || cost == 0 {
				*m = written // a denial writes nothing
				continue
			}
			wasOpen := v.EndNs != 0
			u, last = added(w, v, at, cost), at
			if opened := m.add(at, cost); opened != (w.Algorithm == FixedWindowPerKey && !wasOpen) {
				t.Fatalf("%+v at %d: opened %v", w, at, opened)
			}
			if end := w.Reset(&u, at); end != m.end(at) || w.Expiry(&u, at) != end {
				t.Fatalf("%+v at %d: %+v ends at %d, in the model at %d", w, at, u, end, m.end(at))
			}
			if !unchecked && r.IntN(4) == 0 {
				u, last = refundBoth(t, r, w, m, u, at, cost, !wasOpen)
			}
		}
	}
	require.Equal(t, sequences*steps, compared)
	t.Logf("%d random steps of fixed windows compared with a plain model", compared)
}

// refundBoth refunds the hit just counted, in the usage and in the model, at once
// or after another hit.
func refundBoth(t *testing.T, r *rand.Rand, w Window, m *model, after Usage, at int64, cost uint32, opened bool) (Usage, int64) {
	u, last := after, at
	index := len(m.events) - 1
	now := at + r.Int64N(w.PeriodNs)/int64(1+r.IntN(4))
	if r.IntN(2) == 0 {
		v := rolled(w, u, last, now)
		written := *m
		m.advance(now)
		if w.Check(&v, now, 1) == now {
			if len(m.events) == 0 {
				index = -1
			}
			u, last = added(w, v, now, 1), now
			m.add(now, 1)
		} else {
			*m = written
		}
		now += r.Int64N(w.PeriodNs)
	}
	v := rolled(w, u, last, now)
	if m.advance(now); len(m.events) == 0 {
		index = -1
	}
	gone := index < 0 || w.endOf(&after, at) <= now
	stays := gone && index >= 0 && v.Slides
	if gone {
		m.last = now
	} else {
		m.refund(now, index, opened)
	}
	u, taken := refunded(w, v, after, at, now, cost, opened && w.Algorithm == FixedWindowPerKey)
	if taken == stays {
		t.Fatalf("%+v at %d: refund of %d counted at %d from %+v: complete %v, in the model %v", w, now, cost, at, v, taken, !stays)
	}
	if u.Used != m.used() || (w.Algorithm == FixedWindowPerKey && (u.EndNs != 0) != m.open) || (m.open && (u.EndNs != m.end(now) || u.Slides != m.slides)) {
		t.Fatalf("%+v at %d: %+v after a refund of %d from %+v, the model has %d, %+v", w, now, u, cost, v, m.used(), m)
	}
	return u, now
}

func FuzzStart(f *testing.F) {
	f.Add(int64(0), second, int64(0))
	f.Add(int64(-1), MinPeriodNs, MinPeriodNs-1)
	f.Add(int64(math.MaxInt64/2), MaxPeriodNs, int64(5))
	f.Fuzz(func(t *testing.T, now, period, offset int64) {
		if period < MinPeriodNs || period > MaxPeriodNs || offset < 0 || offset >= period ||
			now < math.MinInt64/2 || now > math.MaxInt64/2 {
			return
		}
		w := aligned(1, period, offset)
		require.Equal(t, gridStart(w, now).Int64(), w.start(now))
		require.True(t, w.start(now) <= now && now < w.End(now))
	})
}
