package state

import (
	"fmt"
	"slices"
)

// answered ends the hold and charges what it has cost.
func (r *run) answered(h *stream, w *runWorker, now int64, cost uint32, lapsed bool) {
	r.held = slices.DeleteFunc(r.held, func(o *stream) bool { return o == h })
	if r.found = r.differs(h, lapsed); r.found != "" {
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
func (r *run) differs(h *stream, lapsed bool) string {
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
	early := r.changes && r.heldNs() >= r.lapseAt(h.aliveNs)-r.hold.EighthNs()
	if r.counts(h) && (lapsed && !h.lapsed && !early || !lapsed && h.lapsed && r.exactly()) {
		return fmt.Sprintf("at %d a hold of key %d has lapsed: %v; its time is %d", r.heldNs(), h.key, lapsed, r.lapseAt(h.aliveNs))
	}
	return ""
}

// settle ends a hold at a worker that knows its counter: with nothing, with less, with as
// much, or with more than it held.
func (r *run) settle(h *stream) {
	w, cost := h.worker, []uint32{0, uint32(r.random.IntN(int(h.units + 1))), h.units, h.units + uint32(r.random.IntN(4))}[r.random.IntN(4)]
	if other := r.workers[r.random.IntN(len(r.workers))]; r.variant[other.variant].Counter == r.variant[w.variant].Counter {
		w = other
	}
	var e Entry
	r.as(w, h.key, func(k Key, now int64) {
		lapsed, status := w.table.Settle(&e, k, h.receipt, now, cost)
		if r.must("settle", status) {
			r.answered(h, w, e.Now, cost, lapsed)
		}
	})
}

// renew is a tick of a worker: its streams say that they are alive.
func (r *run) renew(w *runWorker) {
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
			if r.must("renew", status) {
				r.renewed(h, lapsed)
			}
		})
	}
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
			if held := w.table.Held(&e); held != 0 && r.found == "" {
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
