package state

// lookup finds a counter's tables in a directory, and free table numbers, without
// a search through all tables: a configuration may have ten thousand. It is valid
// as long as no table is removed: removeWaiting, which does so, empties it.
type lookup struct {
	indexes map[CounterID][]int // of the counter's tables
	used    map[uint16]bool
	free    uint16 // every lower number is used
}

// prepared returns the directory's lookup, and makes it if it is empty.
func (d *directory) prepared() *lookup {
	if d.found.indexes != nil {
		return &d.found
	}
	d.found.indexes = make(map[CounterID][]int, len(d.tables))
	d.found.used = make(map[uint16]bool, len(d.tables))
	for i := range d.tables {
		d.found.add(&d.tables[i], i)
	}
	return &d.found
}

func (l *lookup) add(r *registration, index int) {
	l.indexes[r.counter] = append(l.indexes[r.counter], index)
	l.used[r.number] = true
}

// tablesOf returns the indexes of the counter's tables, in the directory's order.
func (d *directory) tablesOf(counter CounterID) (indexes []int) { return d.prepared().indexes[counter] }

// add appends a table.
func (d *directory) add(r registration) *registration {
	d.prepared().add(&r, len(d.tables))
	d.tables = append(d.tables, r)
	return &d.tables[len(d.tables)-1]
}

// freeNumber returns the lowest number that no table has.
func (d *directory) freeNumber() uint16 {
	l := d.prepared()
	for l.used[l.free] {
		l.free++
	}
	return l.free
}
