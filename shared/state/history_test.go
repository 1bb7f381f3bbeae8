package state

import (
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

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

// change makes a new configuration, or lets a worker catch up with the newest. Receipts stay
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
			if e.slot >= 0 && e.held.Total() > 0 {
				r.forgot = true
			}
			_, status = w.table.Reset(&e, true)
			r.restarts[resetKey{w.keyIndex, w.table.number, w.table.base}]++
		default:
			n := uint32(r.random.IntN(7))
			if status = w.table.Set(&e, AllWindows, n, true); status == OK {
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
		w.key, w.cost, w.said = append(w.key[:0], byte(w.keyIndex)), 1, uint32(r.random.IntN(mostLimit+1))
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
	} else if page := r.store.values[string(w.entry.key[:])]; page != nil && page.cas != w.entry.cas {
		r.found = "a denial has written"
	}
}

// commit holds, or counts at once if the worker's configuration settles nothing.
func (r *run) commit(w *runWorker) {
	r.tell(w)
	var receipt Receipt
	var status Status
	if r.variant[w.variant].holds() {
		receipt, status = w.table.Hold(&w.entry, w.cost, true)
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
		r.admit(w, receipt)
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
		a := admissionWindow{tenure: id, column: i, nth: r.drops[id], resets: r.restarts[resetKey{w.keyIndex, id.number, id.base}]}
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
