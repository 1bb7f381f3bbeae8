package state

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

// Step continues the survey of a table, whose pages' keys live counts. When it has
// read the last page, it returns done and what it has found, and the survey starts
// again. It skips a table that neither this worker has used nor Peek has seen.
func (s *Survey) Step(t *Table, live func(value []byte) uint64) (found Found, done bool, status Status) {
	if !t.open {
		if t.seen == nil {
			*s = Survey{}
			return Found{}, false, OK
		}
		t.adopt(t.seen)
		defer func() { t.open = false }() // it is not registered
	}
	read := 0
	for i := 0; i < surveyPages && read < surveyBytes && s.next < t.pages; i++ {
		at := t.pageKey(s.next)
		value, _, status := t.tables.store.Get(at[:])
		switch status {
		case OK:
			s.found.Bytes += valueBytes(len(value))
			s.found.Keys += live(value)
			read += len(value)
		case NotFound:
		default:
			*s = Survey{}
			return Found{}, false, Failed
		}
		s.next++
	}
	if s.next < t.pages {
		return Found{}, false, OK
	}
	found = s.found
	*s = Survey{}
	return found, true, OK
}

// Peek looks in the directory for the tables that this worker has not used. Others
// have, so they can be surveyed. It registers nothing.
func (t *Tables) Peek() {
	var unused []*Table
	for _, table := range t.tables {
		if table.seen = nil; !table.open {
			unused = append(unused, table)
		}
	}
	if len(unused) == 0 {
		return
	}
	value, _, status := t.store.Get(directoryKey)
	if status != OK {
		return
	}
	d, _ := readDirectory(value) // one that cannot be read is empty
	d.prepare()
	for _, table := range unused {
		for _, i := range d.tablesOf(table.def.Counter) {
			if e := &d.tables[i]; e.foreign == nil && e.hasOwner(t.self.id) {
				seen := *e
				table.seen = &seen
			}
		}
	}
}

// Used reports whether this worker has used the table.
func (t *Table) Used() bool { return t.open }

// Known reports whether a survey reads the table: this worker has used it, or Peek has
// seen it.
func (t *Table) Known() bool { return t.open || t.seen != nil }

// Begun reports whether a survey is under way.
func (s *Survey) Begun() bool { return s.next > 0 }
