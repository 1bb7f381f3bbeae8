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

	observed uint32 // cas of the directory
	drops    map[tenure]int
	restarts map[resetKey]int  // how often a key was reset
	present  map[tenure]uint32 // first epoch of the window
	holdNs   map[tenure]int64  // how long a hold is
	lengths  int               // how often that has changed
	charges  map[exactKey][]charge
	hold     limit.Window // the shortest of any configuration

	// What the judge does not know, see the table below.
	forgot   bool
	blurred  map[int]bool // by key
	unjudged bool

	found string // the first violation
}

// Where the judge cannot know what is right, it judges less:
//
//	flag          what makes it so                           what is not judged then
//	hours         the wall clock steps by hours              windows that do not hold (unfit)
//	changes       configurations change                      debt that a configuration without the window
//	                                                         forgives (fits); a hold that lapses up to an
//	                                                         eighth early (differs)
//	not exactly   changes or stops: it is not known in       a hold that has not lapsed though it should
//	              which eighth a hold lapses                 (differs)
//	blurred       a lost hold of the key was charged in a    the key's fixed_window_per_key, which the charge
//	              history that is not strict: when it        may have opened (fits)
//	              lapsed is not known
//	forgot        a key that held was reset                  a hold that has not lapsed though it should
//	                                                         (differs), or, when it is renewed, has lapsed
//	                                                         though it should not (renewed)
//	unjudged      a hold has outlived two changes of its     all that follows: the history ends
//	              length (differs)

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

// runVariant is a configuration, in which one key may have limits of its own, or each
// request says the limits of its key.
type runVariant struct {
	Definition
	override []limit.Window // key 0's
	rule     []limit.Window // for Key.OfRule
	said     bool
}

const (
	// tick is half of what the holds' clock is read by. A window lasts about 20 of them.
	tick = 250 * ms
	// runSteps is how long a history is.
	runSteps = 150
	maxUnits = 3
	// mostLimit is the most that a limit is, and that a request says.
	mostLimit = 5
)

type resetKey struct {
	key    int
	number uint16
	base   uint32
}

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

// tenure is a window of a table for as long as the directory lists it.
type tenure struct {
	number uint16
	base   uint32
	window limit.Window // without its limits
}

// identity returns the window without the fields that a new configuration may change.
func identity(w limit.Window) limit.Window {
	if w.Algorithm == limit.Concurrency {
		w.PeriodNs = 0
		w.Unlimited = false
	}
	w.Limit = 0
	w.Burst = 0
	w.Units = 0
	w.Pays = 0
	return w
}

// admissionWindow is a window in which an admitted hit is counted.
type admissionWindow struct {
	tenure tenure
	nth    int // how often the window had been dropped before
	resets int // how often the key had been reset before
	units  uint32
	burst  uint32
	checks bool // the hit's worker has this window in its definition
	column int
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
		random:   random,
		store:    newMemory(),
		clock:    1<<56/tick - random.Int64N(200), // the time that a log's unit has overflows in the history
		mono:     77*second + random.Int64N(second),
		low:      1 << 62,
		keys:     3 + random.IntN(6),
		drops:    make(map[tenure]int),
		present:  make(map[tenure]uint32),
		restarts: make(map[resetKey]int),
		holdNs:   make(map[tenure]int64),
		charges:  make(map[exactKey][]charge),
		blurred:  make(map[int]bool),
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
		r.hours = r.inFlight && one(3)
		if r.hours {
			r.skew = false
		}
	}
	capacity := 2 + random.Uint32N(3)
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

// define returns a configuration with a random shape and random limits, which most often
// holds where configurations do. A log remembers as many units as the largest limit of any
// key.
func (r *run) define(counter string, capacity uint32) runVariant {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: []int64{8, 16, 24, 40}[r.random.IntN(4)] * tick}
	if len(r.variant) == 0 || hold.PeriodNs < r.hold.PeriodNs {
		r.hold = hold
	}
	some := func() uint32 { return 1 + r.random.Uint32N(mostLimit) }
	if r.inFlight && (len(r.variant) == 0 || r.random.IntN(3) > 0) {
		override := hold
		hold.Limit, override.Limit = some(), some()
		windows := []limit.Window{hold}
		def := definition(counter, capacity, windows...)
		return runVariant{Definition: def, override: []limit.Window{override}, rule: windows}
	}
	windows := slices.Clone(floorShapes[r.random.IntN(len(floorShapes))])
	slices.SortFunc(windows, limit.Window.Compare)
	override := slices.Clone(windows)
	said := !r.holds && r.random.IntN(3) == 0
	for _, list := range [][]limit.Window{windows, override} {
		for i := range list {
			w := &list[i]
			w.Limit = some()
			switch w.Algorithm {
			case limit.TokenBucket:
				w.Burst = some()
				said = false // policies refuse it
			case limit.FixedWindow, limit.FixedWindowPerKey:
				if r.debt {
					w.Pays = w.Limit
				}
			default:
			}
		}
	}
	if r.random.IntN(3) > 0 {
		copy(override, windows)
	}
	for i := range windows {
		if windows[i].Algorithm == limit.SlidingWindowLog {
			windows[i].Units = uint16(max(windows[i].Limit, override[i].Limit))
			if said {
				windows[i].Units = mostLimit
			}
			override[i].Units = windows[i].Units
		}
	}
	rule := Overridden(windows, []Override{{"key 0", override}})
	for i := range rule {
		rule[i].Pays = min(rule[i].Pays, override[i].Pays)
	}
	if r.holds && (!r.changes || r.random.IntN(4) > 0) { // else it settles nothing
		hold.Unlimited = true
		windows = append(windows, hold)
		override = append(override, hold)
		rule = append(rule, hold)
	}
	return runVariant{definition(counter, capacity, windows...), override, rule, said}
}

// holds reports whether a hit of the configuration holds until its answer.
func (v *runVariant) holds() bool {
	return v.Windows[len(v.Windows)-1].Algorithm == limit.Concurrency
}

// limitsOf returns the windows with a key's limits.
func (v *runVariant) limitsOf(key int) []limit.Window {
	if key == 0 {
		return v.override
	}
	return v.Windows
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
	return Key{Bytes: w.key, Windows: shifted(limits, w.key), OfRule: v.rule}
}

// floorShapes are the mixes of windows for the runs, without limits: each
// algorithm alone, layered with itself, and layered with others.
var floorShapes = [][]limit.Window{
	{aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 13*tick)},
	{perKey(0, 20*tick)},
	{perKey(0, 20*tick), perKey(0, 31*tick)},
	{aligned(0, 7*tick, 0), aligned(0, 20*tick, 3*tick)},
	{perKey(0, 13*tick), aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 0), perKey(0, 20*tick)},
	{aligned(0, 11*tick, 0), perKey(0, 20*tick), aligned(0, 43*tick, 5*tick)},
	{elastic(20 * tick)},
	{jittered(20*tick, 100)},
	{jittered(20*tick, 40), perKey(0, 31*tick)},
	{slidingLog(0, 20*tick)},
	{slidingLog(0, 13*tick), slidingLog(0, 31*tick)},
	{slidingCounter(0, 20*tick)},
	{slidingCounter(0, 7*tick), aligned(0, 20*tick, 0)},
	{tokenBucket(0, 0, 20*tick)},
	{tokenBucket(0, 0, 7*tick), tokenBucket(0, 0, 31*tick)},
	{tokenBucket(0, 0, 7*tick), aligned(0, 20*tick, 0)},
	{
		slidingLog(0, 13*tick), slidingCounter(0, 20*tick), tokenBucket(0, 0, 20*tick), jittered(31*tick, 50),
		elastic(7 * tick),
	},
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
		w.tables.HeldNow()
	}
	r.lapse()
}

// jump sets the wall clock by an hour, or has the process stand still for half a minute.
func (r *run) jump() {
	if r.hours && (!r.stops || r.random.IntN(2) == 0) {
		r.clock += (3600 * second / tick) * (r.random.Int64N(2)*2 - 1)
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
	var e Entry
	_, status := w.table.Clean(&e, r.variant[w.variant].rule, r.tell(w))
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
			if e.slot >= 0 && e.holds.Total() > 0 {
				r.forgot = true
			}
			_, status = w.table.Reset(&e, true)
			r.restarts[resetKey{w.keyIndex, w.table.number, w.table.base}]++
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
	all := w.table.Refund(&w.entry, now, w.cost)
	for i := range w.windows {
		a := &w.windows[i]
		was := before.usage[a.column].Used
		keeps := !all && (r.store.cas == written || w.entry.usage[a.column].Used >= was && was > 0)
		if id := idOf(w.keyIndex, a); !keeps || a.tenure.window.Algorithm != limit.FixedWindowPerKey {
			r.charges[id] = slices.DeleteFunc(r.charges[id], func(c charge) bool { return c.hit == w.hit })
		}
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
		restarts := r.restarts[resetKey{w.keyIndex, id.number, id.base}]
		a := admissionWindow{tenure: id, column: i, nth: r.drops[id], resets: restarts}
		for j, column := range w.table.columns[:len(w.table.def.Windows)] {
			if int(column) == i {
				own := r.keyOf(w).Windows[j]
				a.checks = true
				a.units = own.Limit
				a.burst = own.Burst
			}
		}
		windows = append(windows, a)
	}
	return windows
}
