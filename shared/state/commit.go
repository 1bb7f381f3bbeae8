package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// Check returns the earliest instant at which a hit of cost units passes every
// window if no other hit comes: e.Now if it passes at once, limit.Never if it
// cannot pass.
//
// Units that are held count as if they had been counted. A hit for which only they leave
// no room may pass as soon as one hold ends: it is to try again after limit.HeldRetryNs.
//
//	by what is counted   with what is held   Check returns              HeldBack
//	it never passes                          limit.Never                no
//	it passes later                          that instant               only if nothing else counts: onlyHolds
//	it passes now        it does not pass    Now + limit.HeldRetryNs    yes
//	it passes now        it passes           Now                        no
//
// Where nothing is held, or the cost is 0, only what is counted matters, and HeldBack is not set.
func (t *Table) Check(e *Entry, cost uint32) int64 {
	e.HeldBack = false
	earliest := t.passesAt(e, cost, 0)
	held := e.Held()
	if held == 0 || cost == 0 || earliest == limit.Never {
		return earliest
	}
	if earliest > e.Now {
		e.HeldBack = t.onlyHolds() // else another window denies the hit
		return earliest
	}
	if t.passesAt(e, cost, held) != e.Now {
		e.HeldBack = true
		return e.Now + limit.HeldRetryNs
	}
	return earliest
}

// passesAt is when a hit passes every window if held more units are counted in those that
// count.
func (t *Table) passesAt(e *Entry, cost, held uint32) int64 {
	earliest := e.Now
	for _, column := range t.columns() {
		if column == page.NoColumn {
			continue
		}
		units := cost
		if column < t.layout.Counting {
			units = limit.AddSaturating(cost, held)
		}
		pass := e.windows.at(column).Check(&e.usage[column], e.Now, units)
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
	for column := range t.layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
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
	e.Blocked = t.block != page.NoColumn && e.usage[t.block].EndNs == 0
	for column := range t.layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
		if cost > 0 {
			w.Add(u, e.Now, cost)
		}
		if column == t.block { // one of a later configuration is not this one's to begin
			w.Deny(u, e.Now)
		}
	}
	return t.finish(e)
}

// begin prepares e's page for a change and gives the key a record.
func (t *Table) begin(e *Entry, evict bool) Status {
	if status := t.startChange(&e.workingPage); status != OK || e.slot >= 0 {
		return status
	}
	shares := t.floorHoldsUnits(&e.loaded) // before a record is evicted: what that holds is not this key's
	slot := t.makeRoom(e, evict)
	if slot < 0 {
		return Full
	}
	e.takeSlot(slot)
	if shares {
		e.page.MarkShares(slot)
	}
	for column := range t.layout.Counting {
		e.usage[column] = e.windows.at(column).Inherit(e.usage[column], e.Now)
	}
	return OK
}

// finish writes the key's record as a later state of the same.
func (t *Table) finish(e *Entry) Status {
	return t.writeRecord(e, e.page.Generation(e.slot))
}

// writeRecord writes the key's usage. That the key was reset is over then: the record expires by what it counts. The
// record of a later generation is another one: no hit from before is refunded from it.
func (t *Table) writeRecord(e *Entry, generation uint16) Status {
	t.putUsage(e)
	if t.layout.HasHolds {
		e.page.SetHolds(e.slot, &e.holds)
	}
	e.generation = generation
	e.page.SetGeneration(e.slot, generation)
	e.page.ClearReset(e.slot)
	return t.write(&e.workingPage)
}

// putUsage puts the key's usage as of e.Now into its record.
func (t *Table) putUsage(e *Entry) {
	e.page.SetTime(e.slot, e.Now)
	for column := range t.layout.Counting {
		e.page.SetUsage(e.slot, column, &e.usage[column])
	}
}

// Persist writes a denied key's entry if Read has rebased it. Else each denial would rebase
// the key again, and its wait would begin anew. It may lose a race: the winner has rebased
// the key too. It writes nothing if the table's windows have changed since Read, or after a Look.
func (t *Table) Persist(e *Entry) {
	if e.Rebased && t.startChange(&e.workingPage) == OK {
		t.write(&e.workingPage)
	}
}

// Refund undoes a Commit of cost units, because another rule has denied the
// request. It reports whether every window gave them back. A window that could
// not keeps them until it ends, so a refund never makes a later decision too
// loose. e must be as Commit left it.
//
// Holds that have lapsed stay in the page: the next Read charges them, as of the refund at the earliest. So they count
// from a later instant than they lapsed, and leave the windows later.
func (t *Table) Refund(e *Entry, now int64, cost uint32) bool {
	var c committed
	c.atNs = e.Now
	c.epoch = e.epoch
	c.generation = e.generation
	c.opened = e.opened
	copy(c.usage[:], e.usage[:t.layout.Counting])
	for range MaxRetries {
		if t.load(&e.workingPage, e.hash, now) != OK || e.epoch != c.epoch || t.startChange(&e.workingPage) != OK {
			return false
		}
		e.CallerNs = now
		e.findSlot()
		if e.slot < 0 || e.page.Generation(e.slot) != c.generation {
			return false
		}
		complete := t.refund(e, &c, cost)
		switch t.write(&e.workingPage) {
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
	usage      [page.MaxWindows]limit.Usage // but not its logs: they lie in the entry's memory, and a refund needs none
}

// refund takes the hit out of the record in e's page. It reports whether every window gave
// it back.
func (t *Table) refund(e *Entry, c *committed, cost uint32) bool {
	last := e.page.Time(e.slot)
	now := max(e.CallerNs, last)
	complete := true
	for column := range t.layout.Counting {
		w, u := e.windows.at(column), &e.usage[column]
		e.page.ReadUsage(e.slot, column, e.log(column), u)
		w.Roll(u, last, now)
		opened := c.opened&(1<<column) != 0
		refunded := w.Refund(u, &c.usage[column], c.atNs, now, cost, opened)
		complete = complete && refunded
	}
	e.Now = now
	t.putUsage(e)
	return complete
}
