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
type Entry struct {
	loaded // the key's page, with Now and CallerNs

	// What Read and Commit found. Reread clears it.
	FromFloor bool // the key has no record and starts from the page's floor
	Evicted   bool // Commit evicted a live record
	Ended     int  // windows whose usage has ended since the record was written
	Blocked   bool // Deny began a block

	HeldBack bool // Check found, the last time, that only what is held leaves no room

	// The key's slot in the page.
	hash        uint64 // of the key, under the tables' seed
	fingerprint uint32
	slot        int // -1 without a record

	// By column of the layout.
	windows []limit.Window          // with the key's limits
	usage   [MaxWindows]limit.Usage // as of Now; of the column of holds: Used is held, see Held

	// What is held of the key is the sum of two: its record's, and the floor's if the record was
	// evicted while it held.
	holds limit.Holds // of the key's record

	// From Commit, for Refund.
	generation uint16
	opened     uint16 // a bit for each column: the hit opened its window
}

// loaded is a page in a worker's memory, with all that it takes to judge and evict its records. Read loads the
// page of its key, and a visit (visit.go) one page after the other, without a key.
type loaded struct {
	// clock.go says which clock counts what.
	Now       int64 // at which the key is counted: never before the last write
	CallerNs  int64 // the caller's clock, as it read it or as it was read once more
	steadyNs  int64 // the clock by which holds or leases end, see steadyNow
	clockRead bool  // the caller's clock was read once more, see confirmSetBack

	Rebased bool // what was written before the clock was set back has moved to the present

	pageKey [15]byte // in shared data
	page    page
	missing bool // the page does not exist yet: page is the table's header, to be copied before a change
	cas     uint32
	epoch   uint32 // of the table at that time; 0 after a Look: nothing may be written

	rule []limit.Window // by column of the layout, with the rule's limits

	// What the page's floor holds, for all keys without a record. Only readFloorHolds sets it for a page that was
	// loaded: moveHold and moveHoldsToFloor need that before them, and keep it the same as in the page.
	floorHolds limit.Holds

	memory entryMemory
}

// entryMemory is kept from call to call so that a decision allocates nothing. It carries no
// result from one call to the next: what lapses is passed on as slices that lie in it.
type entryMemory struct {
	windows  [MaxWindows]limit.Window // for Entry.windows
	rule     [MaxWindows]limit.Window // for loaded.rule
	logs     [MaxWindows][]int64      // decoded logs of the key
	otherLog []int64                  // the decoded log of any record
	nothing  limit.Usage              // of a window without a column

	recordLapses  lapses // of readHolds: what has lapsed in the key's record
	floorLapses   lapses // of readFloorHolds: in the floor
	evictedLapses lapses // of moveHoldsToFloor and evictSharer: in a record that is evicted
	otherLapses   lapses // of expiry: in any record
}

// log returns memory for a log of a column: twice the longest log, because a hit
// appends its units before the oldest are dropped.
func (e *Entry) log(column int) []int64 {
	if e.windows[column].Algorithm == limit.SlidingWindowLog && e.memory.logs[column] == nil {
		e.memory.logs[column] = make([]int64, 0, 2*limit.MaxLog)
	}
	return e.memory.logs[column]
}

// HasRecord reports whether the key has a record, even an empty one.
func (e *Entry) HasRecord() bool { return e.slot >= 0 }

// unshare makes the page one that may be changed. Read needs no unshare: a missing page has no time, no
// record and no hold, so Read changes nothing in it.
func (p *loaded) unshare() {
	if p.missing {
		p.page = bytes.Clone(p.page)
		p.missing = false
	}
}

// Read finds the key's record as of now, or the floor if the key has no record. If
// the worker's clock is behind the last write, e.Now is the time of that write.
//
// What Read changes in the page, it changes in memory alone, unless the Store gives its own bytes. Shared data
// has none of it until Commit or another call that writes the page. If none follows, the next Read does the same again.
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
	t.readKey(e, &key, now, t.steadyNow())
	return OK
}

// readKey brings the loaded page to the present, and reads what it has of the key, in five steps:
//
//	                         finds                          may change in the page
//	1  define                windows, rule
//	2  findRecord            slot, Now, and last: when      the clock was set back: moves the record, or the floor
//	                         record or floor was written    without one, from last to Now
//	3  readFloorHolds        floorHolds                     holds of the floor have lapsed: charges the floor, and
//	                                                        evicts records, this key's or others'; then 2 once more
//	4  readHolds             holds, Held, and lapsed: what
//	                         has lapsed in the record
//	5  readRecord            usage, as of Now
//	   or startFromFloor     usage and FromFloor
func (t *Table) readKey(e *Entry, key *Key, now, steadyNs int64) {
	e.clearResults(now, steadyNs)
	t.define(e, key)
	last := t.findRecord(e)
	var lapsed lapses
	if t.layout.hasHolds {
		if t.readFloorHolds(&e.loaded) {
			last = t.findRecord(e)
		}
		lapsed = t.readHolds(e, last)
	}
	if e.slot >= 0 {
		t.readRecord(e, last, lapsed)
	} else {
		t.startFromFloor(e, last)
	}
}

// clearResults clears what Read and Commit found before.
func (e *Entry) clearResults(now, steadyNs int64) {
	e.CallerNs = now
	e.steadyNs = steadyNs
	e.clockRead = false
	e.FromFloor = false
	e.Evicted = false
	e.Rebased = false
	e.Blocked = false
	e.Ended = 0
	e.opened = 0
}

// define sets e.windows and e.rule: for each column of the layout the window with
// the key's limits, and with the rule's. A column that this configuration does not
// have gets no limits. If it is jittered, the key's grid is not known, so each hit
// counts in it for a whole period.
func (t *Table) define(e *Entry, key *Key) {
	t.defineRule(&e.loaded, key.OfRule)
	if t.direct {
		e.windows = key.Windows
		return
	}
	columns := t.layout.Windows
	e.windows = e.memory.windows[:len(columns)]
	copy(e.windows, columns)
	for column := range e.windows {
		if w := &e.windows[column]; w.Jitter > 0 {
			w.Algorithm = limit.FixedWindowPerKey
			w.Elastic = true
		}
	}
	for window, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		own := &e.windows[column]
		*own = key.Windows[window]
		own.Units = columns[column].Units // a log may be longer than this key's limit: see longestLogs
		own.Stamp = e.rule[column].Stamp  // only the rule has one: see Overridden
	}
}

// defineRule sets p.rule.
func (t *Table) defineRule(p *loaded, rule []limit.Window) {
	if t.direct {
		p.rule = rule
		return
	}
	columns := t.layout.Windows
	p.rule = p.memory.rule[:len(columns)]
	copy(p.rule, columns)
	for window, column := range t.columns[:len(t.def.Windows)] {
		if column >= 0 {
			p.rule[column] = rule[window]
			p.rule[column].Units = columns[column].Units
		}
	}
}

// findRecord finds the key's record, and returns when it, or the floor without one, was written.
func (t *Table) findRecord(e *Entry) (last int64) {
	e.slot = e.page.find(&t.layout, e.fingerprint)
	return t.setNowOrRebase(&e.loaded, e.slot)
}

// readRecord reads the record, written at last, charges what has lapsed of its holds, and
// brings its usage to e.Now.
func (t *Table) readRecord(e *Entry, last int64, lapsed lapses) {
	for column := range t.layout.counting {
		u := &e.usage[column]
		e.page.readUsage(&t.layout, e.slot, column, e.log(column), u)
		if s := &t.spans[column]; s.start <= last && e.Now < s.end && len(lapsed) == 0 {
			continue // within one aligned window the usage does not change
		}
		w := &e.windows[column]
		used := !u.IsZero()
		w.Roll(u, lapsed.charge(w, u, last), e.Now)
		if used && u.IsZero() {
			e.Ended++
		}
		if w.OnGrid() {
			start, end := w.Span(e.Now)
			t.spans[column] = span{start, end}
		}
	}
}

// startFromFloor reads the floor, written at last, from which a key without a record
// starts at e.Now.
func (t *Table) startFromFloor(e *Entry, last int64) {
	for column := range t.layout.counting {
		floor := e.rule[column].RollFloor(e.page.floor(&t.layout, column), last, e.Now)
		e.usage[column] = e.windows[column].Start(floor, e.Now, e.log(column)[:0])
		e.FromFloor = e.FromFloor || !floor.IsZero()
	}
}

// Usage returns what a window of the table's definition has counted, as of e.Now.
// It is valid until the next Read into e.
func (t *Table) Usage(e *Entry, window int) *limit.Usage {
	if column := t.columns[window]; column >= 0 {
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
//
//	by what is counted   with what is held   Check returns              HeldBack
//	it never passes                          limit.Never                no
//	it passes later                          that instant               only if it is what is held that counts:
//	                                                                    see countsOnlyHolds
//	it passes now        it does not pass    Now + limit.HeldRetryNs    yes
//	it passes now        it passes           Now                        no
//
// Where nothing is held, or the cost is 0, only what is counted matters, and HeldBack is not set.
func (t *Table) Check(e *Entry, cost uint32) int64 {
	e.HeldBack = false
	earliest := t.passesAt(e, cost, 0)
	held := t.Held(e)
	if held == 0 || cost == 0 || earliest == limit.Never {
		return earliest
	}
	if earliest > e.Now {
		e.HeldBack = t.countsOnlyHolds() // else another window denies the hit
		return earliest
	}
	if t.passesAt(e, cost, held) != e.Now {
		e.HeldBack = true
		return e.Now + limit.HeldRetryNs
	}
	return earliest
}

// countsOnlyHolds reports whether the definition's only window is a concurrency, which comes last of several. A
// policy gives a concurrency a limit only then: beside other windows it is Unlimited.
func (t *Table) countsOnlyHolds() bool { return t.def.Windows[0].Algorithm == limit.Concurrency }

// passesAt is when a hit passes every window if held more units are counted in those that
// count.
func (t *Table) passesAt(e *Entry, cost, held uint32) int64 {
	earliest := e.Now
	for _, column := range t.columns[:len(t.def.Windows)] {
		if column < 0 {
			continue
		}
		units := cost
		if int(column) < t.layout.counting {
			units = limit.AddSaturating(cost, held)
		}
		pass := e.windows[column].Check(&e.usage[column], e.Now, units)
		if pass == limit.Never {
			return limit.Never
		}
		earliest = max(earliest, pass)
	}
	return earliest
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
	for column := range t.layout.counting {
		w, u := &e.windows[column], &e.usage[column]
		if w.Algorithm == limit.FixedWindowPerKey && u.EndNs == 0 {
			e.opened |= 1 << column
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
	for column := range t.layout.counting {
		w, u := &e.windows[column], &e.usage[column]
		if cost > 0 {
			w.Add(u, e.Now, cost)
		}
		if column == int(t.block) { // one of a later configuration is not this one's to begin
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
	shares := t.floorHoldsUnits(&e.loaded) // before a record is evicted: what that holds is not this key's
	slot := t.findSlot(e, evict)
	if slot < 0 {
		return Full
	}
	t.place(e, slot, shares)
	for column := range t.layout.counting {
		e.usage[column] = e.windows[column].Inherit(e.usage[column], e.Now)
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
	if t.layout.hasHolds {
		e.page.setHolds(&t.layout, e.slot, &e.holds)
	}
	e.generation = generation
	e.page.mark(&t.layout, e.slot, generation, false)
	return t.write(&e.loaded)
}

// putUsage puts the key's usage as of e.Now into its record.
func (t *Table) putUsage(e *Entry) {
	e.page.setTime(&t.layout, e.slot, e.Now)
	for column := range t.layout.counting {
		e.page.setUsage(&t.layout, e.slot, column, &e.usage[column])
	}
}

// Persist writes a denied key's entry if Read has rebased it. Else each denial would rebase
// the key again, and its wait would begin anew. It may lose a race: the winner has rebased
// the key too. It writes nothing if the table's windows have changed since Read, or after a Look.
func (t *Table) Persist(e *Entry) {
	if e.Rebased && e.epoch == t.epoch {
		t.write(&e.loaded)
	}
}

func (t *Table) write(p *loaded) Status {
	return t.parent.store.Set(p.pageKey[:], p.page, p.cas)
}

// Refund undoes a Commit of cost units, because another rule has denied the
// request. It reports whether every window gave them back. A window that could
// not keeps them until it ends, so a refund never makes a later decision too
// loose. e must be as Commit left it.
func (t *Table) Refund(e *Entry, now int64, cost uint32) bool {
	var c committed
	c.atNs = e.Now
	c.epoch = e.epoch
	c.generation = e.generation
	c.opened = e.opened
	copy(c.usage[:], e.usage[:t.layout.counting])
	for range MaxRetries {
		if t.load(e, now) != OK || e.epoch != c.epoch {
			return false
		}
		// No unshare: a page that is missing has no record, and ends below.
		e.CallerNs = now
		e.slot = e.page.find(&t.layout, e.fingerprint)
		if e.slot < 0 || e.page.recordGeneration(&t.layout, e.slot) != c.generation {
			return false
		}
		complete := t.refund(e, &c, cost)
		switch t.write(&e.loaded) {
		case OK:
			return complete
		case Mismatch:
		default:
			return false
		}
	}
	return false
}

// committed is what a refund needs of an entry as Commit left it. The entry itself would be a copy of
// thousands of bytes.
type committed struct {
	atNs       int64
	epoch      uint32
	generation uint16
	opened     uint16
	usage      [MaxWindows]limit.Usage // but not its logs: they lie in the entry's memory, and a refund needs none
}

// refund takes the hit out of the record in e's page. It reports whether every window gave
// it back.
func (t *Table) refund(e *Entry, c *committed, cost uint32) bool {
	last := e.page.time(&t.layout, e.slot)
	now := max(e.CallerNs, last)
	complete := true
	for column := range t.layout.counting {
		w, u := &e.windows[column], &e.usage[column]
		e.page.readUsage(&t.layout, e.slot, column, e.log(column), u)
		w.Roll(u, last, now)
		opened := c.opened&(1<<column) != 0
		refunded := w.Refund(u, &c.usage[column], c.atNs, now, cost, opened)
		complete = complete && refunded
	}
	e.Now = now
	t.putUsage(e)
	return complete
}
