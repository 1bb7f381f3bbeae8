package state

import (
	"fmt"
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// observe records which windows the directory lists, if it has changed.
func (r *run) observe() {
	stored := r.store.values[string(directoryKey)]
	if stored == nil || stored.cas == r.observed {
		return
	}
	r.observed = stored.cas
	d, ok := readDirectory(stored.value)
	if !ok {
		r.found = "the directory cannot be read"
		return
	}
	listed := make(map[tenure]uint32)
	for _, e := range d.tables {
		for _, w := range e.windows {
			id := tenure{e.number, e.base, identity(w)}
			listed[id] = e.epoch
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

// charge is what a key was charged in a window.
type charge struct {
	at, units int64
	of        *stream // that was lost
	hit       int     // the number of the hit, which may be refunded
}

func idOf(key int, a *admissionWindow) exactKey { return exactKey{key, a.tenure, a.nth, a.resets} }

func holds(a *admissionWindow) bool { return a.tenure.window.Algorithm == limit.Concurrency }

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
	if h.lapsed = false; r.changes { // it had lapsed under a shorter hold, and is held as if of an evicted key
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
	return listed && r.drops[id.window] == id.nth && r.restarts[resetKey{h.key, id.window.number, id.window.base}] == id.resets
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
		if a := &windows[i]; a.checks && (!r.hours || holds(a)) && !r.fits(w, a, w.entry.Now, units) {
			return a
		}
	}
	return nil
}

// admit judges a hit that was admitted, and has it hold.
func (r *run) admit(w *runWorker, receipt Receipt) {
	windows := w.windows
	held := r.heldIn(w.keyIndex, windows)
	if a := r.unfit(w, windows, held+w.cost); a != nil {
		r.found = fmt.Sprintf("tick %d: key %d was admitted %d units and holds %d, the limit is %d, burst %d: %+v: %+v",
			w.entry.Now/tick, w.keyIndex, w.cost, held, a.units, a.burst, a.tenure.window, r.charges[idOf(w.keyIndex, a)])
		return
	}
	if !r.variant[w.variant].holds() {
		r.charge(w, w.entry.Now, w.cost, w.hit)
		return
	}
	h := &stream{key: w.keyIndex, units: w.cost, worker: w, receipt: receipt, aliveNs: w.heldNs}
	if r.held = append(r.held, h); !w.table.layout.holds { // a later configuration holds nothing
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

// lengthsAt is how often the hold's length had changed when h's receipt was written: by a
// worker that may not know the last one.
func (r *run) lengthsAt(h *stream) int {
	if w := (limit.Window{PeriodNs: r.holdNs[h.column.window]}); w.EighthNs() != h.receipt.eachNs {
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
	if got := w.table.Held(&w.entry); passes != fits || got != held || w.entry.HeldBack != back {
		r.found = fmt.Sprintf("tick %d: key %d asks for %d units: passes %v, holds %d, held back %v; it is to be %v, %d, %v",
			w.entry.Now/tick, w.keyIndex, w.cost, passes, got, w.entry.HeldBack, fits, held, back)
	}
}
