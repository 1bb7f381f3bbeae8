package state

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

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
// PrepareSurveys has found. e is memory only: Read it again before it is written.
func (s *Survey) Step(t *Table, e *Entry, rule []limit.Window) (found Found, done bool, status Status) {
	if t.open {
		return s.step(t, e, rule)
	}
	if t.surveyed == nil {
		*s = Survey{}
		return Found{}, false, OK
	}
	// A table of its own, for this step: other workers may have registered thousands, and each takes a page of memory.
	surveyed := &Table{parent: t.parent, def: t.def}
	surveyed.setPlacement(t.surveyed)
	return s.step(surveyed, e, rule)
}

func (s *Survey) step(t *Table, e *Entry, rule []limit.Window) (found Found, done bool, status Status) {
	if status := s.addPages(t, &e.loaded, rule); status != OK {
		*s = Survey{}
		return Found{}, false, status
	}
	if s.next < t.pages {
		return Found{}, false, OK
	}
	found = s.found
	*s = Survey{}
	return found, true, OK
}

// addPages adds the next pages.
func (s *Survey) addPages(t *Table, p *loaded, rule []limit.Window) Status {
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		key := t.pageKey(s.next)
		value, _, status := t.parent.store.Get(key[:])
		switch status {
		case OK:
			s.found.Bytes += page.PageHostBytes(len(value))
			s.found.Keys += t.liveIn(p, rule, value)
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
func (t *Table) liveIn(p *loaded, rule []limit.Window, value []byte) uint64 {
	p.CallerNs = t.parent.store.Now()
	converted, newer, status := t.convertIn(value)
	if newer || status != OK {
		return 0
	}
	p.page = converted
	t.readPage(p, rule)
	return t.liveKeys(p)
}

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }

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
