package balance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	holdNs     = 10 * second
	longHoldNs = 8 * minute // longer than a holder of nothing stays
	startNs    = 4 * second // of a store that has lost its state
)

// modelWorker is a worker with running requests: its account, and what the exact limiter knows.
type modelWorker struct {
	quota.Sums
	id      uint64
	running []uint32 // units of each
	notedNs int64    // when its last report was noted
	cutNs   int64    // until then it is cut off: no message of it arrives, and none to it
	sentNs  int64    // of a report without an answer, 0 = there is none
}

// letter is a message under way, or its answer.
type letter struct {
	to    *modelWorker
	part  quota.Part
	dueNs int64
	sent  int64
	units uint32
	back  bool // it is an answer
	undo  bool // it takes back, at the service, what was granted
	ok    bool
}

// holdModel is workers that report to a service whose messages get lost, late, repeated and out
// of order.
type holdModel struct {
	*View
	r       *rand.Rand
	number  uint64
	workers []*modelWorker
	mail    []letter
	spent   []int64 // when answers came, of each unit
	charged uint64  // in truth

	losses  bool // the store loses its state now and then
	kills   bool // workers are killed now and then
	lies    bool // somebody reports what is not so
	cuts    bool // workers are cut off now and then, for up to half of a hold
	lied    int
	lostNs  int64 // when the store has lost its state last
	killed  int
	granted int
	most    uint32 // that ran at once
}

func newHoldModel(seed uint64, hold limit.Window, windows ...limit.Window) *holdModel {
	total := limit.Window{Algorithm: limit.FixedWindow, PeriodNs: limit.MaxPeriodNs, Unlimited: true}
	h := &holdModel{
		View: at(base, 0, append(slices.Clone(windows), total)...), r: rand.New(rand.NewPCG(seed, 3)),
		losses: seed%3 == 0, kills: seed%2 == 0, lies: seed%5 == 1, cuts: seed%4 > 0,
	}
	for i := range h.Windows {
		if w := &h.Windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit // as in the service
		}
	}
	h.HoldLimit = &hold
	for range 3 {
		h.begin()
	}
	return h
}

func (h *holdModel) holdNs() int64 { return h.HoldLimit.PeriodNs }

func (h *holdModel) begin() {
	h.workers = append(h.workers, &modelWorker{id: h.r.Uint64(), notedNs: h.record.NowNs})
}

func (h *holdModel) step(t *testing.T) {
	h.record.Roll(h.record.NowNs + h.r.Int64N([]int64{ms, 30 * ms, h.holdNs() / 10}[h.r.IntN(3)]))
	if h.record.NowNs-h.lostNs >= startNs {
		h.StartingForNs = 0
	}
	h.deliver()
	w := h.workers[h.r.IntN(len(h.workers))]
	switch n := h.r.IntN(40); {
	case n == 0 && h.kills && h.r.IntN(4) == 0:
		h.kill(w)
	case n == 1 && h.losses && h.r.IntN(2) == 0:
		h.loseState()
	case n == 2 && h.lies:
		h.lie(t)
	case n == 3 && h.cuts && h.r.IntN(4) == 0:
		w.cutNs = w.notedNs + h.r.Int64N(h.holdNs()/2)
	case n < 15:
		h.answer(w)
	case w.sentNs == 0:
		cost := 1 + h.r.Uint32N(2)
		h.send(w, quota.Part{Cost: cost, Waiting: cost + h.r.Uint32N(4)})
	}
	for _, w := range h.workers {
		h.tick(w)
	}
	h.check(t)
}

// kill ends a worker and its requests; another begins.
func (h *holdModel) kill(w *modelWorker) {
	h.killed++
	h.workers = slices.DeleteFunc(h.workers, func(o *modelWorker) bool { return o == w })
	h.mail = slices.DeleteFunc(h.mail, func(m letter) bool { return m.to == w && m.back })
	h.begin()
}

// loseState has the store lose all that it knows. Then each worker's stream ends, and it reports
// what it holds on another.
func (h *holdModel) loseState() {
	h.charged = 0 // but for what no worker knows to be counted
	for _, w := range h.workers {
		sums := w.Sums // a copy: this report is not sent
		report := sums.NewReport(w.id, h.number, 0)
		h.charged += report.Charged - report.Known
		w.notedNs = h.record.NowNs - h.holdNs()
		w.sentNs, w.cutNs = 0, 0
	}
	h.mail = slices.DeleteFunc(h.mail, func(m letter) bool { return !m.back }) // else what is repeated counts again
	for i := range h.record.Usages {
		h.record.Usages[i] = Usage{AsOfNs: h.record.NowNs}
	}
	h.record.Holders, h.StartingForNs = nil, startNs
	h.lostNs = h.record.NowNs
}

// lie reports any numbers, for a worker that nobody else is.
func (h *holdModel) lie(t *testing.T) {
	numbers := [...]uint64{0, 1, 10, 1 << 31, 1<<32 - 1, 1 << 63, 1<<64 - 1}
	any64 := func() uint64 { return numbers[h.r.IntN(len(numbers))] }
	any32 := func() uint32 { return uint32(min(any64(), 1<<32-1)) }
	p := quota.Part{Cost: any32(), Waiting: any32(), Ahead: any32(), Uncharged: any32(), Report: quota.Report{
		Worker: h.r.Uint64N(2 * MaxHolders), Held: any32(),
		Charged: any64(), Known: any64(), Since: any64(), Number: any64(),
	}}
	h.lied++
	most := h.mostHeld(h.record.Holders.find(p.Worker))
	noted, offer, err := h.Note(&p)
	if err != nil || !noted {
		return
	}
	require.LessOrEqual(t, h.record.Holders.find(p.Worker).Held, limit.AddSaturating(most, offer.Units))
	if wait := h.WaitNs(1); wait != 0 {
		require.LessOrEqual(t, wait, limit.MaxPeriodNs)
	}
}

// answer ends a request of the worker.
func (h *holdModel) answer(w *modelWorker) {
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
		h.spent = append(h.spent, h.record.NowNs)
	}
}

// tick gives up what has had no answer for long, and reports what is due.
func (h *holdModel) tick(w *modelWorker) {
	if w.sentNs != 0 && h.record.NowNs-w.sentNs > 100*ms {
		w.sentNs = 0
	}
	renew := h.holdNs() / limit.HoldParts
	if w.Idle() {
		w.Sums = quota.Sums{} // and nothing is kept
	}
	if w.Idle() || w.sentNs != 0 || !w.Changed() && h.record.NowNs-w.notedNs < renew {
		return
	}
	h.send(w, quota.Part{})
}

func (h *holdModel) send(w *modelWorker, p quota.Part) {
	h.number++
	p.Report = w.NewReport(w.id, h.number, 0)
	w.sentNs = h.record.NowNs
	lost := h.r.IntN(6) == 0 && h.record.NowNs-w.notedNs < h.holdNs()/2
	for first := true; first || h.r.IntN(6) == 0; first = false {
		lateNs := h.r.Int64N([]int64{ms, ms, 80 * ms, 3 * second}[h.r.IntN(4)])
		if h.record.NowNs-w.notedNs > h.holdNs()/16 {
			lateNs = 0 // a worker that is not heard for long counts as silent: another test
		}
		if !lost {
			h.mail = append(h.mail, letter{to: w, part: p, dueNs: h.record.NowNs + lateNs, sent: h.record.NowNs})
		}
	}
}

func (h *holdModel) deliver() {
	var due []letter
	h.mail = slices.DeleteFunc(h.mail, func(m letter) bool {
		if m.dueNs <= h.record.NowNs {
			due = append(due, m)
		}
		return m.dueNs <= h.record.NowNs
	})
	h.r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		switch {
		case m.undo:
			h.UndoHold(&m.part.Report, m.units)
		case h.record.NowNs < m.to.cutNs: // it is lost
		case m.back:
			h.answered(&m)
		default:
			h.serve(m)
		}
	}
}

// serve is the service: it notes a report and answers.
func (h *holdModel) serve(m letter) {
	noted, offer, err := h.Note(&m.part)
	if err != nil {
		return
	}
	if noted {
		m.to.notedNs = h.record.NowNs
	}
	ok, units := offer.Verdict == Passes, offer.Units
	if ok && units > 0 && h.r.IntN(5) == 0 { // another part of the ask is denied
		ok, units = false, 0
		undo := letter{to: m.to, part: m.part, undo: true, units: offer.Units, dueNs: h.record.NowNs + h.r.Int64N(200*ms)}
		h.mail = append(h.mail, undo)
	}
	m.back, m.ok = true, ok
	m.units = units
	for first := true; first || h.r.IntN(6) == 0; first = false {
		if h.r.IntN(6) > 0 {
			m.dueNs = h.record.NowNs + h.r.Int64N([]int64{ms, ms, 80 * ms, 3 * second}[h.r.IntN(4)])
			h.mail = append(h.mail, m)
		}
	}
}

func (h *holdModel) answered(m *letter) {
	w := m.to
	if !slices.Contains(h.workers, w) || !w.NoteGrant(m.part.Number, m.units) {
		return
	}
	w.sentNs = 0
	if !m.ok || h.record.NowNs-m.sent >= h.holdNs()/limit.HoldParts {
		return
	}
	for left := m.units; left > 0 && h.r.IntN(8) > 0; { // what nobody takes goes back with the next report
		n := 1 + h.r.Uint32N(min(2, left))
		w.Hold(n)
		w.running = append(w.running, n)
		left -= n
		h.granted++
	}
}

// check is the exact limiter.
func (h *holdModel) check(t *testing.T) {
	running := uint32(0)
	for _, w := range h.workers {
		own := uint32(0)
		for _, n := range w.running {
			own += n
		}
		require.Equal(t, own, w.Held())
		if h.lostNs == 0 && own > 0 {
			holder := h.record.Holders.find(w.id)
			require.NotNil(t, holder)
			require.GreaterOrEqual(t, holder.Held, own, "more runs than the store has as held")
		}
		running += own
	}
	h.most = max(h.most, running)
	if !h.HoldLimit.Unlimited {
		require.LessOrEqual(t, running, h.HoldLimit.Limit, "too many run at once")
	}
	if total := len(h.Windows) - 1; h.killed+h.lied == 0 {
		require.LessOrEqual(t, uint64(h.record.Usages[total].Used), h.charged, "an answer is charged twice")
	}
	if h.lostNs != 0 || h.lied > 0 {
		return
	}
	for i := range h.Windows {
		if w := &h.Windows[i]; !w.Unlimited {
			u := &h.record.Usages[i]
			require.LessOrEqual(t, w.Count(&u.Usage, u.AsOfNs)+h.record.Holders.Held(), w.Max())
		}
	}
}

// end lets all that is under way arrive, and all that runs end.
func (h *holdModel) end() {
	for _, w := range h.workers {
		w.cutNs = 0
	}
	for range 400 {
		h.record.Roll(h.record.NowNs + 20*ms)
		for i := range h.mail {
			h.mail[i].dueNs = h.record.NowNs
		}
		h.deliver()
		for _, w := range h.workers {
			h.answer(w)
			h.tick(w)
		}
	}
}

// over returns the first window in which more was spent than it allows, "" if none: the exact
// limiter's word on when answers came.
func (h *holdModel) over() string {
	slices.Sort(h.spent)
	for i := range h.Windows {
		switch w := &h.Windows[i]; {
		case w.Unlimited || w.Algorithm == limit.FixedWindowPerKey: // that begins when the service hears of an answer
		case !quota.ForgetsByUnit(w) && w.Algorithm != limit.SlidingWindowCounter:
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
