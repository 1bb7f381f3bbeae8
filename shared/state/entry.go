package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Entry is what Table.Read found of one key in its page. The zero value is
// ready for Read. Re-use an Entry from request to request: it keeps its memory.
//
//	after               it tells                  what may be written by it
//	Read, Reread        the key at Now            one change: Commit, Deny, Hold, Inc, Set, Reset or Persist. It is a
//	                                              Mismatch if another worker has written the page since: Reread
//	a change            the key with the change;  what undoes it: Refund or RefundHold, which load the page anew
//	                    after Reset: Read again
//	Refund, RefundHold  the key's usage           nothing: each change is ReadOnly
//	Look                the key at Now            nothing: each change is ReadOnly
//	a Read that failed  the key before            nothing: each change is ReadOnly
//	the request's end   nothing                   nothing: its page is the Store's memory
type Entry struct {
	presentPage // the key's page: page; Now and CallerNs; rule, by which it evicts

	Findings // of Read and what follows, until the next Read or Reread

	hash uint64 // of the key, under the tables' seed
	slot int    // of the key's record in the page, or noRecord

	// By column of the layout.
	windows columnWindows                // with the key's limits
	usage   [page.MaxWindows]limit.Usage // as of Now, of the columns that count

	// What is held of the key is the sum of two: its record's, and the floor's if the record was
	// evicted while it held.
	held     limit.Usage // the sum, as usage of the column of holds: Used, see Held
	ownHolds limit.Holds // the record's, if the page has holds

	// From Commit, for Refund, beside the usage.
	generation uint16 // of the record
	opened     uint16 // a bit for each column: the hit opened its window

	// Memory that is kept from call to call, as that of timedPage.
	logs    [page.MaxWindows][]int64 // decoded logs of the key
	nothing limit.Usage              // of a window without a column
}

// Findings are what Read and the change after it have found. Read clears them all.
type Findings struct {
	Rebased   bool // what was written before the clock was set back has moved to the present
	FromFloor bool // the key has no record and starts from the page's floor
	Evicted   bool // the change evicted a live record, to give the key one
	Ended     int  // windows whose usage has ended since the record was written
	Blocked   bool // Deny began a block
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
	if status := t.openFor(&e.loadedPage, now); status != OK {
		return status
	}
	e.hash = t.parent.seed.hash(key.Bytes)
	return t.Reread(e, key.Limits, now)
}

// Reread is Read of the same key as before, after a lost race.
func (t *Table) Reread(e *Entry, limits Limits, now int64) Status {
	if status := t.load(&e.loadedPage, e.hash, now); status != OK {
		return status
	}
	t.readKey(e, &limits, now)
	return OK
}

// readKey brings the loaded page to the present, and reads what it has of the key. Two steps change the page:
// lapseFloor, if holds of the floor have lapsed, and rebaseIfAhead, if the clock was set back. The others only find
// what the Entry tells.
func (t *Table) readKey(e *Entry, limits *Limits, now int64) {
	e.Findings = Findings{}
	e.opened = 0
	e.setLimits(limits)
	e.findSlot()
	t.readClocks(&e.timedPage, now, e.newestRead())
	charged, rebasedFloor := e.lapseFloor()
	if charged { // the key may have lost its record
		e.findSlot()
	}
	present, rebased := e.rebaseIfAhead(e.slot)
	e.Now = present
	e.Rebased = rebased || rebasedFloor
	lapsed := e.readHolds() // in the record
	if e.slot >= 0 {
		e.readRecord(lapsed)
	} else {
		e.startFromFloor()
	}
}

// findSlot sets e.slot to that of the key's record.
func (e *Entry) findSlot() { e.slot = e.page.Find(fingerprint(e.hash)) }

// readRecord reads the record, charges what has lapsed of its holds, and brings its usage to e.Now. It remembers the
// last spans, because Span divides. A span follows from the definition of its window alone, so one that another key or
// page has left here is right: if it is not the present one, it has no effect.
func (e *Entry) readRecord(lapsed lapses) {
	last, spans := e.page.Time(e.slot), e.placement.lastSpans
	for column := range e.page.Layout.Counting {
		u := &e.usage[column]
		e.page.ReadUsage(e.slot, column, e.log(column), u)
		if s := &spans[column]; s.start <= last && e.Now < s.end && len(lapsed) == 0 {
			continue // within one aligned window the usage does not change
		}
		w := e.windows.at(column)
		used := !u.IsZero()
		asOf := lapsed.charge(w, u, last)
		w.Roll(u, asOf, e.Now)
		if used && u.IsZero() {
			e.Ended++
		}
		if w.OnGrid() {
			start, end := w.Span(e.Now)
			spans[column] = span{start, end}
		}
	}
}

// startFromFloor reads the floor, from which a key without a record starts at e.Now.
func (e *Entry) startFromFloor() {
	last := e.page.FloorTime()
	for column := range e.page.Layout.Counting {
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
	if column := e.placement.columnOf[window]; column != page.NoColumn {
		return e.usageOf(column)
	}
	return &e.nothing // a later configuration has dropped this window
}

func (e *Entry) usageOf(column page.Column) *limit.Usage {
	if column < e.page.Layout.Counting {
		return &e.usage[column]
	}
	return &e.held
}

// BlockEnd returns when the key's block ends, as of Read or Deny; 0 if it is not blocked.
func (e *Entry) BlockEnd() int64 {
	block := e.placement.block
	if block == page.NoColumn {
		return 0
	}
	return e.usage[block].EndNs
}

// Held is how many units of the key are held, by its record and by the floor, as of Read.
func (e *Entry) Held() uint32 { return e.held.Used }

// readHolds reads what is held of the key. Its record holds some of it. The floor holds some too if the key may have
// been evicted. readHolds returns the units of the record that have lapsed, for readRecord to charge.
func (e *Entry) readHolds() (lapsed lapses) {
	if !e.page.Layout.HasHolds() {
		e.held.Used = 0
		return nil
	}
	if e.slot >= 0 {
		e.ownHolds = e.page.Holds(e.slot)
		lapsed = e.takeLapsed(&e.ownHolds, e.page.Time(e.slot))
	} else {
		e.ownHolds = limit.Holds{Eighth: e.presentEighth()}
	}
	e.sumHeld()
	return lapsed
}

// sumHeld sets what Held returns.
func (e *Entry) sumHeld() {
	shared := uint32(0) // in the floor
	if e.slot < 0 || e.page.Shares(e.slot) {
		floor := e.page.FloorHolds()
		shared = floor.Total()
	}
	e.held.Used = limit.AddSaturating(shared, e.ownHolds.Total())
}

// log returns memory for a log of a column: twice the longest log, because a hit drops the oldest units by a slice that
// begins later, and appends behind.
func (e *Entry) log(column page.Column) []int64 {
	if e.windows.at(column).Algorithm == limit.SlidingWindowLog && e.logs[column] == nil {
		e.logs[column] = make([]int64, 0, 2*limit.MaxLog)
	}
	return e.logs[column]
}

// Check returns the earliest instant at which a hit of cost units passes every
// window if no other hit comes: e.Now if it passes at once, limit.Never if it
// cannot pass.
//
// Units that are held count as if they had been counted. A hit for which only they leave
// no room may pass as soon as one hold ends: it is to try again after limit.HeldRetryNs.
// What a concurrency counts is what is held.
//
//	by what is counted   with what is held   Check returns              IsHeldBack
//	it never passes                          limit.Never                no
//	it passes later                          that instant               only if nothing else counts: onlyHolds
//	it passes now        it does not pass    Now + limit.HeldRetryNs    yes
//	it passes now        it passes           Now                        no
//
// Where nothing is held, or the cost is 0, only what is counted matters.
func (t *Table) Check(e *Entry, cost uint32) int64 {
	earliest, _ := t.check(e, cost)
	return earliest
}

// IsHeldBack reports whether only what is held leaves no room for a hit of cost units.
func (t *Table) IsHeldBack(e *Entry, cost uint32) bool {
	if e.Held() == 0 {
		return false
	}
	_, heldBack := t.check(e, cost)
	return heldBack
}

func (t *Table) check(e *Entry, cost uint32) (earliest int64, heldBack bool) {
	earliest = e.passesAt(cost, 0)
	held := e.Held()
	switch {
	case held == 0 || cost == 0 || earliest == limit.Never:
		return earliest, false
	case earliest > e.Now:
		return earliest, t.onlyHolds() // else another window denies the hit
	case e.passesAt(cost, held) != e.Now:
		return e.Now + limit.HeldRetryNs, true
	}
	return earliest, false
}

// onlyHolds reports whether the definition's only window is a concurrency. A policy gives it a limit only then: beside
// other windows it is Unlimited.
func (t *Table) onlyHolds() bool {
	return len(t.def.Windows) == 1 && t.def.Windows[0].Algorithm == limit.Concurrency
}

// passesAt is when a hit passes every window if held more units are counted in those that
// count.
func (e *Entry) passesAt(cost, held uint32) int64 {
	earliest := e.Now
	for _, column := range e.placement.columnOf {
		if column == page.NoColumn {
			continue
		}
		units := cost
		if column < e.page.Layout.Counting {
			units = limit.AddSaturating(cost, held)
		}
		pass := e.windows.at(column).Check(e.usageOf(column), e.Now, units)
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
	if status := t.beginRecord(e, evict); status != OK {
		return status
	}
	for column := range e.page.Layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
		if w.Algorithm == limit.FixedWindowPerKey && u.EndNs == 0 {
			e.opened |= 1 << column
		}
		w.Add(u, e.Now, cost)
	}
	return t.writeRecord(e)
}

// Deny counts a denied hit in one compare-and-swap: its cost in the windows, unless that is 0,
// and the denial in the block. A denied hit is not refunded. It returns what Commit would.
func (t *Table) Deny(e *Entry, cost uint32, evict bool) Status {
	if status := t.beginRecord(e, evict); status != OK {
		return status
	}
	block := e.placement.block
	e.Blocked = block != page.NoColumn && e.usage[block].EndNs == 0
	for column := range e.page.Layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
		if cost > 0 {
			w.Add(u, e.Now, cost)
		}
		if column == block { // one of a later configuration is not this one's to begin
			w.Deny(u, e.Now)
		}
	}
	return t.writeRecord(e)
}

// beginRecord prepares e's page for a change, and gives the key a record if it has none. writeRecord follows.
func (t *Table) beginRecord(e *Entry, evict bool) Status {
	if status := t.startChange(&e.loadedPage); status != OK || e.slot >= 0 {
		return status
	}
	shares := e.page.FloorIsHolding() // before a record is evicted: what that holds is not this key's
	slot := e.makeRoom(evict)
	if slot < 0 {
		return Full
	}
	e.place(slot)
	if shares {
		e.page.MarkShares(slot)
	}
	for column := range e.page.Layout.Counting {
		e.usage[column] = e.windows.at(column).Inherit(e.usage[column], e.Now)
	}
	return OK
}

// place puts an empty record of the key into the slot.
func (e *Entry) place(slot int) {
	e.page.Place(slot, fingerprint(e.hash), e.Now)
	e.slot = slot
}

// writeRecord writes the key's record, as a later state of the same.
func (t *Table) writeRecord(e *Entry) Status {
	e.putUsage()
	if e.page.Layout.HasHolds() {
		e.page.SetHolds(e.slot, &e.ownHolds)
	}
	e.generation = e.page.Generation(e.slot)
	return t.write(&e.loadedPage)
}

// putUsage puts the key's usage as of e.Now into its record.
func (e *Entry) putUsage() {
	e.page.SetTime(e.slot, e.Now)
	for column := range e.page.Layout.Counting {
		e.page.SetUsage(e.slot, column, &e.usage[column])
	}
}

// Persist writes a denied key's entry if Read has rebased it. Else each denial would rebase
// the key again, and its wait would begin anew. It may lose a race: the winner has rebased
// the key too. It writes nothing if the table's windows have changed since Read, or after a Look.
//
// What Read has changed is in the page, but for what has lapsed in the record: the Entry has charged that, the page
// still holds it, and the next Read charges it as this one did.
func (t *Table) Persist(e *Entry) {
	if e.Rebased && t.startChange(&e.loadedPage) == OK {
		t.write(&e.loadedPage)
	}
}

// Refund undoes a Commit of cost units, because another rule has denied the
// request. It reports whether every window gave them back. A window that could
// not keeps them until it ends, so a refund never makes a later decision too
// loose. e must be as Commit left it, and the limits the same. It tells the key's usage without the hit then, or if
// Refund fails, perhaps with it.
//
// Holds that have lapsed stay in the page: the next Read charges them, as of the refund at the earliest. So they count
// from a later instant than they lapsed, and leave the windows later.
func (t *Table) Refund(e *Entry, limits Limits, now int64, cost uint32) bool {
	if e.readOnly {
		return false
	}
	committedNs := e.Now
	before := e.loadedPage
	before.readOnly = true
	var committed [page.MaxWindows]limit.Usage // but not its logs: they lie in e's memory, and a refund needs none
	copy(committed[:], e.usage[:e.page.Layout.Counting])
	for range MaxRetries {
		if t.load(&e.loadedPage, e.hash, now) != OK {
			return false
		}
		e.readOnly = true // for the caller: e's usage may be older than the page
		if e.placement.epoch != before.placement.epoch {
			e.loadedPage = before // e's usage is in its columns
			return false
		}
		e.setLimits(&limits)
		e.findSlot()
		// A page that is missing ends here too, so the one that all missing pages share is never changed.
		if e.slot < 0 || e.page.Generation(e.slot) != e.generation {
			return false
		}
		complete := e.refund(&committed, committedNs, now, cost)
		switch t.write(&e.loadedPage) {
		case OK:
			return complete
		case Mismatch:
		default:
			return false
		}
	}
	return false
}

// refund takes the hit out of the record in e's page, at callerNs or later. It reports whether every window gave it
// back.
func (e *Entry) refund(
	committed *[page.MaxWindows]limit.Usage, committedNs, callerNs int64, cost uint32,
) (complete bool) {
	last := e.page.Time(e.slot)
	now := max(callerNs, last)
	complete = true
	for column := range e.page.Layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
		e.page.ReadUsage(e.slot, column, e.log(column), u)
		w.Roll(u, last, now)
		opened := e.opened&(1<<column) != 0
		refunded := w.Refund(u, &committed[column], committedNs, now, cost, opened)
		complete = complete && refunded
	}
	e.Now = now
	e.putUsage()
	return complete
}
