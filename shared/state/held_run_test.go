package state

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A heldRun is a short random history of one counter whose hits hold units until their
// answers: they are settled, renewed and lost while other workers write, keys are evicted
// and reset, the wall clock steps, the process stands still and policies change. An exact
// limiter judges each admission.
type heldRun struct {
	run
	plays heldPlay
	mono  int64 // ns
	stood int64 // ns of mono that the holds' clock leaves out, by the judge

	held     []*stream // that nobody has settled
	accounts map[exactKey]*account
	hold     limit.Window // the shortest of any configuration
	low      int64        // least difference between the wall clock and the holds'
	unjudged bool         // see differs
	forgot   bool         // a key that held was reset: see differs
	blurred  map[int]bool // keys of which a lost hold was charged, one does not know exactly when
}

// heldPlay is what may happen in a history.
type heldPlay struct {
	skew     bool // workers' clocks differ and step a little
	hours    bool // the wall clock steps by hours: what holds windows is not judged
	stops    bool
	changes  bool
	resets   bool
	sets     bool
	debt     bool
	inFlight bool // only requests in flight are limited
	roomy    bool // no key is evicted: decisions are what they are to be, not only no looser
}

// strict reports whether the instant at which a lost hold lapses is known.
func (p *heldPlay) strict() bool { return !p.skew && !p.hours && !p.stops && !p.changes }

// stride is a tick of these histories. The windows of floorShapes last about 20 of them, and
// the holds' clock is read every other.
const (
	stride   = 250 * ms
	maxUnits = 3
)

// stream is units that are held.
type stream struct {
	key     int
	units   uint32
	worker  *runWorker // that has the receipt
	receipt Receipt
	column  exactKey          // in which they are held
	charges []admissionWindow // in which they are charged if they are lost
	lost    bool              // nobody settles it
	lapsed  bool
	aliveNs int64 // when it was last known to run, by the holds' clock
	lengths int   // how often the hold's length had changed then
}

func newHeldRun(seed uint64, roomy bool) *heldRun {
	random := rand.New(rand.NewPCG(seed, 0x4e1d))
	one := func(of int) bool { return random.IntN(of) == 0 }
	r := &heldRun{
		run: run{
			random: random, store: newShelf(), clock: 4_000_000 + random.Int64N(100), keys: 3 + random.IntN(5),
			drops: make(map[tenure]int), present: make(map[tenure]uint32), resets: make(map[resetKey]int),
			holdNs: make(map[tenure]int64),
		},
		mono: 77*second + random.Int64N(second), accounts: make(map[exactKey]*account), low: 1 << 62, blurred: make(map[int]bool),
	}
	p := &r.plays
	*p = heldPlay{debt: !one(3), sets: one(4), inFlight: one(4), roomy: roomy}
	if !roomy {
		p.skew, p.stops, p.changes, p.resets = one(2), one(6), one(4), one(5)
		if p.hours = p.inFlight && one(3); p.hours {
			p.skew = false
		}
	}
	capacity := uint32(2 + random.IntN(3))
	if roomy {
		capacity = uint32(r.keys + 1)
	}
	r.variant = []runVariant{r.defineHeld("x", capacity)}
	for range 1 + random.IntN(3) {
		w := &runWorker{view: &shelfView{shelf: r.store}}
		r.workers = append(r.workers, w)
		r.configureHeld(w, 0)
	}
	return r
}

// defineHeld is define of a configuration that holds, most often.
func (r *heldRun) defineHeld(counter string, capacity uint32) runVariant {
	hold := limit.Window{Algorithm: limit.Concurrency, PeriodNs: []int64{8, 16, 24, 40}[r.random.IntN(4)] * stride}
	if len(r.variant) == 0 || hold.PeriodNs < r.hold.PeriodNs {
		r.hold = hold
	}
	if r.plays.inFlight && (len(r.variant) == 0 || r.random.IntN(3) > 0) {
		override := hold
		hold.Limit, override.Limit = uint32(1+r.random.IntN(5)), uint32(1+r.random.IntN(5))
		windows := []limit.Window{hold}
		return runVariant{Definition: definition(counter, capacity, windows...), override: []limit.Window{override}, rule: windows}
	}
	v := r.define(counter, capacity)
	v.said = false                        // requests say no limit here
	v.override = slices.Clone(v.override) // it may be the rule's
	for _, list := range [][]limit.Window{v.Windows, v.override} {
		for i := range list {
			list[i].PeriodNs, list[i].OffsetNs = list[i].PeriodNs/tick*stride, list[i].OffsetNs/tick*stride
		}
	}
	for i := range v.Windows {
		if a := v.Windows[i].Algorithm; r.plays.debt && (a == limit.FixedWindow || a == limit.FixedWindowPerKey) {
			v.Windows[i].Pays, v.override[i].Pays = v.Windows[i].Limit, v.override[i].Limit
		}
	}
	v.rule = Overridden(v.Windows, []Override{{"key 0", v.override}})
	for i := range v.rule {
		v.rule[i].Pays = min(v.rule[i].Pays, v.override[i].Pays)
	}
	if len(v.Windows) > 0 && r.plays.changes && r.random.IntN(4) == 0 {
		return v // settles nothing
	}
	hold.Unlimited = true
	v.Windows, v.override, v.rule = append(v.Windows, hold), append(slices.Clone(v.override), hold), append(v.rule, hold)
	return v
}

func (r *heldRun) configureHeld(w *runWorker, variant int) {
	def := r.variant[variant]
	w.variant = variant
	w.tables = NewTables(w.view, seeded(1), 1, 1000*stride+int64(variant))
	w.table = w.tables.Table(def.Definition)
	w.phase = 0
}

// tell sets the worker's clocks. What the directory says between two workers' calls is seen:
// a policy may hold nothing for as long.
func (r *heldRun) tell(w *runWorker) (now int64) {
	r.observe()
	now = (r.clock + w.offset) * stride
	r.latest = max(r.latest, now)
	w.view.now, w.view.mono = now, r.mono
	return now
}

func (r *heldRun) heldNs() int64 { return r.mono - r.stood }

// pass lets both clocks run while the process is alive.
func (r *heldRun) pass(beats int64) {
	for beats > 0 {
		step := min(beats, 5)
		beats -= step
		r.clock += step
		r.mono += step * stride
		r.low = min(r.low, r.clock*stride-r.heldNs())
		w := r.workers[r.random.IntN(len(r.workers))]
		r.tell(w)
		w.tables.HeldNow()
	}
	r.lapse()
}

// heldSteps is how long a history is.
const heldSteps = 150

// playHeld runs the history and returns the first violation, "" if there is none.
func (r *heldRun) playHeld() string {
	for range heldSteps {
		r.disturb()
		r.finishHeld(4)
		r.advanceHeld(r.workers[r.random.IntN(len(r.workers))])
		r.observe()
		if r.found != "" || r.unjudged {
			return r.found
		}
	}
	return r.end()
}

// disturb is what happens beside the hits.
func (r *heldRun) disturb() {
	p := &r.plays
	w := r.workers[r.random.IntN(len(r.workers))]
	switch n := r.random.IntN(100); {
	case n < 30:
		r.pass(1 + r.random.Int64N(3))
		if len(r.held) > 0 {
			r.renew(r.held[r.random.IntN(len(r.held))].worker)
		}
	case n < 33:
		r.finishHeld(0)
		r.pass(20)
	case n < 35 && p.skew && r.latest-r.clock*stride < 20*stride:
		r.finishHeld(0)
		r.clock -= 1 + r.random.Int64N(6)
	case n < 36 && p.skew:
		r.finishHeld(0)
		r.clock += 20
	case n < 38 && p.skew:
		w.offset = r.random.Int64N(4)
	case n < 42 && (p.hours || p.stops):
		r.jump()
	case n < 46 && p.changes:
		r.changeHeld(w)
	case n < 48:
		r.cleanHeld(w)
	case n < 50 && (p.resets || p.sets):
		r.operate(w)
	}
	r.low = min(r.low, r.clock*stride-r.heldNs())
	r.lapse()
}

// jump sets the wall clock by an hour, or has the process stand still for half a minute.
func (r *heldRun) jump() {
	if r.plays.hours && (!r.plays.stops || r.random.IntN(2) == 0) {
		r.clock += (3600 * second / stride) * (r.random.Int64N(2)*2 - 1)
		return
	}
	r.clock += 30 * second / stride
	r.mono += 30 * second
	r.stood += 28 * second
}

func (r *heldRun) finishHeld(beats int64) {
	for _, w := range r.workers {
		for w.phase != 0 && r.clock >= w.since+beats && r.found == "" {
			r.commitHeld(w)
		}
	}
}

// changeHeld makes a new configuration, or lets a worker catch up with the newest. Receipts
// stay with the worker of before.
func (r *heldRun) changeHeld(w *runWorker) {
	newest := len(r.variant) - 1
	if w.variant == newest || r.random.IntN(4) == 0 {
		if r.random.IntN(3) == 0 {
			w.tables.Heartbeat(r.tell(w))
			return
		}
		counter := "x"
		if r.random.IntN(6) == 0 {
			counter = "y"
		}
		r.variant = append(r.variant, r.defineHeld(counter, r.variant[0].Capacity))
		newest++
	}
	next := &runWorker{view: &shelfView{shelf: r.store}, offset: w.offset}
	r.workers[slices.Index(r.workers, w)] = next
	r.configureHeld(next, newest)
}

func (r *heldRun) cleanHeld(w *runWorker) {
	var e Entry
	if _, status := w.table.Clean(&e, r.variant[w.variant].rule, r.tell(w)); status != OK {
		r.found = fmt.Sprintf("clean: status %d", status)
	}
}

// as calls do with the worker on another key.
func (r *heldRun) as(w *runWorker, key int, do func(k Key, now int64)) {
	was := w.keyIndex
	w.keyIndex, w.key = key, append(w.key[:0], byte(key))
	do(r.keyOf(w), r.tell(w))
	w.keyIndex, w.key = was, append(w.key[:0], byte(was))
}

// operate sets or resets a key.
func (r *heldRun) operate(w *runWorker) {
	var e Entry
	r.as(w, r.random.IntN(r.keys), func(k Key, now int64) {
		status := w.table.Read(&e, k, now)
		switch {
		case status != OK:
		case r.plays.resets && (!r.plays.sets || r.random.IntN(2) == 0):
			if e.slot >= 0 && e.held.Total() > 0 {
				r.forgot = true
			}
			_, status = w.table.Reset(&e, true)
			r.resets[resetKey{w.keyIndex, w.table.number, w.table.base}]++
		default:
			n := uint32(r.random.IntN(7))
			if status = w.table.Set(&e, AllWindows, n, true); status == OK {
				r.set(w, e.Now, n)
			}
		}
		if status != OK {
			r.found = fmt.Sprintf("operate: status %d", status)
		}
	})
}

func (r *heldRun) advanceHeld(w *runWorker) {
	switch {
	case w.phase == 1:
		r.commitHeld(w)
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
		w.key, w.cost = append(w.key[:0], byte(w.keyIndex)), 1
		if r.random.IntN(4) == 0 {
			w.cost = 1 + uint32(r.random.IntN(maxUnits))
		}
		r.readHeldHit(w)
		if w.phase == 1 && r.random.IntN(4) > 0 { // mostly, no other worker comes between
			r.commitHeld(w)
		}
	}
}

func (r *heldRun) readHeldHit(w *runWorker) {
	now := r.tell(w)
	w.phase = 0
	if status := w.table.Read(&w.entry, r.keyOf(w), now); status != OK {
		r.found = fmt.Sprintf("read: status %d", status)
		return
	}
	if w.entry.Now < now || w.entry.Now > r.latest {
		r.found = fmt.Sprintf("counted at %d, the worker's clock is %d, the latest %d", w.entry.Now, now, r.latest)
	}
	passes := w.table.Check(&w.entry, w.cost) == w.entry.Now
	w.heldNs = r.heldNs()
	if r.plays.roomy {
		r.compare(w, passes)
	}
	if passes {
		w.phase, w.since = 1, r.clock
	} else if item := r.store.find(w.entry.key[:]); item != nil && item.cas != w.entry.cas {
		r.found = "a denial has written"
	}
}

// commitHeld holds, or counts at once if the worker's configuration settles nothing.
func (r *heldRun) commitHeld(w *runWorker) {
	r.tell(w)
	windows := w.table.def.Windows
	var receipt Receipt
	var status Status
	if holds := windows[len(windows)-1].Algorithm == limit.Concurrency; holds {
		receipt, status = w.table.Hold(&w.entry, w.cost, true)
	} else {
		status = w.table.Commit(&w.entry, w.cost, true)
	}
	switch status {
	case OK:
		w.phase = 0
		r.admit(w, receipt)
	case Mismatch:
		r.readHeldHit(w)
	default:
		r.found = fmt.Sprintf("hold: status %d", status)
	}
}
