package state

import (
	"fmt"
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
)

// judge is what the judge knows of a history.
type judge struct {
	observed uint32 // cas of the directory
	drops    map[tenure]int
	restarts map[resetKey]int  // how often a key was reset
	present  map[tenure]uint32 // first epoch of the window
	holdNs   map[tenure]int64  // how long a hold is
	lengths  int               // how often that has changed
	charges  map[exactKey][]charge

	// What it does not know, see the table below.
	forgot   bool
	blurred  map[int]bool // by key
	unjudged bool
}

func newJudge() judge {
	return judge{
		drops:    make(map[tenure]int),
		present:  make(map[tenure]uint32),
		restarts: make(map[resetKey]int),
		holdNs:   make(map[tenure]int64),
		charges:  make(map[exactKey][]charge),
		blurred:  make(map[int]bool),
	}
}

// Where the judge cannot know what is right, it judges less:
//
//	flag          what makes it so                           what is not judged then
//	hours         the wall clock steps by hours              fixed_window_per_key (unfit): a record moves back when
//	                                                         it is read, and its window ends that much later
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

// exactKey is a key in a window for as long as its charges add up: they start anew when the window is dropped, and when
// the key is reset.
type exactKey struct {
	key    int
	window tenure
	nth    int
	resets int
}

type resetKey struct {
	key    int
	number uint16
	base   uint32
}

// charge is what a key was charged in a window.
type charge struct {
	at, units int64
	of        *stream // that was lost
	hit       int     // the number of the hit, which may be refunded
}

// tenures returns the windows in which the worker's hit must be counted: those
// that its table has and the directory still lists. A window that was dropped and
// came back starts anew for workers that have seen it come back. A page that was
// not written meanwhile may still hold the old usage, so a per-key window may have
// opened before the hits counted here: it is left out.
func (r *run) tenures(w *runWorker) []admissionWindow {
	r.observe()
	windows := make([]admissionWindow, 0, len(w.table.placement.layout.Windows))
	for i, v := range w.table.placement.layout.Windows {
		id := tenure{w.table.placement.number, w.table.placement.base, identity(v)}
		if since, listed := r.present[id]; !listed || w.table.placement.epoch < since ||
			(r.drops[id] > 0 && v.Algorithm == limit.FixedWindowPerKey) {
			continue
		}
		restarts := r.restarts[resetKey{w.keyIndex, id.number, id.base}]
		a := admissionWindow{tenure: id, column: i, nth: r.drops[id], resets: restarts}
		for j, column := range w.table.placement.columnOf[:len(w.table.def.Windows)] {
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

// observe records which windows the directory lists, if it has changed.
func (r *run) observe() {
	stored := r.store.values[string(directoryKey)]
	if stored == nil || stored.cas == r.observed {
		return
	}
	r.observed = stored.cas
	d, ok := directory.Read(stored.value)
	if !ok {
		r.found = "the directory cannot be read"
		return
	}
	listed := make(map[tenure]uint32)
	for _, e := range d.Tables {
		for _, w := range e.Windows {
			id := tenure{e.Number, e.Base, identity(w)}
			listed[id] = e.Epoch
			if w.Algorithm == limit.Concurrency && w.PeriodNs != r.holdNs[id] {
				r.holdNs[id], r.lengths = w.PeriodNs, r.lengths+1
			}
			if since, before := r.present[id]; before {
				listed[id] = since
			}
		}
	}
	for id := range r.present {
		if _, still := listed[id]; !still {
			r.drops[id]++
		}
	}
	r.present = listed
}

func idOf(key int, a *admissionWindow) exactKey { return exactKey{key, a.tenure, a.nth, a.resets} }

func holds(a *admissionWindow) bool { return a.tenure.window.Algorithm == limit.Concurrency }

// setBack moves all that was charged back with the wall clock: it keeps its age.
func (r *run) setBack(ns int64) {
	for _, charges := range r.charges {
		for i := range charges {
			charges[i].at -= ns
		}
	}
	r.low -= ns
	r.latest -= ns
}

// charge charges the worker's key, for a hit or, where that is 0, for an answer.
func (r *run) charge(w *runWorker, now int64, units uint32, hit int) {
	if units == 0 {
		return
	}
	for _, a := range r.tenures(w) {
		if isKnown(&a) {
			id := idOf(w.keyIndex, &a)
			r.charges[id] = append(r.charges[id], charge{at: now, units: int64(units), hit: hit})
		}
	}
}

// isKnown reports whether a charge counts in the window: a worker that does not know the
// size of a token bucket counts nothing in it.
func isKnown(a *admissionWindow) bool {
	return a.checks || a.tenure.window.Algorithm != limit.TokenBucket
}

// set leaves units that were counted now in the worker's windows.
func (r *run) set(w *runWorker, now int64, units uint32) {
	for _, a := range r.tenures(w) {
		if a.checks {
			r.charges[idOf(w.keyIndex, &a)] = []charge{{at: now, units: int64(units)}}
		}
	}
}

// lapseAt is when a hold lapses that was last known to run at the instant, by the holds'
// clock: nine eighths after the start of its eighth. Where this clock is not known exactly,
// or the hold's length changes, it is the earliest instant at which it may.
func (r *run) lapseAt(ns int64) int64 {
	eighth := r.hold.EighthNs()
	if !r.exactly() {
		return ns + limit.HoldParts*eighth
	}
	return (ns/eighth + limit.HoldParts + 1) * eighth
}

// exactly reports whether lapseAt is exact.
func (r *run) exactly() bool { return !r.changes && !r.stops }

// lapse charges what has been lost.
func (r *run) lapse() {
	r.held = slices.DeleteFunc(r.held, func(h *stream) bool {
		if !h.lapsed && r.lapseAt(h.aliveNs) <= r.heldNs() {
			h.lapsed = true
			r.blurred[h.key] = r.blurred[h.key] || !r.strict()
			for i := range h.charges {
				id := idOf(h.key, &h.charges[i])
				r.charges[id] = append(r.charges[id], charge{units: int64(h.units), of: h})
			}
		}
		return h.lapsed && h.lost
	})
}

// unlapse takes back that h has lapsed: it is still held.
func (r *run) unlapse(h *stream) {
	h.lapsed = false
	if r.changes { // it had lapsed under a shorter hold, and is held as if of an evicted key
		h.column = exactKey{}
	}
	for i := range h.charges {
		id := idOf(h.key, &h.charges[i])
		r.charges[id] = slices.DeleteFunc(r.charges[id], func(c charge) bool { return c.of == h })
	}
}

// heldIn is how many units the key holds in one of the windows.
func (r *run) heldIn(key int, windows []admissionWindow) (units uint32) {
	for i := range windows {
		for _, h := range r.held {
			if h.key == key && holds(&windows[i]) && h.column == idOf(key, &windows[i]) && !h.lapsed {
				units += h.units
			}
		}
	}
	return units
}

// counts reports whether h's column is still there and its key was not reset.
func (r *run) counts(h *stream) bool {
	r.observe()
	id := h.column
	_, listed := r.present[id.window]
	restarts := r.restarts[resetKey{h.key, id.window.number, id.window.base}]
	return listed && r.drops[id.window] == id.nth && restarts == id.resets
}

// fits reports whether so many units more fit into a window of the worker's key at now.
func (r *run) fits(w *runWorker, a *admissionWindow, now int64, units uint32) bool {
	if holds(a) {
		return len(r.variant[w.variant].Windows) > 1 || units <= a.units
	}
	x := exact{window: a.tenure.window}
	r.setLimits(&x, w)
	x.window = x.window.Shifted(x.window.KeyShift(shiftHash([]byte{byte(w.keyIndex)})))
	switch {
	case !r.debt:
	case !r.changes:
		x.pays = x.units
	case x.window.Algorithm == limit.FixedWindowPerKey:
		return true // a worker that does not know the window forgives its debt: what opened it is not known
	}
	if r.blurred[w.keyIndex] && x.window.Algorithm == limit.FixedWindowPerKey {
		return true // when a lost hold opened it is not known
	}
	charges := slices.Clone(r.charges[idOf(w.keyIndex, a)])
	charges = slices.DeleteFunc(charges, func(c charge) bool { // a policy that does not hold forgets what was
		return c.of != nil && !r.counts(c.of)
	})
	for i := range charges {
		if c := &charges[i]; c.of != nil {
			c.at = min(r.lapseAt(c.of.aliveNs)+r.low, now) // a shorter hold may have lapsed before it was known
		} else if c.at > now {
			return false // time never goes back for a key
		}
	}
	sort.SliceStable(charges, func(i, j int) bool { return charges[i].at < charges[j].at })
	for _, c := range charges {
		x.count(c.at, c.units, 0)
		if r.holds && r.changes && x.level < 0 {
			return true // a worker that does not know the bucket forgives its debt
		}
	}
	return x.count(now, int64(units), int64(a.units))
}

// unfit returns the first window in which what is held and so many units more do not fit.
func (r *run) unfit(w *runWorker, windows []admissionWindow, units uint32) *admissionWindow {
	for i := range windows {
		a := &windows[i]
		judged := !r.hours || a.tenure.window.Algorithm != limit.FixedWindowPerKey
		if a.checks && judged && !r.fits(w, a, w.entry.Now, units) {
			return a
		}
	}
	return nil
}

// admit judges a hit that was admitted, and has it hold.
func (r *run) admit(w *runWorker, hold Hold) {
	windows := w.windows
	held := r.heldIn(w.keyIndex, windows)
	if a := r.unfit(w, windows, held+w.cost); a != nil {
		r.found = fmt.Sprintf("tick %d: key %d was admitted %d units and holds %d, the limit is %d, burst %d: %+v: %+v",
			w.entry.Now/tick, w.keyIndex, w.cost, held, a.units, a.burst, a.tenure.window,
			r.charges[idOf(w.keyIndex, a)])
		return
	}
	if !r.variant[w.variant].holds() {
		r.charge(w, w.entry.Now, w.cost, w.hit)
		return
	}
	h := &stream{key: w.keyIndex, units: w.cost, worker: w, hold: hold, aliveNs: w.heldNs}
	r.held = append(r.held, h)
	if !w.table.placement.layout.HasHolds() { // a later configuration holds nothing
		r.charge(w, w.entry.Now, w.cost, w.hit)
		h.lapsed = true
		return
	}
	for i := range windows {
		if holds(&windows[i]) {
			h.column = idOf(w.keyIndex, &windows[i])
		} else if windows[i].tenure.window.Algorithm != limit.TokenBucket || !r.changes {
			h.charges = append(h.charges, windows[i])
		}
	}
	h.lengths = r.lengthsAt(h)
	r.lapse()
}

// lengthsAt is how often the hold's length had changed when h was held or renewed last: by a
// worker that may not know the last one.
func (r *run) lengthsAt(h *stream) int {
	if w := (limit.Window{PeriodNs: r.holdNs[h.column.window]}); w.EighthNs() != h.hold.eachNs {
		return r.lengths - 1
	}
	return r.lengths
}

// compare judges a decision of a table that evicts nothing: it is as exact as its limiter.
func (r *run) compare(w *runWorker, passes bool) {
	windows := r.tenures(w)
	held := r.heldIn(w.keyIndex, windows)
	fits := r.unfit(w, windows, held+w.cost) == nil
	back := !fits && r.unfit(w, windows, w.cost) == nil
	gotBack := w.table.IsHeldBack(&w.entry, w.cost)
	if got := w.entry.Held(); passes != fits || got != held || gotBack != back {
		r.found = fmt.Sprintf("tick %d: key %d asks for %d units: passes %v, holds %d, held back %v;"+
			" it is to be %v, %d, %v",
			w.entry.Now/tick, w.keyIndex, w.cost, passes, got, gotBack, fits, held, back)
	}
}

// answered ends the hold and charges what it has cost.
func (r *run) answered(h *stream, w *runWorker, now int64, cost uint32, lapsed bool) {
	r.held = slices.DeleteFunc(r.held, func(o *stream) bool { return o == h })
	r.found = r.differs(h, lapsed)
	if r.found != "" {
		return
	}
	if lapsed {
		cost -= min(cost, h.units)
	} else if h.lapsed {
		r.unlapse(h)
	}
	r.charge(w, now, cost, 0)
}

// renewed notes that h's stream has said it is alive.
func (r *run) renewed(h *stream, lapsed bool) {
	excused := lapsed && r.forgot
	differs := r.differs(h, lapsed)
	if differs != "" && !excused {
		r.found = differs
		return
	}
	if lapsed {
		h.lost = true
		return
	}
	if h.lapsed {
		r.unlapse(h)
	}
	h.aliveNs = r.heldNs()
	h.lengths = r.lengthsAt(h)
}

// differs says what is wrong if h has lapsed or not.
func (r *run) differs(h *stream, lapsed bool) string {
	r.observe()
	// A stream that was silent until its hold had lapsed, over two changes of the hold's length
	// of which the second made it longer, ends a hold of another: it knows one length.
	if !lapsed && h.lapsed && r.lengths-h.lengths >= 2 {
		r.unjudged = true
		return ""
	}
	if !lapsed && r.forgot { // where a key that held was reset, an evicted one's hold may find nothing
		return ""
	}
	// After the hold's length has changed, what is held may be some eighths ahead of the clock.
	// What is eight eighths old then may lie among those or not, so it is said to have lapsed.
	early := r.changes && r.heldNs() >= r.lapseAt(h.aliveNs)-r.hold.EighthNs()
	if r.counts(h) && (lapsed && !h.lapsed && !early || !lapsed && h.lapsed && r.exactly()) {
		return fmt.Sprintf("at %d a hold of key %d has lapsed: %v; its time is %d",
			r.heldNs(), h.key, lapsed, r.lapseAt(h.aliveNs))
	}
	return ""
}

// end judges what is left once every hold has been settled or lost.
func (r *run) end() string {
	r.finish(0)
	for _, h := range slices.Clone(r.held) {
		if !h.lost && r.random.IntN(2) == 0 && r.found == "" {
			r.settle(h)
		}
	}
	r.pass(100)
	w := r.workers[0]
	var e Entry
	for key := range r.keys {
		r.as(w, key, func(k Key, now int64) {
			r.must("read", w.table.Read(&e, k, now))
			if held := e.Held(); held != 0 && r.found == "" {
				r.found = fmt.Sprintf("key %d still holds %d", key, held)
			}
		})
	}
	if r.hours || r.changes || r.found != "" {
		return r.found
	}
	r.pass(3000)
	if r.random.IntN(2) == 0 {
		r.clean(w)
		if s, _ := w.table.Stats(new(Scratch), r.variant[w.variant].rule, r.tell(w)); s.Keys != 0 {
			return fmt.Sprintf("%d keys are left", s.Keys)
		}
	}
	for key := range w.table.placement.layout.Slots {
		r.as(w, 100+key, func(k Key, now int64) {
			status := w.table.Read(&e, k, now)
			if status == OK {
				status = w.table.Commit(&e, 1, true)
			}
			if status != OK || e.Evicted {
				r.found = fmt.Sprintf("commit: status %d, evicted %v: an expired record was not used again",
					status, e.Evicted)
			}
		})
	}
	return r.found
}

// setLimits sets x's limits from those that the worker's key has in all
// configurations of its counter.
func (r *run) setLimits(x *exact, w *runWorker) {
	for i := range r.variant {
		v := &r.variant[i]
		if v.Counter != r.variant[w.variant].Counter {
			continue
		}
		for j, w := range v.limitsOf(w.keyIndex) {
			if identity(v.Windows[j]) != x.window {
				continue
			}
			x.minBurst = min(x.minBurst, int64(w.Burst))
			if x.burst == 0 {
				x.minBurst = int64(w.Burst)
			}
			x.units, x.burst = max(x.units, int64(w.Limit)), max(x.burst, int64(w.Burst))
		}
	}
}
