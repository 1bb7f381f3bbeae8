package state

import (
	"fmt"
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// account is what a key was charged in a window, charge by charge.
type account struct{ charges []charge }

type charge struct {
	at, units int64
	of        *stream // that was lost
}

func (r *heldRun) account(id exactKey) *account {
	if r.accounts[id] == nil {
		r.accounts[id] = &account{}
	}
	return r.accounts[id]
}

func idOf(key int, a *admissionWindow) exactKey { return exactKey{key, a.tenure, a.nth, a.resets} }

func holds(a *admissionWindow) bool { return a.tenure.window.Algorithm == limit.Concurrency }

// charge charges the worker's key.
func (r *heldRun) charge(w *runWorker, now int64, units uint32) {
	if units == 0 {
		return
	}
	for _, a := range r.tenures(w) {
		if isKnown(&a) {
			c := r.account(idOf(w.keyIndex, &a))
			c.charges = append(c.charges, charge{now, int64(units), nil})
		}
	}
}

// isKnown reports whether a charge counts in the window: a worker that does not know the
// size of a token bucket counts nothing in it.
func isKnown(a *admissionWindow) bool {
	return a.checks || a.tenure.window.Algorithm != limit.TokenBucket
}

// set leaves units that were counted now in the worker's windows.
func (r *heldRun) set(w *runWorker, now int64, units uint32) {
	for _, a := range r.tenures(w) {
		if a.checks {
			r.account(idOf(w.keyIndex, &a)).charges = []charge{{now, int64(units), nil}}
		}
	}
}

// lapseAt is when a hold lapses that was last known to run at the instant, by the holds'
// clock: nine eighths after the start of its eighth. Where this clock is not known exactly,
// or the hold's length changes, it is the earliest instant at which it may.
func (r *heldRun) lapseAt(ns int64) int64 {
	eighth := r.hold.EighthNs()
	if !r.exactly() {
		return ns + limit.HoldParts*eighth
	}
	return (ns/eighth + limit.HoldParts + 1) * eighth
}

// exactly reports whether lapseAt is exact.
func (r *heldRun) exactly() bool { return !r.plays.changes && !r.plays.stops }

// lapse charges what has been lost.
func (r *heldRun) lapse() {
	r.held = slices.DeleteFunc(r.held, func(h *stream) bool {
		if !h.lapsed && r.lapseAt(h.aliveNs) <= r.heldNs() {
			h.lapsed = true
			r.blurred[h.key] = r.blurred[h.key] || !r.plays.strict()
			for i := range h.charges {
				c := r.account(idOf(h.key, &h.charges[i]))
				c.charges = append(c.charges, charge{units: int64(h.units), of: h})
			}
		}
		return h.lapsed && h.lost
	})
}

// unlapse takes back that h has lapsed: it is still held.
func (r *heldRun) unlapse(h *stream) {
	if h.lapsed = false; r.plays.changes { // it had lapsed under a shorter hold, and is held as if of an evicted key
		h.column = exactKey{}
	}
	for i := range h.charges {
		c := r.account(idOf(h.key, &h.charges[i]))
		c.charges = slices.DeleteFunc(c.charges, func(c charge) bool { return c.of == h })
	}
}

// heldIn is how many units the key holds in one of the windows.
func (r *heldRun) heldIn(key int, windows []admissionWindow) (units uint32) {
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
func (r *heldRun) counts(h *stream) bool {
	r.observe()
	id := h.column
	_, listed := r.present[id.window]
	return listed && r.drops[id.window] == id.nth && r.resets[resetKey{h.key, id.window.number, id.window.base}] == id.resets
}

// fits reports whether so many units more fit into a window of the worker's key at now.
func (r *heldRun) fits(w *runWorker, a *admissionWindow, now int64, units uint32) bool {
	if holds(a) {
		return len(r.variant[w.variant].Windows) > 1 || units <= a.units
	}
	x := exact{window: a.tenure.window}
	r.setLimits(&x, &admission{key: w.keyIndex, variant: w.variant})
	x.window = x.window.Shifted(x.window.KeyShift(shiftHash([]byte{byte(w.keyIndex)})))
	switch {
	case !r.plays.debt:
	case !r.plays.changes:
		x.pays = x.units
	case x.window.Algorithm == limit.FixedWindowPerKey:
		return true // a worker that does not know the window forgives its debt: what opened it is not known
	}
	if r.blurred[w.keyIndex] && x.window.Algorithm == limit.FixedWindowPerKey {
		return true // when a lost hold opened it is not known
	}
	charges := slices.Clone(r.account(idOf(w.keyIndex, a)).charges)
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
		if r.plays.changes && x.level < 0 {
			return true // a worker that does not know the bucket forgives its debt
		}
	}
	return x.count(now, int64(units), int64(a.units))
}

// unfit returns the first window in which what is held and so many units more do not fit.
func (r *heldRun) unfit(w *runWorker, windows []admissionWindow, units uint32) *admissionWindow {
	for i := range windows {
		if a := &windows[i]; a.checks && (!r.plays.hours || holds(a)) && !r.fits(w, a, w.entry.Now, units) {
			return a
		}
	}
	return nil
}

// admit judges a hit that was admitted, and has it hold.
func (r *heldRun) admit(w *runWorker, receipt Receipt) {
	windows := r.tenures(w)
	held := r.heldIn(w.keyIndex, windows)
	if a := r.unfit(w, windows, held+w.cost); a != nil {
		r.found = fmt.Sprintf("stride %d: key %d was admitted %d units and holds %d, the limit is %d, burst %d: %+v: %+v",
			w.entry.Now/stride, w.keyIndex, w.cost, held, a.units, a.burst, a.tenure.window, r.account(idOf(w.keyIndex, a)).charges)
		return
	}
	own := r.variant[w.variant].Windows
	if own[len(own)-1].Algorithm != limit.Concurrency {
		r.charge(w, w.entry.Now, w.cost)
		return
	}
	h := &stream{key: w.keyIndex, units: w.cost, worker: w, receipt: receipt, aliveNs: w.heldNs}
	if r.held = append(r.held, h); !w.table.layout.holds { // a later configuration holds nothing
		r.charge(w, w.entry.Now, w.cost)
		h.lapsed = true
		return
	}
	for i := range windows {
		if holds(&windows[i]) {
			h.column = idOf(w.keyIndex, &windows[i])
		} else if windows[i].tenure.window.Algorithm != limit.TokenBucket || !r.plays.changes {
			h.charges = append(h.charges, windows[i])
		}
	}
	h.lengths = r.lengthsAt(h)
	r.lapse()
}

// lengthsAt is how often the hold's length had changed when h's receipt was written: by a
// worker that may not know the last one.
func (r *heldRun) lengthsAt(h *stream) int {
	if w := (limit.Window{PeriodNs: r.holdNs[h.column.window]}); w.EighthNs() != h.receipt.eachNs {
		return r.lengths - 1
	}
	return r.lengths
}

// compare judges a decision of a table that evicts nothing: it is as exact as its limiter.
func (r *heldRun) compare(w *runWorker, passes bool) {
	windows := r.tenures(w)
	held := r.heldIn(w.keyIndex, windows)
	fits := r.unfit(w, windows, held+w.cost) == nil
	back := !fits && r.unfit(w, windows, w.cost) == nil
	if got := w.table.Held(&w.entry); passes != fits || got != held || w.entry.HeldBack != back {
		r.found = fmt.Sprintf("stride %d: key %d asks for %d units: passes %v, holds %d, held back %v; it is to be %v, %d, %v",
			w.entry.Now/stride, w.keyIndex, w.cost, passes, got, w.entry.HeldBack, fits, held, back)
	}
}

// answered ends the hold and charges what it has cost.
func (r *heldRun) answered(h *stream, w *runWorker, now int64, cost uint32, lapsed bool) {
	r.held = slices.DeleteFunc(r.held, func(o *stream) bool { return o == h })
	if r.found = r.differs(h, lapsed); r.found != "" {
		return
	}
	if lapsed {
		cost -= min(cost, h.units)
	} else if h.lapsed {
		r.unlapse(h)
	}
	r.charge(w, now, cost)
}

// renewed notes that h's stream has said it is alive.
func (r *heldRun) renewed(h *stream, lapsed bool) {
	excused := lapsed && r.forgot
	if r.found = r.differs(h, lapsed); r.found != "" && !excused {
		return
	}
	switch r.found = ""; {
	case lapsed:
		h.lost = true
	case h.lapsed:
		r.unlapse(h)
		fallthrough
	default:
		h.aliveNs, h.lengths = r.heldNs(), r.lengthsAt(h)
	}
}

// differs says what is wrong if h has lapsed or not.
func (r *heldRun) differs(h *stream, lapsed bool) string {
	r.observe()
	// A stream that was silent until its hold had lapsed, over two changes of the hold's length
	// of which the second made it longer, ends a hold of another: its receipt knows one length.
	if !lapsed && h.lapsed && r.lengths-h.lengths >= 2 {
		r.unjudged = true
		return ""
	}
	if !lapsed && r.forgot { // where a key that held was reset, an evicted one's receipt may find nothing
		return ""
	}
	// After the hold's length has changed, what is held may be some eighths ahead of the clock.
	// What is eight eighths old then may lie among those or not, so it is said to have lapsed.
	early := r.plays.changes && r.heldNs() >= r.lapseAt(h.aliveNs)-r.hold.EighthNs()
	if r.counts(h) && (lapsed && !h.lapsed && !early || !lapsed && h.lapsed && r.exactly()) {
		return fmt.Sprintf("at %d a hold of key %d has lapsed: %v; its time is %d", r.heldNs(), h.key, lapsed, r.lapseAt(h.aliveNs))
	}
	return ""
}

// settle ends a hold at a worker that knows its counter: with nothing, with less, with as
// much, or with more than it held.
func (r *heldRun) settle(h *stream) {
	w, cost := h.worker, []uint32{0, uint32(r.random.IntN(int(h.units + 1))), h.units, h.units + uint32(r.random.IntN(4))}[r.random.IntN(4)]
	if other := r.workers[r.random.IntN(len(r.workers))]; r.variant[other.variant].Counter == r.variant[w.variant].Counter {
		w = other
	}
	var e Entry
	r.as(w, h.key, func(k Key, now int64) {
		lapsed, status := w.table.Settle(&e, k, h.receipt, now, cost)
		if status != OK {
			r.found = fmt.Sprintf("settle: status %d", status)
			return
		}
		r.answered(h, w, e.Now, cost, lapsed)
	})
}

// renew is a tick of a worker: its streams say that they are alive.
func (r *heldRun) renew(w *runWorker) {
	for _, h := range slices.Clone(r.held) {
		if h.lost || h.worker != w || r.random.IntN(8) == 0 {
			continue
		}
		var e Entry
		r.as(w, h.key, func(k Key, now int64) {
			if !w.table.IsDue(&h.receipt, w.table.tables.HeldNow()) {
				return
			}
			lapsed, status := w.table.Renew(&e, k, &h.receipt, now)
			if status != OK {
				r.found = fmt.Sprintf("renew: status %d", status)
				return
			}
			r.renewed(h, lapsed)
		})
	}
}

// end judges what is left once every hold has been settled or lost.
func (r *heldRun) end() string {
	r.finishHeld(0)
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
			if status := w.table.Read(&e, k, now); status != OK {
				r.found = fmt.Sprintf("read: status %d", status)
			}
			if held := w.table.Held(&e); held != 0 && r.found == "" {
				r.found = fmt.Sprintf("key %d still holds %d", key, held)
			}
		})
	}
	if r.plays.hours || r.plays.changes || r.found != "" {
		return r.found
	}
	r.pass(3000)
	if r.random.IntN(2) == 0 {
		r.cleanHeld(w)
		if s, _ := w.table.Stats(&e, r.variant[w.variant].rule, r.tell(w)); s.Keys != 0 {
			return fmt.Sprintf("%d keys are left", s.Keys)
		}
	}
	for key := range w.table.layout.Slots {
		r.as(w, 100+key, func(k Key, now int64) {
			status := w.table.Read(&e, k, now)
			if status == OK {
				status = w.table.Commit(&e, 1, true)
			}
			if status != OK || e.Evicted {
				r.found = fmt.Sprintf("commit: status %d, evicted %v: an expired record was not used again", status, e.Evicted)
			}
		})
	}
	return r.found
}
