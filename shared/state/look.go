package state

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// What is read without counting. A Look is at one key, for its client, and leaves no trace: it writes nothing into
// shared data if Store.Get gives copies, registers no table, and tells nobody that this worker runs. A Survey is of all
// pages of a table, for metrics. It writes no page and registers no table either, but tells that this worker runs
// (HoldClock). Of tables that this worker has not registered, each needs a registration first, and reads the pages by
// that:
//
//	PrepareLooks     as the table would be registered now
//	Look             of one key
//
//	PrepareSurveys   as another worker has registered it. If none has, it has no pages to survey
//	Survey.Step      of a few pages

// PrepareLooks works out how all tables that are not registered would be registered now. Call it before
// Look, in the same callback. It reads the directory, and does its work again only if that has changed.
func (ts *Tables) PrepareLooks(now int64) Status {
	closed := ts.closed()
	if len(closed) == 0 {
		return OK
	}
	if status := ts.findSeed(); status != OK {
		return status
	}
	value, cas, status := ts.store.Get(directoryKey)
	var d directory.Directory
	switch status {
	case OK:
		if cas == ts.lookedCAS && !slices.ContainsFunc(closed, lacksLooked) {
			return OK
		}
		var ok bool
		d, ok = directory.Read(value)
		if !ok {
			return Failed
		}
	case NotFound: // no table is registered, so the next call looks again
		cas = 0
	default:
		return Failed
	}
	now = max(now, ts.store.Now())
	ts.tidy(&d, now)
	registered, status := register(&d, ts.self, closed, now)
	if status != OK {
		return status
	}
	for i, table := range closed {
		table.looked = &registered[i]
	}
	ts.lookedCAS = cas
	return OK
}

func lacksLooked(t *Table) bool { return t.looked == nil }

// closed returns the tables that are not registered.
func (ts *Tables) closed() (closed []*Table) {
	for _, table := range ts.tables {
		if !table.open {
			closed = append(closed, table)
		}
	}
	return closed
}

// Look is Read without a trace. It fails if another worker has changed the table's windows, and this
// one has not found out: it does so at the next hit or heartbeat.
//
// After a Look, e tells, but counts nothing, because the table may not be registered: Commit and the other writes
// return ReadOnly until it is Read, and Persist writes nothing.
func (t *Table) Look(e *Entry, key Key, now int64) Status {
	e.readOnly = true // also if there is nothing to load it by
	by := t.placementOr(t.looked)
	if by == nil {
		return Failed
	}
	e.hash = t.parent.seed.hash(key.Bytes)
	if t.loadPage(&e.loadedPage, by, by.pageOf(e.hash)) != OK {
		return Failed
	}
	t.readKey(e, &key.Limits, now)
	return OK
}

// PrepareSurveys finds in the directory the tables that only other workers have registered, so that this one
// can survey them, too. It registers nothing.
func (ts *Tables) PrepareSurveys() {
	for _, table := range ts.tables {
		table.surveyed = nil
	}
	closed := ts.closed()
	if len(closed) == 0 {
		return
	}
	d, status := ts.directory()
	if status != OK {
		return
	}
	for _, table := range closed {
		// An older and a newer configuration of the owner may have one each: then it is the last.
		for _, i := range d.TablesOf(table.def.Counter) {
			if r := &d.Tables[i]; r.IsKnown() && r.HasOwner(ts.self.ID) {
				found := *r
				table.surveyed = &found
			}
		}
	}
}

// Survey adds up the memory and the live keys of a table, a few pages at a time, so
// that no tick blocks a worker for long. The zero value is ready.
type Survey struct {
	next  uint32
	found Found
}

// Found is what a survey has added up.
type Found struct {
	Bytes uint64 // that the existing pages take in Envoy, as HostBytes counts them
	Keys  uint64
}

// A step ends after this many pages, or this many bytes read.
const (
	surveyPages = 64
	surveyBytes = 48 << 10
)

// Step continues the survey of a table, whose rule has these windows. When it has read the last page, it returns
// done and what it has found, and the survey starts again. It skips a table that no worker has registered, as far as
// PrepareSurveys has found.
func (s *Survey) Step(t *Table, m *Scratch, rule []limit.Window) (found Found, done bool, status Status) {
	by := t.placementOr(t.surveyed)
	if by == nil {
		*s = Survey{}
		return Found{}, false, OK
	}
	if status := s.addPages(t, by, &m.entry.presentPage, rule); status != OK {
		*s = Survey{}
		return Found{}, false, status
	}
	if s.next < by.pages {
		return Found{}, false, OK
	}
	found = s.found
	*s = Survey{}
	return found, true, OK
}

// addPages adds the next pages, by a placement. p is memory for one page after the other.
func (s *Survey) addPages(t *Table, by *placement, p *presentPage, rule []limit.Window) Status {
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < by.pages; i++ {
		key := by.pageKey(s.next)
		value, _, status := t.parent.store.Get(key[:])
		switch status {
		case OK:
			s.found.Bytes += page.PageHostBytes(len(value))
			s.found.Keys += t.liveIn(by, p, rule, value)
			read += len(value)
		case NotFound:
		default:
			return Failed
		}
		s.next++
	}
	return OK
}

// liveIn counts the keys that count something in a page as it is stored. It returns 0 for a
// page that it cannot read.
func (t *Table) liveIn(by *placement, p *presentPage, rule []limit.Window, value []byte) uint64 {
	loaded, status := by.convert(value)
	if status != OK {
		return 0
	}
	p.loadedPage = loadedPage{placement: by, page: loaded}
	v := t.readPage(p, rule, t.parent.store.Now())
	return v.liveKeys()
}

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }
