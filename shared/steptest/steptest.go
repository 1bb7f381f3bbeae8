// Package steptest judges limiters whose clock is set forward and back, by
// milliseconds to years.
//
// Its invariant: it knows of a limiter only what it admits. It is for tests.
package steptest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms
	day          = 86_400 * second

	// graceNs is how far ahead of the clock a record stays where it is.
	graceNs = 10 * second
	// calmNs is the longest pause of a calm client.
	calmNs = second
)

// Clock is a clock that is set now and then.
type Clock struct {
	Ns        int64 // what it shows, since the Unix epoch
	ElapsedNs int64 // what a clock shows that nobody sets

	passed int64 // how far the clock has gone forward in all, also where it was set
	backs  int   // how often it was set back
}

func (c *Clock) move(elapsed, step int64) {
	c.Ns += elapsed + step
	c.ElapsedNs += elapsed
	c.passed += elapsed + max(step, 0)
	if step < 0 {
		c.backs++
	}
}

// Limiter is what is judged.
type Limiter struct {
	// Hit asks for units of a key, from 0 on.
	Hit func(key int, cost uint32) (allowed bool)
	// OfKey returns a jittered window on the key's own grid.
	OfKey func(w limit.Window, key int) limit.Window
}

// Make returns a limiter for that many live keys with these windows.
type Make func(windows []limit.Window, capacity uint32, clock *Clock) Limiter

// Judge plays random histories, in which the clock steps, to limiters of every
// algorithm, alone and layered; with -short a tenth of them.
func Judge(t *testing.T, histories int, limiter Make) {
	t.Helper()
	if testing.Short() {
		histories /= 10
	}
	for seed := range uint64(histories) {
		for name, play := range map[string]func(*history){"over": (*history).greedy, "calm": (*history).calm} {
			random := rand.New(rand.NewPCG(seed, 0x57e9)) //nolint:gosec // it is to be the same again
			h := &history{random: random, make: limiter, clock: &Clock{}}
			h.clock.move(0, 2_000_000_000*second+h.random.Int64N(400*day))
			play(h)
			require.Empty(t, h.found, "%s, seed %d: %+v%s", name, seed, h.windows, h.trace.String())
		}
	}
}

// history is one random history of a limiter.
type history struct {
	random  *rand.Rand
	make    Make
	clock   *Clock
	windows []limit.Window
	limiter Limiter
	back    int64 // by how much the clock was last set forward
	trace   strings.Builder
	found   string // what is wrong
}

func (h *history) note(format string, v ...any) { fmt.Fprintf(&h.trace, "\n"+format, v...) }

// pass lets time pass, and now and then sets the clock.
func (h *history) pass(elapsed int64, steps bool) (stepped bool) {
	step := int64(0)
	if steps {
		step = int64(math.Exp(h.random.Float64() * math.Log(float64(3*365*day/ms))))
		step *= ms
		switch h.random.IntN(4) {
		case 0:
			h.back = step
		case 1:
			step, h.back = -h.back, 0
		default:
			step = -step
		}
		if h.clock.Ns+step < 1_000_000_000*second {
			step = -step
		}
		h.note("the clock is set by %.3f s", float64(step)/1e9)
	}
	h.clock.move(elapsed, step)
	return step != 0
}

// define makes a limiter of one to three random windows.
func (h *history) define(capacity uint32, periods []int64, limits func(w *limit.Window)) {
	for range 1 + h.random.IntN(3) {
		w := limit.Window{
			Algorithm: limit.Counting[h.random.IntN(len(limit.Counting))],
			PeriodNs:  periods[h.random.IntN(len(periods))],
		}
		switch w.Algorithm {
		case limit.FixedWindow:
			if h.random.IntN(2) == 0 {
				w.OffsetNs = h.random.Int64N(w.PeriodNs)
			} else {
				w.Jitter = uint8(h.random.IntN(100))
			}
		case limit.Calendar:
			w = limit.NewCalendar([]int64{1, 2, 3, 4, 6, 12}[h.random.IntN(6)], h.random.Int64N(28*day), 0)
		case limit.FixedWindowPerKey:
			w.Elastic = h.random.IntN(3) == 0
		case limit.SlidingWindowLog:
			w.PeriodNs = min(w.PeriodNs, 60*second) // it remembers few units
		default:
		}
		limits(&w)
		if !slices.ContainsFunc(h.windows, w.Same) {
			h.windows = append(h.windows, w)
		}
	}
	slices.SortFunc(h.windows, limit.Window.Compare)
	h.limiter = h.make(h.windows, capacity, h.clock)
}

// calm plays a client that stays below every window's rate: it is denied for at most
// graceNs after a step. Aligned windows are longer by what the clock is set back
// in them, so the rate leaves room for three such steps.
func (h *history) calm() {
	h.define(8, []int64{second, 7 * second, 60 * second, 3600 * second, day, 365 * day}, func(w *limit.Window) {
		w.Limit = uint32(5*w.PeriodNs/calmNs + 2)
		w.Burst = 2 + h.random.Uint32N(10)
		w.Elastic = false // it stays open as long as somebody comes
		if w.Algorithm == limit.SlidingWindowLog {
			w.Units = uint16(w.Limit)
		}
	})
	steps, since := 0, int64(math.MinInt64/2) // when the clock was last set, or the client first denied after that
	denied := false
	for i := range 240 {
		step := i%60 > 20 && steps < 3 && h.random.IntN(20) == 0
		if h.pass(calmNs-h.random.Int64N(second/10), step) {
			steps++
			since, denied = h.clock.ElapsedNs, false
		}
		allowed := h.limiter.Hit(0, 1)
		h.note("%9.3f s, the clock shows %d: %v", float64(h.clock.ElapsedNs)/1e9, h.clock.Ns, allowed)
		if !allowed && !denied && h.clock.ElapsedNs-since <= graceNs {
			since, denied = h.clock.ElapsedNs, true
		}
		if !allowed && h.clock.ElapsedNs-since > graceNs {
			h.found = "a client below every window's rate is denied for more than 10 s after a step"
			return
		}
		if h.random.IntN(8) == 0 {
			h.limiter.Hit(1+h.random.IntN(3), 1+h.random.Uint32N(3))
		}
	}
}

// admission is a hit that was admitted.
type admission struct {
	passed int64 // see Clock
	starts []int // by window: how often an aligned one has started, by the clock
	units  int64
	ahead  int64 // how far the clock was behind an earlier reading, at most, since the key's last admission
	backs  int   // see Clock
}

// greedy plays clients that take what they get, more of them than find room: no
// window admits more than its limit, but for the aligned ones that start once more
// because the clock was set back over their start.
func (h *history) greedy() {
	periods := []int64{second, 2 * second, 20 * second, 60 * second, 3600 * second, day}
	h.define(1+h.random.Uint32N(4), periods, func(w *limit.Window) {
		w.Limit = 1 + h.random.Uint32N(6)
		w.Burst, w.Units = 1+h.random.Uint32N(6), uint16(w.Limit)
	})
	keys := 1 + h.random.IntN(5)
	starts := make([][]start, keys)
	for key := range starts {
		starts[key] = make([]start, len(h.windows))
	}
	hits := make([][]admission, keys)
	ahead := make([]int64, keys)
	var readings []int64
	for range 250 {
		period := h.windows[h.random.IntN(len(h.windows))].PeriodNs
		h.pass(h.random.Int64N(1+period/[]int64{3, 30, 1000}[h.random.IntN(3)]), h.random.IntN(15) == 0)
		for key := range starts {
			for i, w := range h.windows {
				if w.Jitter > 0 {
					w = h.limiter.OfKey(w, key)
				}
				starts[key][i].look(w, h.clock.Ns)
			}
		}
		readings = append(readings, h.clock.Ns)
		for _, reading := range readings {
			if behind := reading - h.clock.Ns; behind <= graceNs {
				for key := range ahead {
					ahead[key] = max(ahead[key], behind)
				}
			}
		}
		key, cost := h.random.IntN(keys), 1+h.random.Uint32N(1+h.random.Uint32N(3))
		allowed := h.limiter.Hit(key, cost)
		h.note("%d ms passed, the clock shows %d: %d of key %d: %v", h.clock.passed/ms, h.clock.Ns, cost, key, allowed)
		if !allowed {
			continue
		}
		a := admission{passed: h.clock.passed, units: int64(cost), ahead: ahead[key], backs: h.clock.backs}
		ahead[key] = 0
		for i := range h.windows {
			a.starts = append(a.starts, starts[key][i].n)
		}
		hits[key] = append(hits[key], a)
	}
	for key := range hits {
		for i := range h.windows {
			if !keeps(&h.windows[i], i, hits[key]) {
				h.found = fmt.Sprintf("key %d: window %d admits more than its limit", key, i)
				return
			}
		}
	}
}

// start counts how often an aligned window starts.
type start struct {
	end int64
	n   int
}

func (s *start) look(w limit.Window, now int64) {
	end := w.End(now)
	if end > s.end {
		s.n++
	}
	s.end = end
}

// keeps reports whether window i has admitted no more than it may.
func keeps(w *limit.Window, i int, hits []admission) bool {
	if w.Algorithm == limit.FixedWindowPerKey && !w.Elastic {
		return fits(w, hits)
	}
	for from := range hits {
		units, ahead := int64(0), int64(0)
		for to := from; to < len(hits); to++ {
			if to > from {
				ahead = max(ahead, hits[to].ahead)
			}
			long, most := hits[to].passed-hits[from].passed, int64(w.Limit)
			switch {
			case w.Algorithm == limit.FixedWindow || w.Algorithm == limit.Calendar:
				most *= int64(1 + hits[to].starts[i] - hits[from].starts[i])
				if ahead > 0 { // an evicted key may begin with the window that others have reached
					most += int64(w.Limit)
				}
			case w.Algorithm == limit.TokenBucket:
				most = int64(w.Burst) + most*long/w.PeriodNs
			case w.Algorithm == limit.SlidingWindowCounter && long <= w.PeriodNs:
				most += most*(long+ahead)/w.PeriodNs + 1 + int64(hits[to].backs-hits[from].backs)
			case w.Elastic && (to == from || hits[to].passed-hits[to-1].passed < w.PeriodNs): // it slides on
			case w.Algorithm == limit.SlidingWindowLog && long < w.PeriodNs:
			default:
				most = math.MaxInt64
			}
			units += hits[to].units
			if units > most {
				return false
			}
			if most == math.MaxInt64 {
				break
			}
		}
	}
	return true
}

// fits reports whether the hits fit into windows that each begin with a hit, last at
// least the period and admit no more than the limit.
func fits(w *limit.Window, hits []admission) bool {
	begins := make([]bool, len(hits)+1)
	begins[0] = true
	for from := range hits {
		units := int64(0)
		for to := from; begins[from] && to < len(hits); to++ {
			units += hits[to].units
			if units > int64(w.Limit) {
				break
			}
			if next := to + 1; next == len(hits) || hits[next].passed-hits[from].passed >= w.PeriodNs {
				begins[next] = true
			}
		}
	}
	return begins[len(hits)]
}
