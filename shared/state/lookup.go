package state

// lookup finds a counter's tables in a directory, and free table numbers, without
// a search through all tables: a configuration may have ten thousand. It is valid
// as long as no table is removed.
type lookup struct {
	at   map[CounterID][]int
	used map[uint16]bool
	free uint16 // every lower number is used
}

// prepare makes the lookup, for tablesOf and add.
func (d *directory) prepare() {
	d.found = lookup{at: make(map[CounterID][]int, len(d.tables)), used: make(map[uint16]bool, len(d.tables))}
	for i := range d.tables {
		d.found.add(&d.tables[i], i)
	}
}

func (l *lookup) add(e *tableEntry, i int) {
	l.at[e.counter] = append(l.at[e.counter], i)
	l.used[e.number] = true
}

// tablesOf returns the indexes of the counter's tables, in the directory's order.
func (d *directory) tablesOf(counter CounterID) (indexes []int) { return d.found.at[counter] }

// add appends a table.
func (d *directory) add(e tableEntry) *tableEntry {
	d.found.add(&e, len(d.tables))
	d.tables = append(d.tables, e)
	return &d.tables[len(d.tables)-1]
}

// freeNumber returns the lowest number that no table has.
func (d *directory) freeNumber() uint16 {
	for d.found.used[d.found.free] {
		d.found.free++
	}
	return d.found.free
}

// minAhead is how many tables must be registered before others are registered
// ahead of their first hit.
const minAhead = 16

// withOthers returns the table and others to register with it: as many as are
// registered already. Each registration reads and writes the whole directory, so
// ten thousand tables one by one would take minutes; doubling their number takes
// few registrations.
func (t *Tables) withOthers(first *Table) []*Table {
	var closed []*Table
	open := 0
	for _, table := range t.tables {
		switch {
		case table.open:
			open++
		case table != first:
			closed = append(closed, table)
		}
	}
	if open < minAhead {
		return []*Table{first}
	}
	return append([]*Table{first}, closed[:min(open, len(closed))]...)
}
