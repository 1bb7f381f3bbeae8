package state

import (
	"math/rand/v2"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

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
	forgot   bool         // a key that held was reset: see differs
	blurred  map[int]bool // keys of which a lost hold was charged, one does not know exactly when

	found    string // the first violation
	unjudged bool   // see differs
}

// plays is what may happen in a history.
type plays struct {
	holds    bool // most configurations hold
	skew     bool // workers' clocks differ and step a little
	hours    bool // the wall clock steps by hours: what holds windows is not judged
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
	rule     []limit.Window // for Key.Rule
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
	w.Limit, w.Burst, w.Units, w.Pays = 0, 0, 0, 0
	if w.Algorithm == limit.Concurrency {
		w.PeriodNs, w.Unlimited = 0, false
	}
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
	worker  *runWorker // that has the receipt
	receipt Receipt
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
		random: random, store: newMemory(), clock: 1<<56/tick - random.Int64N(200), mono: 77*second + random.Int64N(second), // logs overflow then
		low: 1 << 62, keys: 3 + random.IntN(6), drops: make(map[tenure]int), present: make(map[tenure]uint32),
		restarts: make(map[resetKey]int), holdNs: make(map[tenure]int64), charges: make(map[exactKey][]charge), blurred: make(map[int]bool),
	}
	r.plays = plays{holds: holds, roomy: roomy}
	if holds {
		r.debt, r.sets, r.inFlight = !one(3), one(4), one(4)
	} else {
		r.backs = one(2)
	}
	if !roomy {
		r.skew, r.stops, r.changes, r.resets = !holds || one(2), holds && one(6), one(4), one(5)
		if r.hours = r.inFlight && one(3); r.hours {
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
		return runVariant{Definition: definition(counter, capacity, windows...), override: []limit.Window{override}, rule: windows}
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
		windows, override, rule = append(windows, hold), append(override, hold), append(rule, hold)
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
	return Key{Bytes: w.key, Windows: shifted(limits, w.key), Rule: v.rule}
}
