package state

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var (
	floorRuns = flag.Int("floor-runs", 5_000, "number of random histories that exact limiters judge")
	floorSeed = flag.Uint64("floor-seed", 0, "first seed, 0 = another one each time; a violation prints its own")
)

// TestEvictionNeverRefunds: with any evictions, refunds and configuration changes,
// no key gets more than its limit in any window.
func TestEvictionNeverRefunds(t *testing.T) {
	playAll(t, func(seed uint64) string { return newRun(seed, false, false).play() })
}

// TestHeldNeverOver: with any answers, lost holds, evictions, resets, clock steps and
// configuration changes, what a key has used and holds is within its limit in every window
// when a hit is admitted, where each hold is charged with its answer.
func TestHeldNeverOver(t *testing.T) {
	playAll(t, func(seed uint64) string { return newRun(seed, true, false).play() })
}

// TestHeldIsExact: where no key is evicted, a hit is admitted iff what its key has used and
// holds leaves room, and lost holds lapse after nine eighths.
func TestHeldIsExact(t *testing.T) {
	playAll(t, func(seed uint64) string { return newRun(seed, true, true).play() })
}

// playAll plays random histories, and requires that none violates a limit.
func playAll(t *testing.T, play func(seed uint64) string) {
	runs, first := *floorRuns, *floorSeed
	if testing.Short() {
		runs /= 10
	}
	if first == 0 {
		first = rand.Uint64()
	}
	count, seed, found := violations(first, runs, play)
	require.Zero(t, count, "replay the first with -run %s -floor-runs 1 -floor-seed %d: %s", t.Name(), seed, found)
	t.Logf("%d histories from seed %d, each judged by exact limiters", runs, first)
}

// violations plays runs with consecutive seeds. It returns how many violated a
// limit, and the seed and the violation of the first.
func violations(first uint64, runs int, play func(seed uint64) string) (count int64, seed uint64, found string) {
	var next, bad atomic.Int64
	var once sync.Mutex
	inParallel(runtime.GOMAXPROCS(0), func(int) {
		for n := next.Add(1) - 1; n < int64(runs); n = next.Add(1) - 1 {
			message := play(first + uint64(n))
			if message == "" {
				continue
			}
			bad.Add(1)
			once.Lock()
			if found == "" || first+uint64(n) < seed {
				seed, found = first+uint64(n), message
			}
			once.Unlock()
		}
	})
	return bad.Load(), seed, found
}

// A run is a short random history of one counter with more keys than slots. The workers'
// clocks differ and step back, and hits have several phases, so that other workers come
// between a read and its write. Hits are refunded, or hold units until their answers: they
// are settled, renewed and lost. Keys are evicted and reset, the process stands still, and
// configurations change or drop windows, or the counter itself. An exact limiter judges each
// admission.
type run struct {
	plays
	random  *rand.Rand
	store   *memory
	clock   int64 // ticks
	mono    int64 // ns
	stood   int64 // ns of mono that the holds' clock leaves out, by the judge
	latest  int64 // the largest instant any worker has had, ns
	low     int64 // least difference between the wall clock and the holds'
	keys    int
	variant []runVariant // the configurations, newest last
	workers []*runWorker
	held    []*stream // that nobody has settled
	hits    int

	hold limit.Window // the shortest of any configuration

	judge
	found string // the first violation
}

// plays is what may happen in a history.
type plays struct {
	holds    bool // most configurations hold
	skew     bool // workers' clocks differ and step a little
	hours    bool // the wall clock steps by hours
	stops    bool // the process stands still
	backs    bool // hits are refunded
	changes  bool
	resets   bool
	sets     bool
	debt     bool
	inFlight bool // only requests in flight are limited
	roomy    bool // no key is evicted: decisions are what they are to be, not only no looser
}

// strict reports whether the instant at which a lost hold lapses is known.
func (p *plays) strict() bool { return !p.skew && !p.hours && !p.stops && !p.changes }

const (
	// tick is half of what the holds' clock is read by. A window lasts about 20 of them.
	tick = 250 * ms
	// runSteps is how long a history is.
	runSteps = 150
	maxUnits = 3
	// hours is how far the wall clock steps, in ticks: 77 days. All periods of floorShapes divide it, so what was
	// counted in one aligned window lies in one after it, too.
	hours = 20 * 7 * 11 * 13 * 31 * 43
	// mostLimit is the most that a limit is, and that a request says.
	mostLimit = 5
)

type runWorker struct {
	view    *view
	tables  *Tables
	table   *Table
	variant int
	offset  int64 // ticks that its clock is off

	phase    int // 0 idle, 1 has read, 2 has a hit to refund
	key      []byte
	keyIndex int
	cost     uint32
	said     uint32 // the limit that the request says
	entry    Entry
	since    int64 // tick of the read
	heldNs   int64 // the holds' clock at the read
	hit      int
	windows  []admissionWindow // in which the hit was counted
}

// stream is units that are held.
type stream struct {
	key     int
	units   uint32
	worker  *runWorker // that has the hold
	hold    Hold
	column  exactKey          // in which they are held
	charges []admissionWindow // in which they are charged if they are lost
	lost    bool              // nobody settles it
	lapsed  bool
	aliveNs int64 // when it was last known to run, by the holds' clock
	lengths int   // how often the hold's length had changed then
}

// newRun returns a history of hits that count at once, or of hits that hold.
func newRun(seed uint64, holds, roomy bool) *run {
	random := rand.New(rand.NewPCG(seed, 0x4e1d))
	one := func(of int) bool { return random.IntN(of) == 0 }
	r := &run{
		random: random,
		store:  newMemory(),
		clock:  1<<56/tick - random.Int64N(200), // the time that a log's unit has overflows in the history
		mono:   77*second + random.Int64N(second),
		low:    1 << 62,
		keys:   3 + random.IntN(6),
		judge:  newJudge(),
	}
	r.plays = plays{holds: holds, roomy: roomy}
	if holds {
		r.debt = !one(3)
		r.sets = one(4)
		r.inFlight = one(4)
	} else {
		r.backs = one(2)
	}
	if !roomy {
		r.skew = !holds || one(2)
		r.stops = holds && one(6)
		r.changes = one(4)
		r.resets = one(5)
		r.hours = one(3)
		if r.hours {
			r.skew = false
		}
	}
	capacity := 2 + random.Uint32N(3)
	if r.hours { // few keys without a record: reading one moves a floor that is ahead back to the present
		r.keys = int(capacity) + 1
	}
	if roomy {
		capacity = uint32(r.keys + 1)
	}
	r.variant = []runVariant{r.define("x", capacity)}
	for range 1 + random.IntN(3) {
		r.workers = append(r.workers, r.worker(0, 0))
	}
	return r
}

// worker returns one with one of the configurations, which is as old as its index says.
func (r *run) worker(variant int, offset int64) *runWorker {
	w := &runWorker{view: &view{memory: r.store}, variant: variant, offset: offset}
	w.tables = NewTables(w.view, seeded(1), 1, 1000*tick+int64(variant))
	w.table = w.tables.Table(r.variant[variant].Definition)
	return w
}

// tell sets the worker's clocks. What the directory says between two workers' calls is seen:
// a policy may hold nothing for as long.
func (r *run) tell(w *runWorker) (now int64) {
	r.observe()
	now = (r.clock + w.offset) * tick
	r.latest = max(r.latest, now)
	w.view.now, w.view.mono = now, r.mono
	return now
}

func (r *run) heldNs() int64 { return r.mono - r.stood }

func (r *run) any() *runWorker { return r.workers[r.random.IntN(len(r.workers))] }

// must notes a violation where a call has failed.
func (r *run) must(what string, status Status) bool {
	if status != OK {
		r.found = fmt.Sprintf("%s: status %d", what, status)
	}
	return status == OK
}

// play runs the history and returns the first violation, "" if there is none.
func (r *run) play() string {
	for range runSteps {
		r.disturb()
		r.finish(4)
		r.advance(r.any())
		r.observe()
		if r.found != "" || r.unjudged {
			return r.found
		}
	}
	return r.end()
}

// disturb is what happens beside the hits.
func (r *run) disturb() {
	w := r.any()
	switch n := r.random.IntN(100); {
	case n < 30:
		r.pass(1 + r.random.Int64N(3))
		if len(r.held) > 0 {
			r.renew(r.held[r.random.IntN(len(r.held))].worker)
		}
	case n < 33:
		r.finish(0)
		r.pass(20)
	case n < 35 && r.skew && r.latest-r.clock*tick < 20*tick:
		r.finish(0)
		r.clock -= 1 + r.random.Int64N(6)
	case n < 36 && r.skew:
		r.finish(0)
		r.clock += 20
	case n < 38 && r.skew:
		w.offset = r.random.Int64N(4)
	case n < 42 && (r.hours || r.stops):
		r.jump()
	case n < 46 && r.changes:
		r.change(w)
	case n < 48:
		r.clean(w)
	case n < 50 && (r.resets || r.sets):
		r.operate(w)
	}
	r.low = min(r.low, r.clock*tick-r.heldNs())
	r.lapse()
}

// pass lets both clocks run while the process is alive.
func (r *run) pass(ticks int64) {
	for ticks > 0 {
		step := min(ticks, 5)
		ticks -= step
		r.clock += step
		r.mono += step * tick
		r.low = min(r.low, r.clock*tick-r.heldNs())
		w := r.any()
		r.tell(w)
		w.tables.HoldClock()
	}
	r.lapse()
}

// jump sets the wall clock by hours, or has the process stand still for half a minute.
func (r *run) jump() {
	if r.hours && (!r.stops || r.random.IntN(2) == 0) {
		if !r.inFlight || r.changes { // a commit counts as of its read
			r.finish(0)
		}
		if r.random.IntN(2) == 0 || r.clock < 2*hours { // else it would go back before 1970
			r.clock += hours
		} else {
			r.clock -= hours
			r.setBack(hours * tick)
		}
		return
	}
	r.clock += 30 * second / tick
	r.mono += 30 * second
	r.stood += 28 * second
}

// finish ends requests that workers began at least that many ticks ago: a request is shorter
// than any window.
func (r *run) finish(ticks int64) {
	for _, w := range r.workers {
		for w.phase != 0 && r.clock >= w.since+ticks && r.found == "" {
			r.advance(w)
		}
	}
}

// change makes a new configuration, or lets a worker catch up with the newest. Holds stay
// with the worker of before.
func (r *run) change(w *runWorker) {
	newest := len(r.variant) - 1
	if w.variant == newest || r.random.IntN(4) == 0 {
		if r.random.IntN(3) == 0 {
			w.tables.Heartbeat(r.tell(w))
			return
		}
		counter := "x"
		if r.random.IntN(5) == 0 {
			counter = "y"
		}
		r.variant = append(r.variant, r.define(counter, r.variant[0].Capacity))
		newest++
	}
	r.workers[slices.Index(r.workers, w)] = r.worker(newest, w.offset)
}

// clean frees expired records. This must change no decision.
func (r *run) clean(w *runWorker) {
	var scratch Scratch
	_, status := w.table.Clean(&scratch, r.variant[w.variant].rule, r.tell(w))
	r.must("clean", status)
}

// as calls do with the worker on another key.
func (r *run) as(w *runWorker, key int, do func(k Key, now int64)) {
	was := w.keyIndex
	w.keyIndex, w.key = key, append(w.key[:0], byte(key))
	do(r.keyOf(w), r.tell(w))
	w.keyIndex, w.key = was, append(w.key[:0], byte(was))
}

// operate sets or resets a key.
func (r *run) operate(w *runWorker) {
	var e Entry
	r.as(w, r.random.IntN(r.keys), func(k Key, now int64) {
		status := w.table.Read(&e, k, now)
		switch {
		case status != OK:
		case r.resets && (!r.sets || r.random.IntN(2) == 0):
			if e.slot >= 0 && e.ownHolds.Total() > 0 {
				r.forgot = true
			}
			_, status = w.table.Reset(&e, true)
			r.restarts[resetKey{w.keyIndex, w.table.placement.number, w.table.placement.base}]++
		default:
			n := uint32(r.random.IntN(7))
			status = w.table.Set(&e, AllWindows, n, true)
			if status == OK {
				r.set(w, e.Now, n)
			}
		}
		r.must("operate", status)
	})
}

// advance does the worker's next step.
func (r *run) advance(w *runWorker) {
	switch {
	case w.phase == 1:
		r.commit(w)
	case w.phase == 2:
		w.phase = 0
		r.refund(w)
	case len(r.held) > 0 && r.random.IntN(5) < 2:
		h := r.held[r.random.IntN(len(r.held))]
		switch n := r.random.IntN(8); {
		case h.lost:
		case n == 0:
			h.lost = true
		default:
			r.settle(h)
		}
	default:
		w.keyIndex = r.random.IntN(r.keys)
		w.key = append(w.key[:0], byte(w.keyIndex))
		w.cost = 1
		w.said = uint32(r.random.IntN(mostLimit + 1))
		if r.random.IntN(4) == 0 {
			w.cost = 1 + uint32(r.random.IntN(maxUnits))
		}
		r.read(w)
		if w.phase == 1 && r.random.IntN(4) > 0 { // mostly, no other worker comes between
			r.commit(w)
		}
	}
}

func (r *run) read(w *runWorker) {
	now := r.tell(w)
	w.phase = 0
	if !r.must("read", w.table.Read(&w.entry, r.keyOf(w), now)) {
		return
	}
	if w.entry.Now < now || w.entry.Now > r.latest {
		r.found = fmt.Sprintf("counted at %d, the worker's clock is %d, the latest %d", w.entry.Now, now, r.latest)
	}
	passes := w.table.Check(&w.entry, w.cost) == w.entry.Now
	w.heldNs = r.heldNs()
	if r.roomy {
		r.compare(w, passes)
	}
	if passes {
		w.phase, w.since = 1, r.clock
	} else if page := r.store.values[string(w.entry.pageKey[:])]; page != nil && page.cas != w.entry.cas {
		r.found = "a denial has written"
	}
}

// commit holds, or counts at once if the worker's configuration settles nothing.
func (r *run) commit(w *runWorker) {
	r.tell(w)
	var hold Hold
	var status Status
	if r.variant[w.variant].holds() {
		hold, status = w.table.Hold(&w.entry, w.cost, true)
	} else {
		status = w.table.Commit(&w.entry, w.cost, true)
	}
	switch {
	case status == Mismatch:
		r.read(w)
	case r.must("commit", status):
		w.phase = 0
		if r.backs && r.random.IntN(3) == 0 {
			w.phase = 2
		}
		r.hits++
		w.hit, w.windows = r.hits, r.tenures(w)
		r.admit(w, hold)
	}
}

// refund refunds the worker's hit, which no window counts then but one per key that has not
// changed and was not reset or dropped: it keeps the hit.
func (r *run) refund(w *runWorker) {
	now := r.tell(w)
	var before Entry
	if !r.must("read", w.table.Read(&before, r.keyOf(w), now)) {
		return
	}
	written := r.store.cas
	all := w.table.Refund(&w.entry, r.keyOf(w).Limits, now, w.cost)
	for i := range w.windows {
		a := &w.windows[i]
		was := before.usage[a.column].Used
		keeps := !all && (r.store.cas == written || w.entry.usage[a.column].Used >= was && was > 0)
		if id := idOf(w.keyIndex, a); !keeps || a.tenure.window.Algorithm != limit.FixedWindowPerKey {
			r.charges[id] = slices.DeleteFunc(r.charges[id], func(c charge) bool { return c.hit == w.hit })
		}
	}
}

// settle ends a hold at a worker that knows its counter: with nothing, with less, with as
// much, or with more than it held.
func (r *run) settle(h *stream) {
	less := uint32(r.random.IntN(int(h.units + 1)))
	more := h.units + uint32(r.random.IntN(4))
	cost := []uint32{0, less, h.units, more}[r.random.IntN(4)]
	w := h.worker
	other := r.any()
	if r.variant[other.variant].Counter == r.variant[w.variant].Counter {
		w = other
	}
	var scratch Scratch
	r.as(w, h.key, func(k Key, now int64) {
		lapsed, status := w.table.Settle(&scratch, k.Limits, h.hold, now, cost)
		if r.must("settle", status) {
			r.answered(h, w, scratch.entry.Now, cost, lapsed)
		}
	})
}

// renew is a tick of a worker: its streams say that they are alive.
func (r *run) renew(w *runWorker) {
	for _, h := range slices.Clone(r.held) {
		if h.lost || h.worker != w || r.random.IntN(8) == 0 {
			continue
		}
		var scratch Scratch
		r.as(w, h.key, func(k Key, now int64) {
			if !w.table.IsDue(&h.hold, w.table.parent.HoldClock()) {
				return
			}
			found, status := w.table.Renew(&scratch, k.Limits, &h.hold, now)
			if r.must("renew", status) {
				r.renewed(h, !found.isHeld())
			}
		})
	}
}
