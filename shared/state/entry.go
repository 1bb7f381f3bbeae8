package state

import (
	"bytes"
	"math"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Key is a key of a counter with the limits that hold for it. Both lists have
// the windows of the table's definition, in its order.
type Key struct {
	Bytes   []byte
	Windows []limit.Window // with this key's limits, grids shifted by its jitter
	Rule    []limit.Window // with the rule's own limits, by which the least used key is found; see Overridden
}

// Entry is one key's place in its page, as Table.Read found it. The zero
// value is ready to be read into; it is re-used from request to request.
type Entry struct {
	Now       int64 // the instant at which the key is counted
	FromFloor bool  // the key has no record and starts from the page's floor
	Evicted   bool  // Commit evicted a live record
	Rebased   bool  // Read moved what a wild clock had written to the present
	Resets    int   // windows in which the key had used something that has ended

	hash        uint64 // of the key, under the tables' seed
	key         [15]byte
	fingerprint uint32
	page        page
	fresh       bool // the page does not exist yet, and must be copied before it is changed
	cas         uint32
	epoch       uint32
	slot        int // -1 without a record
	callerNs    int64
	got         got // what Fast.Read has read and declined

	// A column of the layout each.
	windows []limit.Window              // with the key's limits
	rule    []limit.Window              // with the rule's
	own     [2][MaxWindows]limit.Window // memory for both
	usage   [MaxWindows]limit.Usage     // as of Now
	logs    [MaxWindows][]int64         // memory for what logs are decoded into
	other   []int64                     // the same for other keys' records
	nothing limit.Usage                 // counted by a window that has no column

	// What Refund needs to know of the Commit.
	generation uint16
	opened     uint16 // bit i: the hit opened the window of column i
}

// got is an answer of the store.
type got struct {
	here   bool
	status Status
	cas    uint32
	value  []byte
}

// log returns memory for a log of column i, with room for as much again.
func (e *Entry) log(i int) []int64 {
	if e.windows[i].Algorithm == limit.SlidingWindowLog && e.logs[i] == nil {
		e.logs[i] = make([]int64, 0, 2*limit.MaxLog)
	}
	return e.logs[i]
}

// HasRecord reports whether the key has a record, be it an empty one.
func (e *Entry) HasRecord() bool { return e.slot >= 0 }

// Usage returns what window i of the table's definition has counted, as of e.Now.
// It is valid until e is read into again.
func (t *Table) Usage(e *Entry, i int) *limit.Usage {
	if column := t.columns[i]; column >= 0 {
		return &e.usage[column]
	}
	return &e.nothing // a configuration made later has dropped this window
}

// Check returns the earliest instant at which a hit of cost units passes every
// window if nobody else comes: at or before e.Now when it passes at once,
// limit.Never when it cannot.
func (t *Table) Check(e *Entry, cost uint32) int64 {
	at := e.Now
	for _, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		pass := e.windows[column].Check(&e.usage[column], e.Now, cost)
		if pass == limit.Never {
			return limit.Never
		}
		at = max(at, pass)
	}
	return at
}

// Commit counts a hit, which Check need not have passed, by compare-and-swap.
// It counts in every window of the record, also in one that only a newer
// configuration has. A key without a record takes a free slot, else an expired
// one; where the page is full of live records and evict is set, the one that
// uses least of the rule's limits goes, and the page's floor remembers what it
// used. Mismatch: somebody wrote first, or the windows have changed since Read,
// so Read and Check again.
func (t *Table) Commit(e *Entry, cost uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for i := range e.windows {
		w, u := &e.windows[i], &e.usage[i]
		if w.Algorithm == limit.FixedWindowPerKey && u.EndNs == 0 {
			e.opened |= 1 << i
		}
		w.Add(u, e.Now, cost)
	}
	return t.finish(e, false)
}

// begin makes e's page ready for a change of the key's usage, which has its
// record from then on.
func (t *Table) begin(e *Entry, evict bool) Status {
	if e.epoch != t.epoch {
		return Mismatch
	}
	if e.fresh {
		e.page, e.fresh = bytes.Clone(e.page), false
	}
	if e.slot >= 0 {
		return OK
	}
	if status := t.settle(e, evict); status != OK {
		return status
	}
	for i := range e.windows {
		e.usage[i] = e.windows[i].Inherit(e.usage[i], e.Now)
	}
	return OK
}

// finish writes the key's usage. With replaced the record starts a new past: hits
// counted before are not taken back from it.
func (t *Table) finish(e *Entry, replaced bool) Status {
	e.page.setTime(&t.layout, e.slot, e.Now)
	for i := range e.windows {
		e.page.setUsage(&t.layout, e.slot, i, &e.usage[i])
	}
	e.generation = e.page.recordGeneration(&t.layout, e.slot)
	if replaced {
		e.generation = e.page.nextGeneration()
	}
	e.page.mark(&t.layout, e.slot, e.generation, false)
	return t.write(e)
}

// Persist writes a denied key's entry where Read had to move it to the present,
// so that a wild clock cannot lock the key out. A race is lost in silence:
// whoever won has seen the same.
func (t *Table) Persist(e *Entry) {
	if e.Rebased {
		t.write(e)
	}
}

func (t *Table) write(e *Entry) Status {
	return t.tables.store.Set(e.key[:], e.page, e.cas)
}

// Earliest returns when the first record of e's page expires, which is how
// long a newcomer to a full page waits where the rule does not evict;
// limit.Never where none does by itself.
func (t *Table) Earliest(e *Entry) int64 {
	first := int64(math.MaxInt64)
	for slot := range t.layout.Slots {
		first = min(first, t.expiry(e, slot))
	}
	if first == math.MaxInt64 {
		return limit.Never
	}
	return first
}

// Refund undoes a Commit whose request was denied by another rule: cost is
// what it counted. It reports whether every window gave
// the hit back; one that could not keeps it until the window ends, which is
// never too loose. e must be as Commit left it.
func (t *Table) Refund(e *Entry, now int64, cost uint32) bool {
	committed := *e
	for range maxRetries {
		if t.load(e, now) != OK || e.epoch != committed.epoch {
			return false
		}
		e.callerNs = now
		e.slot = e.page.find(&t.layout, e.fingerprint)
		if e.slot < 0 || e.page.recordGeneration(&t.layout, e.slot) != committed.generation {
			return false
		}
		complete := t.refund(e, &committed, cost)
		switch t.write(e) {
		case OK:
			return complete
		case Mismatch:
		default:
			return false
		}
	}
	return false
}

func (t *Table) refund(e, committed *Entry, cost uint32) bool {
	last := e.page.time(&t.layout, e.slot)
	at := max(e.callerNs, last)
	complete := true
	for i := range t.layout.Windows {
		w, u := &e.windows[i], &e.usage[i]
		e.page.read(&t.layout, e.slot, i, e.log(i), u)
		w.Roll(u, last, at)
		opened := committed.opened&(1<<i) != 0
		taken := w.Refund(u, &committed.usage[i], committed.Now, at, cost, opened)
		complete = complete && taken
	}
	e.page.setTime(&t.layout, e.slot, at)
	for i := range t.layout.Windows {
		e.page.setUsage(&t.layout, e.slot, i, &e.usage[i])
	}
	e.Now = at
	return complete
}
