package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// A decision is three calls with one Entry: Read finds the key's record or the floor and
// brings it to the present, Check says whether a hit passes, and Commit counts it in one
// compare-and-swap. Refund undoes a Commit.

// Entry is what Table.Read found of one key in its page. The zero value is
// ready for Read. Re-use an Entry from request to request: it keeps its memory.
//
//	after               it tells                  what may be written by it
//	Read, Reread        the key at Now            one change: Commit, Deny, Hold, Inc, Set, Reset or Persist. It is a
//	                                              Mismatch if another worker has written the page since
//	a change            the key with the change;  what undoes it: Refund or RefundHold, which load the page anew
//	                    after Reset: Read again
//	Look                the key at Now            nothing: each change is a Mismatch
//	the request's end   nothing                   nothing: its page is the Store's memory
type Entry struct {
	loaded // the key's page, with Now and CallerNs

	Findings // of Read and what follows, until the next Read or Reread

	HeldBack bool // Check found, the last time, that only what is held leaves no room

	table *Table // that has read the page: by Look, maybe one that is unregistered
	hash  uint64 // of the key, under the tables' seed
	slot  int    // of the key's record in the page, or noRecord

	// By column of the layout.
	windows columnWindows                // with the key's limits
	usage   [page.MaxWindows]limit.Usage // as of Now; of the column of holds: Used is held, see Held

	// What is held of the key is the sum of two: its record's, and the floor's if the record was
	// evicted while it held.
	holds limit.Holds // of the key's record

	// From Commit, for Refund.
	generation uint16

	keyMemory keyMemory
}

// Findings are what Read and Commit have found. Read clears them all.
type Findings struct {
	Rebased   bool // what was written before the clock was set back has moved to the present
	FromFloor bool // the key has no record and starts from the page's floor
	Evicted   bool // Commit evicted a live record
	Ended     int  // windows whose usage has ended since the record was written
	Blocked   bool // Deny began a block

	opened uint16 // a bit for each column: the hit opened its window. Refund needs it
}

// Scratch is memory for a call that reads, and maybe writes, by itself. Unlike an Entry, it has nothing for the next
// call.
type Scratch struct{ entry Entry }

// noRecord is the slot of a key without a record: it starts from the floor.
const noRecord = -1

// Read finds the key's record as of now, or the floor if the key has no record. If
// the worker's clock is behind the last write, e.Now is the time of that write.
//
// What Read changes in the page, it changes in the bytes that the Store gave. If they are a copy, as with Envoy, shared
// data has none of it until Commit or another call writes the page. If none follows, the next Read does the same again.
func (t *Table) Read(e *Entry, key Key, now int64) Status {
	if status := t.ensureOpen(now); status != OK {
		return status
	}
	e.hash = t.parent.seed.hash(key.Bytes)
	return t.Reread(e, key, now)
}

// Reread is Read of the same key as before, after a lost race. It does not hash
// the key again.
func (t *Table) Reread(e *Entry, key Key, now int64) Status {
	if status := t.load(&e.workingPage, e.hash, now); status != OK {
		return status
	}
	t.readHoldClock(&e.loaded)
	t.readKey(e, &key, now)
	return OK
}

// readKey brings the loaded page to the present, and reads what it has of the key, in six steps:
//
//	                         finds                          may change in the page
//	1  setWindows            windows, rule
//	2  findSlot              slot
//	   settleClock           CallerNs
//	3  setNowOrRebase        Now, and last: when record     the clock was set back: moves the record, or the floor
//	                         or floor was written           without one, from last to Now
//	4  lapseFloor                                           holds of the floor have lapsed: charges the floor, and
//	                                                        evicts records, this key's or others'; then it finds the
//	                                                        slot and does 3 once more
//	5  readHolds             holds, Held, and lapsed: what
//	                         has lapsed in the record
//	6  readRecord            usage, as of Now
//	   or startFromFloor     usage and FromFloor
func (t *Table) readKey(e *Entry, key *Key, now int64) {
	e.pageMemory.lapses = e.pageMemory.lapses[:0]
	e.Findings = Findings{}
	e.table = t
	e.CallerNs = now
	t.setWindows(e, key)
	e.findSlot()
	t.settleClock(&e.loaded, t.newestRead(e))
	last, rebased := t.setNowOrRebase(&e.loaded, e.slot)
	e.Rebased = rebased
	if t.floorHoldsUnits(&e.loaded) && t.lapseFloor(&e.loaded) {
		e.findSlot()
		last, rebased = t.setNowOrRebase(&e.loaded, e.slot)
		e.Rebased = e.Rebased || rebased
	}
	var lapsed lapses
	if t.layout.HasHolds {
		lapsed = t.readHolds(e, last)
	}
	if e.slot >= 0 {
		t.readRecord(e, last, lapsed)
	} else {
		t.startFromFloor(e, last)
	}
}

// setWindows sets e.windows and e.rule: for each column of the layout the window with
// the key's limits, and with the rule's. A column that this configuration does not
// have gets no limits. If it is jittered, the key's grid is not known, so each hit
// counts in it for a whole period.
//
//	list             in the order of   with the limits of   lasts
//	def.Windows      the definition    the rule             as long as the table
//	layout.Windows   columns           nobody               as long as the placement
//	Key.Windows      the definition    the key              until the next Read: if direct, e.windows is it
//	Key.OfRule       the definition    the rule             the same, for e.rule
//	e.windows        columns           the key              until the next Read
//	e.rule           columns           the rule             the same; of a visit: until the next page
func (t *Table) setWindows(e *Entry, key *Key) {
	t.setRule(&e.loaded, key.OfRule)
	if t.direct {
		e.windows = columnWindows{key.Windows}
		return
	}
	e.windows = t.layoutWindows(&e.keyMemory.windows)
	for column := range page.Column(len(e.windows.list)) {
		if w := e.windows.at(column); w.Jitter > 0 {
			w.Algorithm = limit.FixedWindowPerKey
			w.Elastic = true
		}
	}
	for window, column := range t.columns() {
		if column == page.NoColumn {
			continue
		}
		own := e.windows.at(column)
		units := own.Units // a log may be longer than this key's limit: see longestLogs
		*own = key.Windows[window]
		own.Units = units
		own.Stamp = e.rule.at(column).Stamp // only the rule has one: see Overridden
	}
}

// setRule sets p.rule.
func (t *Table) setRule(p *loaded, rule []limit.Window) {
	if t.direct {
		p.rule = columnWindows{rule}
		return
	}
	p.rule = t.layoutWindows(&p.pageMemory.rule)
	for window, column := range t.columns() {
		if column == page.NoColumn {
			continue
		}
		own := p.rule.at(column)
		units := own.Units
		*own = rule[window]
		own.Units = units
	}
}

// layoutWindows copies the windows of the layout, which have no limits, into memory.
func (t *Table) layoutWindows(memory *[page.MaxWindows]limit.Window) columnWindows {
	list := memory[:len(t.layout.Windows)]
	copy(list, t.layout.Windows)
	return columnWindows{list}
}

// columnWindows is a list of windows by column. A []limit.Window is in the definition's order, or a layout's.
type columnWindows struct{ list []limit.Window }

func (ws columnWindows) at(column page.Column) *limit.Window { return &ws.list[column] }

// findSlot sets e.slot to that of the key's record.
func (e *Entry) findSlot() { e.slot = e.page.Find(fingerprint(e.hash)) }

// readRecord reads the record, written at last, charges what has lapsed of its holds, and
// brings its usage to e.Now. It remembers the last spans, because Span divides. A span follows from the definition of
// its window alone, so one that another key or page has left here is right: if it is not the present one, it has no
// effect.
func (t *Table) readRecord(e *Entry, last int64, lapsed lapses) {
	for column := range t.layout.Counting {
		u := &e.usage[column]
		e.page.ReadUsage(e.slot, column, e.log(column), u)
		if s := &t.lastSpans[column]; s.start <= last && e.Now < s.end && len(lapsed) == 0 {
			continue // within one aligned window the usage does not change
		}
		w := e.windows.at(column)
		used := !u.IsZero()
		w.Roll(u, lapsed.charge(w, u, last), e.Now)
		if used && u.IsZero() {
			e.Ended++
		}
		if w.OnGrid() {
			start, end := w.Span(e.Now)
			t.lastSpans[column] = span{start, end}
		}
	}
}

// startFromFloor reads the floor, written at last, from which a key without a record
// starts at e.Now.
func (t *Table) startFromFloor(e *Entry, last int64) {
	for column := range t.layout.Counting {
		floor := e.rule.at(column).RollFloor(e.page.Floor(column), last, e.Now)
		e.usage[column] = e.windows.at(column).Start(floor, e.Now, e.log(column)[:0])
		e.FromFloor = e.FromFloor || !floor.IsZero()
	}
}

// HasRecord reports whether the key has a record, even an empty one.
func (e *Entry) HasRecord() bool { return e.slot >= 0 }

// Usage returns what a window of the table's definition has counted, as of e.Now.
// It is valid until the next Read into e.
func (e *Entry) Usage(window int) *limit.Usage {
	if column := e.table.columnOf[window]; column != page.NoColumn {
		return &e.usage[column]
	}
	return &e.keyMemory.nothing // a later configuration has dropped this window
}

// BlockEnd returns when the key's block ends, as of Read or Deny; 0 if it is not blocked.
func (e *Entry) BlockEnd() int64 {
	if e.table.block == page.NoColumn {
		return 0
	}
	return e.usage[e.table.block].EndNs
}

// Held is how many units of the key are held, by its record and by the floor, as of Read.
func (e *Entry) Held() uint32 {
	if !e.table.layout.HasHolds { // not the page's: a refund that cannot read the page leaves none
		return 0
	}
	return e.usage[e.table.layout.HoldsColumn()].Used
}

func (e *Entry) setHeld(units uint32) {
	e.usage[e.table.layout.HoldsColumn()] = limit.Usage{Used: units}
}

// keyMemory is kept from call to call, like pageMemory.
type keyMemory struct {
	windows [page.MaxWindows]limit.Window // for Entry.windows
	logs    [page.MaxWindows][]int64      // decoded logs of the key
	nothing limit.Usage                   // of a window without a column
}

// log returns memory for a log of a column: twice the longest log, because a hit
// appends its units before the oldest are dropped.
func (e *Entry) log(column page.Column) []int64 {
	if e.windows.at(column).Algorithm == limit.SlidingWindowLog && e.keyMemory.logs[column] == nil {
		e.keyMemory.logs[column] = make([]int64, 0, 2*limit.MaxLog)
	}
	return e.keyMemory.logs[column]
}
