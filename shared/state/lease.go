package state

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Charge is what a Commit has counted of one key, as it must be known to give
// units of it back when the request that counted them is long over. Unlike an
// Entry it is small. Only a record that is Lendable is charged so.
type Charge struct {
	Hash     uint64 // of the key, under the tables' seed
	CalledNs int64  // when it was counted, by the worker's own clock
	Now      int64  // the instant at which it counts
	EndNs    int64  // when the first of its windows ends

	jitter     uint64 // the key's stable hash
	epoch      uint32
	generation uint16
}

// Counted is what a fixed window or a sliding counter has counted.
type Counted struct{ Used, Prev uint32 }

// Aim takes the key's hash for e, so that Reread may follow in place of Read,
// and returns it; not before the table was first read.
func (t *Table) Aim(e *Entry, key []byte) (hash uint64, ok bool) {
	if !t.open {
		return 0, false
	}
	e.hash = t.hash(key)
	return e.hash, true
}

// Hash returns the hash of the key that e was read with last.
func (t *Table) Hash(e *Entry) uint64 { return e.hash }

// Lendable reports whether units that e's Commit counts may be served later in
// the windows they are counted in, and be given back by what a Charge knows: no
// window of the record begins or slides with a hit, and all are known to this
// configuration.
func (t *Table) Lendable(e *Entry) bool {
	for _, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			return false
		}
	}
	for i := range t.layout.Windows {
		if a := e.windows[i].Algorithm; a != limit.FixedWindow && a != limit.SlidingWindowCounter {
			return false
		}
	}
	return len(t.layout.Windows) == len(t.def.Windows)
}

// Charged returns what e's Commit has counted. jitter is the key's stable hash,
// by which the grids of jittered windows are shifted.
func (t *Table) Charged(e *Entry, jitter uint64) Charge {
	c := Charge{Hash: e.hash, CalledNs: e.callerNs, Now: e.Now, jitter: jitter, epoch: e.epoch, generation: e.generation}
	for i := range t.layout.Windows {
		if end := e.windows[i].End(e.Now); i == 0 || end < c.EndNs {
			c.EndNs = end
		}
	}
	return c
}

// Holds reports whether the table has the layout that c was counted in.
func (t *Table) Holds(c *Charge) bool { return t.open && c.epoch == t.epoch }

// Forgo takes units of a charge out of what e, as Read left it, says that the
// key has used: a Commit of e then gives them back with the same write. Where
// that is impossible, because the record or the charge's place in it is gone, it
// reports false, and the units stay counted.
func (t *Table) Forgo(e *Entry, c *Charge, units uint32) bool {
	_, complete := t.forgo(e, c, units)
	return complete
}

func (t *Table) forgo(e *Entry, c *Charge, units uint32) (changed, complete bool) {
	switch {
	case e.slot < 0, e.Rebased, e.epoch != c.epoch, e.hash != c.Hash,
		e.bucket.recordGeneration(&t.layout, e.slot) != c.generation,
		e.bucket.time(&t.layout, e.slot) < c.Now, // moved by a wild clock since
		e.callerNs < c.CalledNs:
		return false, false
	}
	complete = true
	for i := range t.layout.Windows {
		w := &e.windows[i]
		var after limit.Usage
		if w.Jitter > 0 {
			after.EndNs = w.End(c.Now)
		}
		u := &e.usage[i]
		used, prev := u.Used, u.Prev
		if used == math.MaxUint32 || prev == math.MaxUint32 { // others may have counted more than it says
			complete = false
			continue
		}
		taken := w.TakeBack(u, &after, c.Now, e.Now, units, false)
		changed = changed || u.Used != used || u.Prev != prev
		complete = complete && taken
	}
	return changed, complete
}

// GiveBack gives units of a charge back by compare-and-swap. It reports whether
// no window still counts them; e is for its use alone.
func (t *Table) GiveBack(e *Entry, c *Charge, now int64, units uint32) bool {
	e.shifted = append(e.shifted[:0], t.def.Windows...)
	windows := e.shifted
	for i, w := range windows {
		if w.Jitter > 0 {
			windows[i] = w.Shifted(w.KeyShift(c.jitter))
		}
	}
	key := Key{Windows: windows, Rule: t.def.Windows}
	for range maxTries {
		if !t.Holds(c) {
			return false
		}
		e.hash = c.Hash
		if t.Reread(e, key, now) != OK {
			return false
		}
		changed, complete := t.forgo(e, c, units)
		if !changed {
			return complete
		}
		status := t.begin(e, false)
		if status == OK {
			status = t.finish(e, false)
		}
		switch status {
		case OK:
			return complete
		case Mismatch:
		default:
			return false
		}
	}
	return false
}

// Tally notes in counted what e says that the key has used in each window of
// the definition.
func (t *Table) Tally(e *Entry, counted []Counted) {
	for i := range counted {
		u := t.Usage(e, i)
		counted[i] = Counted{u.Used, u.Prev}
	}
}

// Tell makes e say of a key, without reading it, that it has used what is
// counted and not units of that. at lies in the windows of the count.
func (t *Table) Tell(e *Entry, at int64, counted []Counted, units uint32) {
	e.Now = at
	e.Evicted, e.Rebased, e.FromFloor, e.opened, e.Resets = false, false, false, 0, 0
	for i, c := range counted {
		if column := t.columns[i]; column >= 0 {
			e.usage[column] = limit.Usage{Used: c.Used - units, Prev: c.Prev}
		}
	}
}
