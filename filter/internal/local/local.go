// Package local is the source of units for rules that one proxy counts: it keeps records in
// shared data.
//
// Its invariant: all arithmetic is in shared/limit, and each hit is one compare-and-swap
// of the key's record.
//
// Its tests are in four packages. Those of this one call its methods: which finding decides, what a refund gives back,
// what becomes of holds, and what is refused. Those of package engine decide requests by it, also where a call into the
// proxy fails, and carry out operations. Package races has workers that write at once, and package lease has the share
// by which a cluster rule counts here.
package local

import (
	"errors"
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// ErrStore says that a call into the proxy failed, or that other workers wrote each time before
// this one could.
var ErrStore = errors.New("the counters could not be read or written")

// Source counts in the records of a table.
type Source struct {
	table   *state.Table
	ofRule  []limit.Window // Finder.OfAll, also where a share counts: a floor then pays a debt by whole limits
	onFull  policy.OnFull
	holds   bool
	scratch *state.Scratch
}

// New returns the source of a rule, over the table of its counter. Sources may share a scratch.
func New(r *decide.Rule, table *state.Table, scratch *state.Scratch) *Source {
	return &Source{
		table: table, ofRule: r.Finder.OfAll, onFull: r.Policy.OnFull, holds: r.Policy.Holds(), scratch: scratch,
	}
}

func (c *Source) evicts() bool { return c.onFull == policy.FullInherit }

// Check reads the key's record.
func (c *Source) Check(s *decide.Subject, now int64) decide.Finding {
	return c.findingOf(s, now, c.table.Read(&s.Record, s.CountedKey, now))
}

// Look reads the key's record without a trace.
func (c *Source) Look(s *decide.Subject, now int64, _ []leased.Standing) (known bool) {
	return c.table.Look(&s.Record, s.CountedKey, now) == state.OK
}

// Recheck is Check without hashing the key again.
func (c *Source) Recheck(s *decide.Subject, now int64) decide.Finding {
	return c.findingOf(s, now, c.table.Reread(&s.Record, s.CountedKey.Limits, now))
}

// findingOf is what the record means for the request, once it was read. The first line that is true decides:
//
//	                                                   Found     PassNs
//	the record could not be read                       Failed    -
//	on_full denies, the hit needs a slot, and none     Full      when a slot is free, or limit.Never
//	  is free by the time there is room
//	there is room                                      HasRoom   -
//	there would be room, if less were held             HeldBack  limit.HeldRetryNs after now
//	a block runs                                       Blocked   when it has ended and there is room, or limit.Never
//	else                                               Denied    when there is room, or limit.Never
//
// Full comes before HasRoom, because most keys without a record have room. Take would find the page full, too, but it
// knows no wait. If the wait for room is longer, a later line decides: the client is told when its request would pass.
//
// HeldBack and Blocked are never both true: a hit is held back only if it would pass with nothing held, and a block
// lets none pass. So nothing depends on which of the two comes first.
//
// The record stands as of e.Now, so there is room from then on at the earliest. That is now, or a moment later if a
// worker whose clock is ahead has written the record.
func (c *Source) findingOf(s *decide.Subject, now int64, read state.Status) decide.Finding {
	if read != state.OK {
		return decide.Finding{Found: decide.Failed}
	}
	e := &s.Record
	passNs := c.table.Check(e, s.Units)
	// Units is what is to be free. Cost is what Take counts, so a request that costs nothing needs no record.
	needsSlot := s.Cost > 0 && passNs != limit.Never && !e.HasRecord()
	if needsSlot && c.onFull == policy.FullDeny {
		if vacantNs := e.Earliest(); vacantNs == limit.Never || vacantNs > passNs {
			return decide.Finding{Found: decide.Full, PassNs: vacantNs, Known: true}
		}
	}
	switch {
	case passNs != limit.Never && passNs <= e.Now:
		return decide.Finding{Found: decide.HasRoom, Known: true}
	case c.table.IsHeldBack(e, s.Units):
		retryNs := now + limit.HeldRetryNs // not e.Now: the record may be of a worker that read the clock later
		return decide.Finding{Found: decide.HeldBack, PassNs: retryNs, Known: true}
	case e.BlockEnd() != 0:
		return decide.Finding{Found: decide.Blocked, PassNs: passNs, Known: true}
	}
	return decide.Finding{Found: decide.Denied, PassNs: passNs, Known: true}
}

// Take counts the hit in the record.
func (c *Source) Take(s *decide.Subject) (status state.Status) {
	e := &s.Record
	if c.holds {
		s.Hold, status = c.table.Hold(e, s.Cost, c.evicts())
	} else {
		status = c.table.Commit(e, s.Cost, c.evicts())
	}
	noteStored(s, status)
	return status
}

// KeepDenied counts the hit in the record, begins its block, or does both.
func (c *Source) KeepDenied(s *decide.Subject, keep decide.Keep) (passNs int64, status state.Status) {
	e := &s.Record
	if keep.Block {
		status = c.table.Deny(e, keep.Units, c.evicts())
	} else {
		status = c.table.Commit(e, keep.Units, c.evicts())
	}
	noteStored(s, status)
	if status != state.OK {
		return 0, status
	}
	return c.table.Check(e, s.Units), state.OK
}

// noteStored counts what a write of the subject's record has done.
func noteStored(s *decide.Subject, status state.Status) {
	if status == state.OK {
		s.Rule.Metrics.NoteStored(&s.Record.Findings)
	}
}

// Refund uncounts the hit. A table that holds nothing has counted it at once, also for a rule that holds.
func (c *Source) Refund(s *decide.Subject, now int64) bool {
	if c.holds && s.Hold.InTable() {
		return c.table.RefundHold(&s.Record, s.CountedKey.Limits, s.Hold, now)
	}
	return c.table.Refund(&s.Record, s.CountedKey.Limits, now, s.Cost)
}

// Persist stores the record if Check has moved it to the present: it was written before the clock
// was set back. So the wait that the verdict tells holds for later requests, too.
func (c *Source) Persist(s *decide.Subject) { c.table.Persist(&s.Record) }

// Usage returns the usage in the record. A column of a Source is what package state calls a window: the index in the
// table's definition.
func (c *Source) Usage(s *decide.Subject, column int) *limit.Usage {
	return s.Record.Usage(column)
}

// Held returns what the record holds, and what the floor holds if the key may be part of that.
func (c *Source) Held(s *decide.Subject) uint32 { return s.Record.Held() }

// Settle charges the key's record, or the floor if the record was evicted.
func (c *Source) Settle(h *hold.Hold, cost uint32, now int64) hold.Settlement {
	return c.SettleBy(h.Windows, h, cost, now)
}

// SettleBy is Settle by other limits of the key: Check must count by the same. A rule of scope cluster does so by this
// proxy's share, see package lease.
func (c *Source) SettleBy(windows []limit.Window, h *hold.Hold, cost uint32, now int64) hold.Settlement {
	unitsCharged, status := c.table.Settle(c.scratch, c.limits(windows), h.Hold, now, cost)
	switch {
	case status != state.OK:
		return hold.Failed
	case !unitsCharged:
		return hold.CostCharged
	case h.InTable():
		return hold.HadLapsed
	}
	return hold.ChargedAtOnce
}

// limits are those of a key with these windows.
func (c *Source) limits(windows []limit.Window) state.Limits {
	return state.Limits{Windows: windows, OfRule: c.ofRule}
}

// Renew moves what is held into the present eighth of the hold.
func (c *Source) Renew(h *hold.Hold, at hold.Clocks) hold.Renewal {
	if !c.IsDue(h, at) {
		return hold.NotDue
	}
	return c.RenewBy(h.Windows, h, at)
}

// IsDue reports whether the hold is to be renewed. One that has ended is left to lapse.
func (c *Source) IsDue(h *hold.Hold, at hold.Clocks) bool {
	return !h.HasEnded(at.MonotonicNs) && c.table.IsDue(&h.Hold, at.HeldNs)
}

// RenewBy renews a hold that IsDue, by other limits of the key, as SettleBy settles it.
func (c *Source) RenewBy(windows []limit.Window, h *hold.Hold, at hold.Clocks) hold.Renewal {
	found, status := c.table.Renew(c.scratch, c.limits(windows), &h.Hold, at.Now)
	switch {
	case status != state.OK:
		return hold.Unknown
	case found == state.HoldCharged:
		return hold.Lapsed
	case found == state.HoldGone:
		return hold.Gone
	}
	return hold.Renewed
}

// Operate reads the key's usage and changes it. It tries again if another worker writes in between.
func (c *Source) Operate(
	s *decide.Subject, o decide.Operation, column int, n uint32, now int64,
) (value int64, known bool, err error) {
	if (o == decide.Inc || o == decide.Set) && s.Rule.Policy.Concurrency() {
		rule := strconv.Quote(s.Rule.Policy.Name)
		return 0, false, errors.New("rule " + rule + " counts what runs, which no operation changes: reset forgets it")
	}
	for range state.MaxRetries {
		if c.table.Read(&s.Record, s.CountedKey, now) != state.OK {
			break
		}
		var status state.Status
		value, status = c.operate(s, o, column, n)
		switch status {
		case state.OK:
			known = o != decide.Reset || c.table.Read(&s.Record, s.CountedKey, now) == state.OK // as reset left it
			return value, known, nil
		case state.Mismatch: // another worker has written
		case state.Full:
			return 0, false, errors.New("the page of this key is full, and on_full does not evict")
		default:
			return 0, false, ErrStore
		}
	}
	return 0, false, ErrStore
}

// operate carries out the operation on the record that was read.
func (c *Source) operate(
	s *decide.Subject, o decide.Operation, column int, n uint32,
) (value int64, status state.Status) {
	e := &s.Record
	switch o {
	case decide.ExpiresAt:
		return expiresAt(s), state.OK
	case decide.Inc:
		status = c.table.Inc(e, column, n, c.evicts())
	case decide.Set:
		status = c.table.Set(e, column, n, c.evicts())
	case decide.Reset:
		var had bool
		had, status = c.table.Reset(e, c.evicts())
		noteStored(s, status)
		if had {
			value = 1
		}
		return value, status
	default: // Get reads alone. Leased is not asked of this source
		return c.used(s, column), state.OK
	}
	noteStored(s, status)
	if status != state.OK {
		return 0, status
	}
	return c.used(s, column), state.OK
}

// used returns what is used of a window: of the tightest one for state.AllWindows.
func (c *Source) used(s *decide.Subject, column int) int64 {
	if column == state.AllWindows {
		view := decide.ViewOf(s)
		column = s.Rule.Finder.Order[view.Tightest()]
	}
	return int64(s.CountedKey.Windows[column].Count(s.Record.Usage(column), s.Record.Now))
}

// expiresAt returns when the tightest window starts again; 0 for a window per key that has not
// begun.
func expiresAt(s *decide.Subject) int64 {
	view := decide.ViewOf(s)
	w, u := view.Window(view.Tightest())
	if at := w.Reset(u, s.Record.Now); at > s.Record.Now {
		return at
	}
	return 0
}

// Tables returns the source's one table.
func (c *Source) Tables() []decide.Table {
	return []decide.Table{{Table: c.table, OfRule: c.ofRule, Scratch: c.scratch}}
}
