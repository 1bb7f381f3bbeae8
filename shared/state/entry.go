package state

import (
	"bytes"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A decision is three calls with one Entry: Read finds the key's record or the floor and
// brings it to the present, Check says whether a hit passes, and Commit counts it in one
// compare-and-swap. Refund undoes a Commit.

// Entry is what Table.Read found of one key in its page. The zero value is
// ready for Read. Re-use an Entry from request to request: it keeps its memory.
//
// A visit of all pages (visit.go) uses an Entry too, which readPage fills with a page and no key:
//
//	                                    after Read                    after readPage
//	page, epoch, cas                    of the key's page             of the page
//	floorHolds                          if the table holds: what the page's floor holds, without
//	                                    what has lapsed
//	windows                             with the key's limits         with the rule's
//	rule                                with the rule's               with the rule's
//	slot                                the key's, -1 without record  -1
//	Now                                 not before that record, or    not before the floor
//	                                    the floor without one
//	heldNs                              if the table holds            if the table holds
//	monotonicNs                         not set                       if the table leases
//	usage, holds, hash, fingerprint     the key's                     not set
//	what Read and Commit found          set                           not set
type Entry struct {
	// clock.go says which clock counts what.
	Now         int64 // at which the key is counted: never before the last write
	CallerNs    int64 // the caller's clock, as it read it or as it was read once more
	heldNs      int64 // the holds' clock, if the table holds
	monotonicNs int64 // the store's monotonic clock, if the table leases and readPage read it

	// What Read and Commit found. Reread clears it.
	FromFloor bool // the key has no record and starts from the page's floor
	Evicted   bool // Commit evicted a live record
	Rebased   bool // Read moved what was written before the clock was set back to the present
	Resets    int  // windows whose usage has ended since the record was written
	Blocked   bool // Deny began a block

	HeldBack bool // Check found, the last time, that only what is held leaves no room

	// The page, and the key's slot in it.
	hash        uint64   // of the key, under the tables' seed
	pageKey     [15]byte // in shared data
	page        page
	missing     bool // the page does not exist yet: page is the table's header, to be copied before a change
	cas         uint32
	epoch       uint32
	fingerprint uint32
	slot        int  // -1 without a record
	clockRead   bool // the clock was read once more, see foundSetBack

	// By column of the layout.
	windows []limit.Window          // with the key's limits
	rule    []limit.Window          // with the rule's
	usage   [MaxWindows]limit.Usage // as of Now; of the column of holds: Used is held, see Held

	// What is held of the key is the sum of two: its record's, and the floor's if the record was
	// evicted while it held.
	holds      limit.Holds // of the key's record
	floorHolds limit.Holds // of the page's floor, for all keys without a record

	// From Commit, for Refund.
	generation uint16
	opened     uint16 // bit i: the hit opened the window of column i

	memory entryMemory
}

// entryMemory is kept from call to call so that a decision allocates nothing. It carries no
// result from one call to the next: what lapses is passed on as slices that lie in it.
type entryMemory struct {
	windows      [MaxWindows]limit.Window // for Entry.windows
	rule         [MaxWindows]limit.Window // for Entry.rule
	logs         [MaxWindows][]int64      // decoded logs of the key
	otherLog     []int64                  // the decoded log of another key
	nothing      limit.Usage              // of a window without a column
	recordLapses []lapse                  // lapse.go says whose lapses these are
	floorLapses  []lapse
	otherLapses  []lapse
}

// log returns memory for a log of column i: twice the longest log, because a hit
// appends its units before the oldest are dropped.
func (e *Entry) log(i int) []int64 {
	if e.windows[i].Algorithm == limit.SlidingWindowLog && e.memory.logs[i] == nil {
		e.memory.logs[i] = make([]int64, 0, 2*limit.MaxLog)
	}
	return e.memory.logs[i]
}

// HasRecord reports whether the key has a record, even an empty one.
func (e *Entry) HasRecord() bool { return e.slot >= 0 }

// unshare makes e's page one that may be changed. Read needs no unshare: a missing page has no time, no
// record and no hold, so Read changes nothing in it.
func (e *Entry) unshare() {
	if e.missing {
		e.page = bytes.Clone(e.page)
		e.missing = false
	}
}

// Read finds the key's record as of now, or the floor if the key has no record. If
// the worker's clock is behind the last write, e.Now is the time of that write.
//
// Before, it brings e's page to the present, which may change more than the key's record:
//
//	setNowOrRebase     the clock was set back: times that seem to be of the future become e.Now
//	chargeFloorLapses  holds of the floor have lapsed: it charges them to the floor, and evicts records
//	                   of the page, also those of other keys
//
// Both change the page in memory alone. Shared data has none of it until Commit or another call
// that writes the page. If none follows, the next Read does the same again.
func (t *Table) Read(e *Entry, key Key, now int64) Status {
	if status := t.ensureRegistered(now); status != OK {
		return status
	}
	e.hash = t.hash(key.Bytes)
	return t.Reread(e, key, now)
}

// Reread is Read of the same key as before, after a lost race. It does not hash
// the key again.
func (t *Table) Reread(e *Entry, key Key, now int64) Status {
	if status := t.load(e, now); status != OK {
		return status
	}
	if t.layout.holds {
		e.heldNs = t.parent.HeldNow()
	}
	t.readKey(e, &key, now)
	return OK
}

// readKey reads what the loaded page has of the key. If the table holds, e.heldNs is read before.
func (t *Table) readKey(e *Entry, key *Key, now int64) {
	e.clearResults(now)
	t.define(e, key)
	e.slot = e.page.find(&t.layout, e.fingerprint)
	last := t.setNowOrRebase(e)
	var lapses []lapse
	if t.layout.holds {
		if t.chargeFloorLapses(e) {
			last = t.setNowOrRebase(e) // the floor has changed, and the key's record may be evicted
		}
		lapses = t.readHolds(e, &e.memory.recordLapses, last)
	}
	if e.slot >= 0 {
		t.readRecord(e, last, lapses)
	} else {
		t.startFromFloor(e, last)
	}
}

// clearResults clears what Read and Commit found before.
func (e *Entry) clearResults(now int64) {
	e.CallerNs = now
	e.clockRead = false
	e.FromFloor = false
	e.Evicted = false
	e.Rebased = false
	e.Blocked = false
	e.Resets = 0
	e.opened = 0
}

// define sets e.windows and e.rule: for each column of the layout the window with
// the key's limits, and with the rule's. A column that this configuration does not
// have gets no limits. If it is jittered, the key's grid is not known, so each hit
// counts in it for a whole period.
func (t *Table) define(e *Entry, key *Key) {
	if t.direct {
		e.windows = key.Windows
		e.rule = key.OfRule
		return
	}
	columns := t.layout.Windows
	e.windows = e.memory.windows[:len(columns)]
	e.rule = e.memory.rule[:len(columns)]
	copy(e.windows, columns)
	copy(e.rule, columns)
	for i := range e.windows {
		if w := &e.windows[i]; w.Jitter > 0 {
			w.Algorithm = limit.FixedWindowPerKey
			w.Elastic = true
		}
	}
	for i, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		own, rule := &e.windows[column], &e.rule[column]
		*own = key.Windows[i]
		*rule = key.OfRule[i]
		own.Units = columns[column].Units
		rule.Units = columns[column].Units
		own.Stamp = rule.Stamp
	}
}

// setNowOrRebase sets e.Now, and returns when the key's record, or the floor, was written. What was
// written before the clock was set back it rebases to e.Now: then that is when it was written.
func (t *Table) setNowOrRebase(e *Entry) (last int64) {
	last = e.page.floorTime()
	if e.slot >= 0 {
		last = e.page.time(&t.layout, e.slot)
	}
	if t.foundSetBack(e, last) {
		t.rebase(e, last)
		last = e.CallerNs
	}
	e.Now = max(e.CallerNs, last)
	return last
}

// readRecord reads the record, written at last, charges what has lapsed of its holds, and
// brings its usage to e.Now.
func (t *Table) readRecord(e *Entry, last int64, lapses []lapse) {
	for i := range t.layout.counts {
		u := &e.usage[i]
		e.page.readUsage(&t.layout, e.slot, i, e.log(i), u)
		if s := &t.spans[i]; s.start <= last && e.Now < s.end && len(lapses) == 0 {
			continue // within one aligned window the usage does not change
		}
		w := &e.windows[i]
		used := !u.IsZero()
		w.Roll(u, chargeLapses(w, u, last, lapses), e.Now)
		if used && u.IsZero() {
			e.Resets++
		}
		if w.OnGrid() {
			start, end := w.Span(e.Now)
			t.spans[i] = span{start, end}
		}
	}
}

// startFromFloor reads the floor, written at last, from which a key without a record
// starts at e.Now.
func (t *Table) startFromFloor(e *Entry, last int64) {
	for i := range t.layout.counts {
		floor := e.rule[i].RollFloor(e.page.floor(&t.layout, i), last, e.Now)
		e.usage[i] = e.windows[i].Start(floor, e.Now, e.log(i)[:0])
		e.FromFloor = e.FromFloor || !floor.IsZero()
	}
}

// Usage returns what window i of the table's definition has counted, as of e.Now.
// It is valid until the next Read into e.
func (t *Table) Usage(e *Entry, i int) *limit.Usage {
	if column := t.columns[i]; column >= 0 {
		return &e.usage[column]
	}
	return &e.memory.nothing // a later configuration has dropped this window
}

// Check returns the earliest instant at which a hit of cost units passes every
// window if no other hit comes: e.Now if it passes at once, limit.Never if it
// cannot pass.
//
// Units that are held count as if they had been counted. A hit for which only they leave
// no room may pass as soon as one hold ends: it is to try again after limit.HeldRetryNs.
func (t *Table) Check(e *Entry, cost uint32) int64 {
	e.HeldBack = false
	at := t.passesAt(e, cost, 0)
	held := t.Held(e)
	if held == 0 || cost == 0 || at == limit.Never {
		return at
	}
	if at > e.Now {
		e.HeldBack = t.countsOnlyHolds() // else a window denies the hit: beside one, a concurrency has no limit
		return at
	}
	if t.passesAt(e, cost, held) != e.Now {
		e.HeldBack = true
		return e.Now + limit.HeldRetryNs
	}
	return at
}

// countsOnlyHolds reports whether the definition is a concurrency alone: it comes last among windows.
func (t *Table) countsOnlyHolds() bool { return t.def.Windows[0].Algorithm == limit.Concurrency }

// passesAt is when a hit passes every window if held more units are counted in those that
// count.
func (t *Table) passesAt(e *Entry, cost, held uint32) int64 {
	at := e.Now
	for _, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		units := cost
		if int(column) < t.layout.counts {
			units = limit.AddSaturating(cost, held)
		}
		pass := e.windows[column].Check(&e.usage[column], e.Now, units)
		if pass == limit.Never {
			return limit.Never
		}
		at = max(at, pass)
	}
	return at
}

// Commit counts a hit of cost units in one compare-and-swap, whether Check lets
// it pass or not. It counts in every window of the record, also in one that only
// a newer configuration has.
//
// A key without a record takes a free slot, else one whose record has expired. If
// the page is full of live records and evict is set, Commit evicts the record
// that uses least of the rule's limits, and adds its usage to the page's floor.
//
// It returns Mismatch if another worker wrote first or the table's windows have
// changed since Read: Read and Check again. It returns Full if there is no slot
// and evict is not set.
func (t *Table) Commit(e *Entry, cost uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for i := range t.layout.counts {
		w, u := &e.windows[i], &e.usage[i]
		if w.Algorithm == limit.FixedWindowPerKey && u.EndNs == 0 {
			e.opened |= 1 << i
		}
		w.Add(u, e.Now, cost)
	}
	return t.finish(e)
}

// Deny counts a denied hit in one compare-and-swap: its cost in the windows, unless that is 0,
// and the denial in the block. A denied hit is not refunded. It returns what Commit would.
func (t *Table) Deny(e *Entry, cost uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	e.Blocked = t.block >= 0 && e.usage[t.block].EndNs == 0
	for i := range t.layout.counts {
		w, u := &e.windows[i], &e.usage[i]
		if cost > 0 {
			w.Add(u, e.Now, cost)
		}
		if i == int(t.block) { // one of a later configuration is not this one's to begin
			w.Deny(u, e.Now)
		}
	}
	return t.finish(e)
}

// BlockEnd returns when the key's block ends, as of Read or Deny; 0 if it is not blocked.
func (t *Table) BlockEnd(e *Entry) int64 {
	if t.block < 0 {
		return 0
	}
	return e.usage[t.block].EndNs
}

// begin prepares e's page for a change and gives the key a record.
func (t *Table) begin(e *Entry, evict bool) Status {
	if e.epoch != t.epoch {
		return Mismatch
	}
	e.unshare()
	if e.slot >= 0 {
		return OK
	}
	if status := t.findSlot(e, evict); status != OK {
		return status
	}
	for i := range t.layout.counts {
		e.usage[i] = e.windows[i].Inherit(e.usage[i], e.Now)
	}
	return OK
}

// finish writes the key's record as a later state of the same.
func (t *Table) finish(e *Entry) Status {
	return t.writeRecord(e, e.page.recordGeneration(&t.layout, e.slot))
}

// writeRecord writes the key's usage. The record of a later generation is another one: no
// hit from before is refunded from it.
func (t *Table) writeRecord(e *Entry, generation uint16) Status {
	t.putUsage(e)
	if t.layout.holds {
		e.page.setHolds(&t.layout, e.slot, &e.holds)
	}
	e.generation = generation
	e.page.mark(&t.layout, e.slot, generation, false)
	return t.write(e)
}

// putUsage puts the key's usage as of e.Now into its record.
func (t *Table) putUsage(e *Entry) {
	e.page.setTime(&t.layout, e.slot, e.Now)
	for i := range t.layout.counts {
		e.page.setUsage(&t.layout, e.slot, i, &e.usage[i])
	}
}

// Persist writes a denied key's entry if Read has rebased it. Else each denial would rebase
// the key again, and its wait would begin anew. It may lose a race: the winner has rebased
// the key too.
func (t *Table) Persist(e *Entry) {
	if e.Rebased {
		t.write(e)
	}
}

func (t *Table) write(e *Entry) Status {
	return t.parent.store.Set(e.pageKey[:], e.page, e.cas)
}

// Refund undoes a Commit of cost units, because another rule has denied the
// request. It reports whether every window gave them back. A window that could
// not keeps them until it ends, so a refund never makes a later decision too
// loose. e must be as Commit left it.
func (t *Table) Refund(e *Entry, now int64, cost uint32) bool {
	committed := *e // without its logs: they lie in e's memory, and a refund needs none
	for range MaxRetries {
		if t.load(e, now) != OK || e.epoch != committed.epoch {
			return false
		}
		e.CallerNs = now
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

// refund takes the hit out of the record in e's page. It reports whether every window gave
// it back.
func (t *Table) refund(e, committed *Entry, cost uint32) bool {
	last := e.page.time(&t.layout, e.slot)
	at := max(e.CallerNs, last)
	complete := true
	for i := range t.layout.counts {
		w, u := &e.windows[i], &e.usage[i]
		e.page.readUsage(&t.layout, e.slot, i, e.log(i), u)
		w.Roll(u, last, at)
		opened := committed.opened&(1<<i) != 0
		refunded := w.Refund(u, &committed.usage[i], committed.Now, at, cost, opened)
		complete = complete && refunded
	}
	e.Now = at
	t.putUsage(e)
	return complete
}
