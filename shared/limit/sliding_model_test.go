package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// logReference counts the events of the last period.
type logReference struct {
	window Window
	events []event
}

func (m *logReference) define(w Window) { m.window = w }

func (m *logReference) used(at int64) *big.Int {
	sum := new(big.Int)
	for _, e := range m.events {
		if e.at > at-m.window.PeriodNs {
			sum.Add(sum, number(int64(e.cost)))
		}
	}
	return sum
}

func (m *logReference) expiry() *big.Int {
	newest := int64(0)
	for _, e := range m.events {
		if e.cost > 0 {
			newest = max(newest, e.at+m.window.PeriodNs)
		}
	}
	return number(newest)
}

func (m *logReference) reset(at int64) *big.Int {
	if end := m.expiry(); end.Cmp(number(at)) > 0 {
		return end
	}
	return number(at)
}

// add keeps the newest units, as many as are remembered.
func (m *logReference) add(at int64, cost uint32) {
	var kept []event
	for _, e := range append(m.events, event{at, cost}) {
		if e.at > at-m.window.PeriodNs {
			kept = append(kept, e)
		}
	}
	m.events = kept
	for m.used(at).Cmp(number(int64(m.window.Units))) > 0 {
		over := minus(m.used(at), number(int64(m.window.Units)))
		if over.Cmp(number(int64(m.events[0].cost))) < 0 {
			m.events[0].cost -= uint32(over.Uint64())
			return
		}
		m.events = m.events[1:]
	}
}

func (m *logReference) set(at int64, n uint32) { m.events = nil; m.add(at, n) }

func (m *logReference) refund(hit, at int64, cost uint32, _ bool) bool {
	if at-hit >= m.window.PeriodNs {
		m.add(at, 0)
		return true
	}
	m.add(at, 0)
	for i := range m.events {
		if m.events[i].at == hit {
			n := min(cost, m.events[i].cost)
			m.events[i].cost -= n
			cost -= n
		}
	}
	return cost == 0
}

// randomLog returns a log with a limit of at most its units; see Max.
func randomLog(r *rand.Rand) Window {
	units := []uint16{0, 1, 2, 3, 5, 10, 100, MaxLog}[r.IntN(8)]
	w := Window{Algorithm: SlidingWindowLog, PeriodNs: randomPeriod(r), Units: units}
	relimitLog(r, &w)
	return w
}

func relimitLog(r *rand.Rand, w *Window) { w.Limit = uint32(r.IntN(int(w.Units) + 1)) }

func TestTheLogAgainstTheReference(t *testing.T) {
	runCourses(t, 31, "sliding_window_log", randomLog, relimitLog,
		func(w Window) reference { return &logReference{window: w} })
}

// counterReference weights the events of the previous period.
type counterReference struct {
	window Window
	events []countedEvent
	last   int64
}

type countedEvent struct {
	at    int64
	units int64 // negative for a refund
}

func (m *counterReference) define(w Window) { m.window = w }

// period is the index of the aligned period that holds at.
func (m *counterReference) period(at int64) *big.Int {
	return new(big.Int).Div(number(at), number(m.window.PeriodNs))
}

// sum is the number of units that were counted in a period.
func (m *counterReference) sum(period *big.Int) *big.Int {
	sum := new(big.Int)
	for _, e := range m.events {
		if m.period(e.at).Cmp(period) == 0 {
			sum.Add(sum, number(e.units))
		}
	}
	return number(atMost(sum, math.MaxUint32))
}

func (m *counterReference) used(at int64) *big.Int {
	now := m.period(at)
	left := minus(number(m.window.PeriodNs), new(big.Int).Mod(number(at), number(m.window.PeriodNs)))
	before := m.sum(minus(now, number(1)))
	before.Mul(before, left)
	return plus(before.Div(before, number(m.window.PeriodNs)), m.sum(now))
}

// end is the end of the n-th period, counted from the one that holds at as the
// first.
func (m *counterReference) end(at, n int64) *big.Int {
	end := plus(m.period(at), number(n))
	return end.Mul(end, number(m.window.PeriodNs))
}

func (m *counterReference) reset(at int64) *big.Int {
	if m.sum(m.period(at)).Sign() > 0 {
		return m.end(at, 2)
	}
	return m.end(at, 1)
}

func (m *counterReference) expiry() *big.Int {
	now := m.period(m.last)
	if m.sum(now).Sign() > 0 || m.sum(minus(now, number(1))).Sign() > 0 {
		return m.reset(m.last)
	}
	return number(0)
}

func (m *counterReference) add(at int64, cost uint32) {
	m.last = at
	m.events = append(m.events, countedEvent{at, int64(cost)})
}

func (m *counterReference) set(at int64, n uint32) { m.events = nil; m.add(at, n) }

func (m *counterReference) refund(hit, at int64, cost uint32, _ bool) bool {
	m.last = at
	m.events = append(m.events, countedEvent{hit, -int64(cost)})
	return true
}

func randomCounter(r *rand.Rand) Window {
	w := Window{Algorithm: SlidingWindowCounter, PeriodNs: randomPeriod(r)}
	relimitAny(r, &w)
	return w
}

func relimitAny(r *rand.Rand, w *Window) {
	w.Limit = limits[r.IntN(len(limits))]
	if r.IntN(3) == 0 {
		w.Limit = uint32(r.IntN(300))
	}
}

func TestTheCounterAgainstTheReference(t *testing.T) {
	runCourses(t, 32, "sliding_window_counter", randomCounter, relimitAny,
		func(w Window) reference { return &counterReference{window: w} })
}
