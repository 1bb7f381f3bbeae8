package quota

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var histories = flag.Int("histories", 60, "how many random histories of what workers state have to hold, for each shape")

const (
	holdNs  = 10 * second
	startNs = 4 * second // of a store that has lost its state
)

// stater is a worker with requests that run: its account, and what the exact limiter knows.
type stater struct {
	Account
	id      uint64
	running []uint32 // units of each
	saidNs  int64
	sentNs  int64 // of a statement without an answer, 0 = there is none
}

// said is a message under way, or its answer.
type said struct {
	to    *stater
	part  Part
	due   int64
	sent  int64
	units uint32
	back  bool // it is an answer
	undo  bool // it takes back, at the service, what was granted
	ok    bool
}

// holders is workers that state levels to a service whose messages get lost, late, repeated
// and out of order.
type holders struct {
	*State
	r       *rand.Rand
	slots   limit.Window
	number  uint64
	workers []*stater
	mail    []said
	spent   []int64 // when answers came, of each unit
	charged uint64  // in truth
	losses  bool
	kills   bool
	lies    bool // somebody states what is not so
	lied    int
	lostNs  int64 // when the store has lost its state last
	killed  int
	granted int
	most    uint32 // that ran at once
}

func newHolders(seed uint64, slots limit.Window, windows ...limit.Window) *holders {
	total := limit.Window{Algorithm: limit.FixedWindow, PeriodNs: limit.MaxPeriodNs, Unlimited: true}
	h := &holders{State: at(base, 0, append(slices.Clone(windows), total)...), r: rand.New(rand.NewPCG(seed, 3)), slots: slots}
	for i := range h.Windows {
		if w := &h.Windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit // as in the service
		}
	}
	h.Rows, h.losses, h.kills, h.lies = &Holders{}, seed%3 == 0, seed%2 == 0, seed%5 == 1
	for range 3 {
		h.begin()
	}
	return h
}

func (h *holders) begin() {
	h.workers = append(h.workers, &stater{id: h.r.Uint64(), saidNs: h.NowNs})
}

func (h *holders) step(t *testing.T) {
	h.Roll(h.NowNs + h.r.Int64N([]int64{ms, 30 * ms, second}[h.r.IntN(3)]))
	h.Rows.Starting = h.Rows.Starting && h.NowNs-h.lostNs < startNs
	h.deliver()
	w := h.workers[h.r.IntN(len(h.workers))]
	switch n := h.r.IntN(40); {
	case n == 0 && h.kills && h.r.IntN(4) == 0: // it is killed, and its requests end
		h.killed++
		h.workers = slices.DeleteFunc(h.workers, func(o *stater) bool { return o == w })
		h.mail = slices.DeleteFunc(h.mail, func(m said) bool { return m.to == w && m.back })
		h.begin()
	case n == 1 && h.losses && h.r.IntN(2) == 0:
		h.charged = 0 // but for what no worker knows to be counted
		for _, w := range h.workers {
			h.charged += w.charged - w.known
		}
		h.mail = slices.DeleteFunc(h.mail, func(m said) bool { return !m.back }) // else what is repeated counts again
		h.Usages, h.lostNs = make([]limit.Usage, len(h.Windows)), h.NowNs
		h.Rows = &Holders{Starting: true}
		for _, w := range h.workers { // its stream ends, and it states what it holds on another
			w.saidNs, w.sentNs = h.NowNs-holdNs, 0
		}
	case n == 2 && h.lies:
		h.lie(t)
	case n < 15:
		h.answer(w)
	case w.sentNs == 0:
		cost := 1 + h.r.Uint32N(2)
		h.send(w, Part{Cost: cost, Waiting: cost + h.r.Uint32N(4)})
	}
	for _, w := range h.workers {
		h.tick(w)
	}
	h.check(t)
}

// lie states any numbers, for a worker that nobody else is.
func (h *holders) lie(t *testing.T) {
	numbers := [...]uint64{0, 1, 10, 1 << 31, 1<<32 - 1, 1 << 63, 1<<64 - 1}
	any64 := func() uint64 { return numbers[h.r.IntN(len(numbers))] }
	any32 := func() uint32 { return uint32(min(any64(), 1<<32-1)) }
	p := Part{Cost: any32(), Waiting: any32(), Ahead: any32(), Spent: any32(), Report: Report{
		Worker: h.r.Uint64N(2 * MaxHolders), Held: any32(), Charged: any64(), Known: any64(), Since: any64(), Number: any64(),
	}}
	h.lied++
	most := h.mostHeld(&h.slots, h.Rows.find(p.Worker))
	units, _, stated, err := h.Say(&p, &h.slots)
	if err != nil || !stated {
		return
	}
	require.LessOrEqual(t, h.Rows.find(p.Worker).Held, limit.AddSaturating(most, units))
	if wait := h.WaitNs(1); wait != 0 {
		require.LessOrEqual(t, wait, limit.MaxPeriodNs)
	}
}

// answer ends a request of the worker.
func (h *holders) answer(w *stater) {
	if len(w.running) == 0 {
		return
	}
	i := h.r.IntN(len(w.running))
	units := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	cost := h.r.Uint32N(units + 1)
	w.Settle(units, cost)
	h.charged += uint64(cost)
	for range cost {
		h.spent = append(h.spent, h.NowNs)
	}
}

// tick gives up what has no answer for long, and states what is due.
func (h *holders) tick(w *stater) {
	if w.sentNs != 0 && h.NowNs-w.sentNs > 100*ms {
		w.sentNs = 0
	}
	renew := holdNs / limit.HoldParts
	if w.Idle() {
		w.Account = Account{} // and nothing is kept
	}
	if w.Idle() || w.sentNs != 0 || !w.Due() && h.NowNs-w.saidNs < renew {
		return
	}
	h.send(w, Part{})
}

func (h *holders) send(w *stater, p Part) {
	h.number++
	p.Report = w.Report(w.id, h.number, 0)
	w.sentNs = h.NowNs
	lost := h.r.IntN(6) == 0 && h.NowNs-w.saidNs < holdNs/2
	for first := true; first || h.r.IntN(6) == 0; first = false {
		late := h.r.Int64N([]int64{ms, ms, 80 * ms, 3 * second}[h.r.IntN(4)])
		if h.NowNs-w.saidNs > holdNs/16 {
			late = 0 // the service takes a worker for silent that it does not hear for long: another test
		}
		if !lost {
			h.mail = append(h.mail, said{to: w, part: p, due: h.NowNs + late, sent: h.NowNs})
		}
	}
}

func (h *holders) deliver() {
	var due []said
	h.mail = slices.DeleteFunc(h.mail, func(m said) bool {
		if m.due <= h.NowNs {
			due = append(due, m)
		}
		return m.due <= h.NowNs
	})
	h.r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		switch {
		case m.undo:
			h.Rows.Unsay(&m.part.Report, m.units)
		case m.back:
			h.answered(&m)
		default:
			h.serve(m)
		}
	}
}

func (h *holders) serve(m said) {
	units, ok, stated, err := h.Say(&m.part, &h.slots)
	m.units = units
	if err != nil {
		return
	}
	if stated {
		m.to.saidNs = h.NowNs
	}
	if ok && units > 0 && h.r.IntN(5) == 0 { // another part of the ask is denied
		ok, units = false, 0
		h.mail = append(h.mail, said{to: m.to, part: m.part, undo: true, units: m.units, due: h.NowNs + h.r.Int64N(200*ms)})
	}
	for first := true; first || h.r.IntN(6) == 0; first = false {
		if m.back, m.ok, m.units = true, ok, units; h.r.IntN(6) > 0 {
			m.due = h.NowNs + h.r.Int64N([]int64{ms, ms, 80 * ms, 3 * second}[h.r.IntN(4)])
			h.mail = append(h.mail, m)
		}
	}
}

func (h *holders) answered(m *said) {
	w := m.to
	if !slices.Contains(h.workers, w) || !w.Noted(m.part.Number, m.units) {
		return
	}
	w.sentNs = 0
	if !m.ok || h.NowNs-m.sent >= holdNs/limit.HoldParts {
		return
	}
	for left := m.units; left > 0 && h.r.IntN(8) > 0; { // what nobody takes goes back with the next statement
		n := 1 + h.r.Uint32N(min(2, left))
		w.Held += n
		w.running = append(w.running, n)
		left -= n
		h.granted++
	}
}

// check is the exact limiter.
func (h *holders) check(t *testing.T) {
	running := uint32(0)
	for _, w := range h.workers {
		own := uint32(0)
		for _, n := range w.running {
			own += n
		}
		require.Equal(t, own, w.Held)
		if row := h.Rows.find(w.id); h.lostNs == 0 && own > 0 {
			require.NotNil(t, row)
			require.GreaterOrEqual(t, row.Held, own, "more runs than the row holds")
		}
		running += own
	}
	h.most = max(h.most, running)
	if !h.slots.Unlimited {
		require.LessOrEqual(t, running, h.slots.Limit, "too many run at once")
	}
	if total := len(h.Windows) - 1; h.killed+h.lied == 0 {
		require.LessOrEqual(t, uint64(h.Usages[total].Used), h.charged, "an answer is charged twice")
	}
	if h.lostNs != 0 || h.lied > 0 {
		return
	}
	for i := range h.Windows {
		if w := &h.Windows[i]; !w.Unlimited {
			require.LessOrEqual(t, w.Count(&h.Usages[i], h.asOf(i))+h.Rows.Held(), w.Max())
		}
	}
}

// end lets all that is under way arrive, and all that runs end.
func (h *holders) end() {
	for range 400 {
		h.Roll(h.NowNs + 20*ms)
		for i := range h.mail {
			h.mail[i].due = h.NowNs
		}
		h.deliver()
		for _, w := range h.workers {
			h.answer(w)
			h.tick(w)
		}
	}
}

var heldShapes = map[string][]limit.Window{
	"slots":   {},
	"fixed":   {fixed(10, 4*second)},
	"per key": {perKey(10, 3*second)},
	"counter": {counter(12, 4*second)},
	"log":     {logOf(10, 5*second)},
	"bucket":  {bucket(40, 20*second, 10)},
	"layered": {fixed(6, second), logOf(12, 6*second)},
}

// TestRowsNeverOver: whatever becomes of messages, workers and the store, no more runs than may,
// no window is charged more than its limit where nothing costs more than it held, and every
// answer is charged once.
func TestRowsNeverOver(t *testing.T) {
	for name, windows := range heldShapes {
		slots := limit.Window{Algorithm: limit.Concurrency, PeriodNs: holdNs, Limit: 10, Unlimited: len(windows) > 0}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			granted := 0
			for seed := range uint64(*histories) {
				h := newHolders(seed, slots, windows...)
				for range 1500 {
					h.step(t)
				}
				granted += h.granted
				if h.lostNs != 0 {
					continue
				}
				require.Empty(t, h.over(), "seed %d", seed)
				if h.lied > 0 {
					h.Roll(h.NowNs + holdNs)
					require.LessOrEqual(t, h.WaitNs(1), limit.MaxPeriodNs, "seed %d", seed)
					h.Roll(h.NowNs + limit.MaxPeriodNs)
					require.True(t, h.HasRoom(1, &slots), "seed %d: the key is locked for longer", seed)
				}
				if h.killed+h.lied > 0 {
					continue
				}
				h.end()
				require.Zero(t, h.Rows.Held(), "seed %d: something is held for ever", seed)
				require.Equal(t, h.charged, uint64(h.Usages[len(h.Usages)-1].Used), "seed %d", seed)
			}
			require.Greater(t, granted, *histories*30, "too little was granted to prove anything")
		})
	}
}

// over returns the first window in which more was spent than it allows, "" if none: the exact
// limiter's word on when answers came.
func (h *holders) over() string {
	slices.Sort(h.spent)
	for i := range h.Windows {
		switch w := &h.Windows[i]; {
		case w.Unlimited || w.Algorithm == limit.FixedWindowPerKey: // that begins when the service hears of an answer
		case !stamped(w) && w.Algorithm != limit.SlidingWindowCounter:
			counts := map[int64]uint32{}
			for _, at := range h.spent {
				if counts[w.End(at)]++; counts[w.End(at)] > w.Limit {
					return fmt.Sprintf("window %d: %d units until %d", i, counts[w.End(at)], w.End(at))
				}
			}
		default:
			for from := range h.spent {
				for to := from; to < len(h.spent); to++ {
					if long, n := h.spent[to]-h.spent[from], int64(to-from+1); overIn(w, n, long) {
						return fmt.Sprintf("window %d: %d units in %d ns", i, n, long)
					}
				}
			}
		}
	}
	return ""
}

// overIn reports whether n units are more than the window allows in an interval that begins and
// ends with one of them.
func overIn(w *limit.Window, n, long int64) bool {
	switch w.Algorithm {
	case limit.SlidingWindowLog:
		return long < w.PeriodNs && n > int64(w.Limit)
	case limit.SlidingWindowCounter: // at most limit·(1 + x/W) + 1
		return long <= w.PeriodNs && (n-1-int64(w.Limit))*w.PeriodNs > int64(w.Limit)*long
	default: // at most burst and what the bucket gains
		return (n-int64(w.Burst))*w.PeriodNs > int64(w.Limit)*long
	}
}
