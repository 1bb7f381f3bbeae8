package state

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A run is a short random history of one counter with far more keys than slots.
// The workers' clocks differ and step back. Hits have several phases, so that
// other workers come between a read and its write. Hits are refunded, and
// configurations change or drop windows, or the counter itself. At the end exact
// limiters count each key's admitted hits.
type run struct {
	random  *rand.Rand
	store   *shelf
	clock   int64 // ticks
	latest  int64 // the largest instant any worker has had, ns
	keys    int
	variant []runVariant // the configurations, newest last
	workers []*runWorker
	hits    []admission
	drops   map[tenure]int
	resets  map[resetKey]int
	present map[tenure]uint32 // first epoch of the window
	holdNs  map[tenure]int64  // how long a hold is
	lengths int               // how often that has changed
	found   string            // the first violation
}

// runVariant is a configuration, in which one key may have limits of its own, or each
// request says the limits of its key.
type runVariant struct {
	Definition
	override []limit.Window // key 0's
	rule     []limit.Window // for Key.Rule
	said     bool
}

// mostLimit is the most that a limit is, and that a request says.
const mostLimit = 5

type resetKey struct {
	key    int
	number uint16
	base   uint32
}

// tick is 1 ms. A window is about 20 ticks long.
const tick = ms

type runWorker struct {
	view    *shelfView
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
	hit      int
	since    int64 // tick of the read
	heldNs   int64 // the holds' clock at the read
}

// tenure is a window of a table for as long as the directory lists it.
type tenure struct {
	number uint16
	base   uint32
	window limit.Window // without its limits
}

// identity returns the window without the fields that a new configuration may change.
func identity(w limit.Window) limit.Window {
	w.Limit, w.Burst, w.Units, w.Pays = 0, 0, 0, 0
	if w.Algorithm == limit.Concurrency {
		w.PeriodNs, w.Unlimited = 0, false
	}
	return w
}

// admission is an admitted hit.
type admission struct {
	key     int
	variant int // the configuration of its worker
	now     int64
	cost    uint32
	back    bool // refunded
	windows []admissionWindow
}

type admissionWindow struct {
	tenure tenure
	nth    int // how often the window had been dropped before
	resets int // how often the key had been reset before
	units  uint32
	burst  uint32
	checks bool // the hit's worker has this window in its definition
	column int
	stays  bool // the window could not refund the hit
}

func newRun(seed uint64) *run {
	random := rand.New(rand.NewPCG(seed, 0x510ce))
	r := &run{
		random: random, store: newShelf(), clock: 1000 + random.Int64N(100), keys: 3 + random.IntN(6),
		drops: make(map[tenure]int), present: make(map[tenure]uint32), resets: make(map[resetKey]int),
		holdNs: make(map[tenure]int64),
	}
	r.variant = []runVariant{r.define("x", uint32(2+random.IntN(3)))}
	for range 1 + random.IntN(3) {
		w := &runWorker{view: &shelfView{shelf: r.store}, offset: random.Int64N(4)}
		r.workers = append(r.workers, w)
		r.configure(w, 0)
	}
	return r
}

// define returns a configuration with a random shape and random limits. A log
// remembers as many units as the largest limit of any key.
func (r *run) define(counter string, capacity uint32) runVariant {
	windows := slices.Clone(floorShapes[r.random.IntN(len(floorShapes))])
	slices.SortFunc(windows, limit.Window.Compare)
	override := slices.Clone(windows)
	said := r.random.IntN(3) == 0
	for _, list := range [][]limit.Window{windows, override} {
		for i := range list {
			list[i].Limit = uint32(1 + r.random.IntN(mostLimit))
			if list[i].Algorithm == limit.TokenBucket {
				list[i].Burst = uint32(1 + r.random.IntN(5))
				said = false // policies refuse it
			}
		}
	}
	if r.random.IntN(3) > 0 {
		override = windows
	}
	for i := range windows {
		if windows[i].Algorithm == limit.SlidingWindowLog {
			windows[i].Units = uint16(max(windows[i].Limit, override[i].Limit))
			if said {
				windows[i].Units = mostLimit
			}
		}
	}
	rule := Overridden(windows, []Override{{"key 0", override}})
	return runVariant{definition(counter, capacity, windows...), override, rule, said}
}

// keyOf is a worker's key with the limits that its configuration gives it.
func (r *run) keyOf(w *runWorker) Key {
	v := &r.variant[w.variant]
	limits := v.limitsOf(w.keyIndex)
	if v.said {
		limits = slices.Clone(limits)
		for i := range limits {
			limits[i].Limit = (w.said + uint32(i)) % (mostLimit + 1)
			limits[i].Units = v.Windows[i].Units
		}
	}
	return Key{Bytes: w.key, Windows: shifted(limits, w.key), Rule: v.rule}
}

// limitsOf returns the windows with a key's limits.
func (v *runVariant) limitsOf(key int) []limit.Window {
	if key == 0 {
		return v.override
	}
	return v.Windows
}

// configure gives a worker one of the configurations. A configuration is as old as
// its index says.
func (r *run) configure(w *runWorker, variant int) {
	def := r.variant[variant]
	w.variant = variant
	w.tables = NewTables(w.view, seeded(1), 1, 1000*tick+int64(variant))
	w.table = w.tables.Table(def.Definition)
	w.phase = 0
}

func (r *run) now(w *runWorker) int64 {
	now := (r.clock + w.offset) * tick
	r.latest = max(r.latest, now)
	w.view.now = now
	return now
}

// runSteps is how long a history is.
const runSteps = 120

// play runs the history and returns the first violation, "" if there is none.
func (r *run) play() string {
	changes := r.random.IntN(4) == 0
	backs := r.random.IntN(2) == 0
	resets := r.random.IntN(6) == 0
	for range runSteps {
		switch n := r.random.IntN(100); {
		case n < 30:
			r.clock += 1 + r.random.Int64N(3)
		case n < 32:
			r.finish(backs, 0)
			r.clock -= 1 + r.random.Int64N(6)
		case n < 34:
			r.finish(backs, 0)
			r.clock += 20
		case n < 36:
			r.workers[r.random.IntN(len(r.workers))].offset = r.random.Int64N(4)
		case n < 40 && changes:
			r.change()
		case n < 42:
			r.clean(r.workers[r.random.IntN(len(r.workers))])
		case n < 44 && resets:
			r.reset(r.workers[r.random.IntN(len(r.workers))])
		}
		r.finish(backs, 4)
		r.advance(r.workers[r.random.IntN(len(r.workers))], backs)
		r.observe()
		if r.found != "" {
			return r.found
		}
	}
	return r.judge()
}

// finish ends requests that workers began at least that many ticks ago: a request
// is shorter than any window.
func (r *run) finish(backs bool, ticks int64) {
	for _, w := range r.workers {
		for w.phase != 0 && r.clock >= w.since+ticks && r.found == "" {
			r.advance(w, backs)
		}
	}
}

// change makes a new configuration, or lets a worker catch up with the newest.
func (r *run) change() {
	w := r.workers[r.random.IntN(len(r.workers))]
	if newest := len(r.variant) - 1; w.variant < newest && r.random.IntN(4) > 0 {
		r.configure(w, newest)
		return
	}
	if r.random.IntN(3) == 0 {
		w.tables.Heartbeat(r.now(w))
		return
	}
	counter := "x"
	if r.random.IntN(4) == 0 {
		counter = "y"
	}
	r.variant = append(r.variant, r.define(counter, r.variant[0].Capacity))
	r.configure(w, len(r.variant)-1)
}

// clean frees expired records. This must change no decision.
func (r *run) clean(w *runWorker) {
	var e Entry
	if _, status := w.table.Clean(&e, r.variant[w.variant].rule, r.now(w)); status != OK {
		r.found = fmt.Sprintf("clean: status %d", status)
	}
}

// reset resets a key, which starts anew.
func (r *run) reset(w *runWorker) {
	if w.phase != 0 {
		return
	}
	var e Entry
	w.keyIndex = r.random.IntN(r.keys)
	w.key = append(w.key[:0], byte(w.keyIndex))
	if status := w.table.Read(&e, r.keyOf(w), r.now(w)); status != OK {
		r.found = fmt.Sprintf("read: status %d", status)
		return
	}
	if _, status := w.table.Reset(&e, true); status != OK {
		r.found = fmt.Sprintf("reset: status %d", status)
		return
	}
	r.resets[resetKey{w.keyIndex, w.table.number, w.table.base}]++
}

// advance does the worker's next step.
func (r *run) advance(w *runWorker, backs bool) {
	switch now := r.now(w); w.phase {
	case 0:
		w.keyIndex = r.random.IntN(r.keys)
		w.key, w.cost, w.said = append(w.key[:0], byte(w.keyIndex)), 1, uint32(r.random.IntN(mostLimit+1))
		if r.random.IntN(6) == 0 {
			w.cost = 1 + uint32(r.random.IntN(3))
		}
		r.read(w, now)
		if w.phase == 1 && r.random.IntN(4) > 0 { // mostly, no other worker comes between
			r.commit(w, backs)
		}
	case 1:
		r.commit(w, backs)
	case 2:
		r.refund(w, now)
		w.phase = 0
	}
}

// refund refunds the worker's hit and records which windows keep it: all, if
// nothing was written, else those that count no less than before.
func (r *run) refund(w *runWorker, now int64) {
	var before Entry
	if status := w.table.Read(&before, r.keyOf(w), now); status != OK {
		r.found = fmt.Sprintf("read: status %d", status)
		return
	}
	h := &r.hits[w.hit]
	h.back = true
	written := r.store.cas
	all := w.table.Refund(&w.entry, now, w.cost)
	for i := range h.windows {
		a := &h.windows[i]
		a.stays = !all && (r.store.cas == written || w.entry.usage[a.column].Used >= before.usage[a.column].Used && before.usage[a.column].Used > 0)
	}
}

func (r *run) read(w *runWorker, now int64) {
	w.phase = 0
	if status := w.table.Read(&w.entry, r.keyOf(w), now); status != OK {
		r.found = fmt.Sprintf("read: status %d", status)
		return
	}
	if w.entry.Now < now || w.entry.Now > r.latest {
		r.found = fmt.Sprintf("counted at %d, the worker's clock is %d, the latest %d", w.entry.Now, now, r.latest)
	}
	if w.table.Check(&w.entry, w.cost) == w.entry.Now {
		w.phase, w.since = 1, r.clock
	}
}

func (r *run) commit(w *runWorker, backs bool) {
	switch status := w.table.Commit(&w.entry, w.cost, true); status {
	case OK:
		w.phase = 0
		if backs && r.random.IntN(3) == 0 {
			w.phase = 2
		}
		w.hit = len(r.hits)
		r.hits = append(r.hits, admission{key: w.keyIndex, variant: w.variant, now: w.entry.Now, cost: w.cost, windows: r.tenures(w)})
	case Mismatch:
		r.read(w, r.now(w))
	default:
		r.found = fmt.Sprintf("commit: status %d", status)
	}
}

// tenures returns the windows in which the worker's hit must be counted: those
// that its table has and the directory still lists. A window that was dropped and
// came back starts anew for workers that have seen it come back. A page that was
// not written meanwhile may still hold the old usage, so a per-key window may have
// opened before the hits counted here: it is left out.
func (r *run) tenures(w *runWorker) []admissionWindow {
	r.observe()
	windows := make([]admissionWindow, 0, len(w.table.layout.Windows))
	for i, v := range w.table.layout.Windows {
		id := tenure{w.table.number, w.table.base, identity(v)}
		if since, listed := r.present[id]; !listed || w.table.epoch < since ||
			(r.drops[id] > 0 && v.Algorithm == limit.FixedWindowPerKey) {
			continue
		}
		a := admissionWindow{tenure: id, column: i, nth: r.drops[id], resets: r.resets[resetKey{w.keyIndex, id.number, id.base}]}
		for j, column := range w.table.columns[:len(w.table.def.Windows)] {
			if column == i {
				own := r.keyOf(w).Windows[j]
				a.checks, a.units, a.burst = true, own.Limit, own.Burst
			}
		}
		windows = append(windows, a)
	}
	return windows
}
