package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

// How many keys and bytes a table has, for the metrics: a Survey reads a few pages at each tick.

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

// Step continues the survey of a table; live counts the keys of a page, with the table that can read
// it. It is a callback of the caller, because only that has the rule's windows and an Entry: see Table.Live.
// When it has read the last page, it returns done and what it has found, and the survey starts again.
// It skips a table that no worker has registered, as far as PrepareSurveys has found.
func (s *Survey) Step(
	t *Table, live func(t *Table, page []byte) uint64,
) (found Found, done bool, status Status) {
	if !t.open {
		if t.surveyed == nil {
			*s = Survey{}
			return Found{}, false, OK
		}
		t = t.forStep()
	}
	if status := s.addPages(t, live); status != OK {
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

// forStep is a table by the registration that another worker has made of t. It lasts for one step: a layout
// takes a page of memory, and other workers may have registered thousands of tables.
func (t *Table) forStep() *Table {
	other := &Table{parent: t.parent, def: t.def}
	other.setLayout(t.surveyed)
	return other
}

// addPages adds the next pages.
func (s *Survey) addPages(t *Table, live func(t *Table, page []byte) uint64) Status {
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		key := t.pageKey(s.next)
		value, _, status := t.parent.store.Get(key[:])
		switch status {
		case OK:
			s.found.Bytes += valueBytes(len(value))
			s.found.Keys += live(t, value)
			read += len(value)
		case NotFound:
		default:
			return Failed
		}
		s.next++
	}
	return OK
}

// Live counts the keys that count something in a page as it is stored. It returns 0 for a
// page that it cannot read.
func (t *Table) Live(e *Entry, rule []limit.Window, now int64, value []byte) uint64 {
	e.CallerNs = now
	if t.readPage(&e.loaded, rule, value) != OK {
		return 0
	}
	return t.liveKeys(&e.loaded)
}

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }

// PrepareSurveys finds in the directory the tables that only other workers have registered, so that this one
// can survey them, too. It registers nothing.
func (ts *Tables) PrepareSurveys() {
	var closed []*Table
	for _, table := range ts.tables {
		table.surveyed = nil
		if !table.open {
			closed = append(closed, table)
		}
	}
	if len(closed) == 0 {
		return
	}
	d, status := ts.directory()
	if status != OK {
		return
	}
	for _, table := range closed {
		// An older and a newer configuration of the owner may have one each: then it is the last.
		for _, i := range d.tablesOf(table.def.Counter) {
			if r := &d.tables[i]; r.foreign == nil && r.hasOwner(ts.self.id) {
				found := *r
				table.surveyed = &found
			}
		}
	}
}
