package state

import "slices"

// lookup finds tables of a directory by their counter, and numbers that none
// has, without going through all of them each time: a configuration may have
// ten thousand. It holds as long as no table is removed.
type lookup struct {
	at   map[CounterID][]int
	used map[uint16]bool
	free uint16 // no number below is free
}

// leastLookedUp is how many tables must be looked for before a lookup pays.
const leastLookedUp = 8

// prepare makes a lookup if so many searches in the directory pay for one.
func (d *directory) prepare(searches int) {
	d.found = nil
	if searches < leastLookedUp {
		return
	}
	d.found = &lookup{at: make(map[CounterID][]int, len(d.tables)), used: make(map[uint16]bool, len(d.tables))}
	for i := range d.tables {
		d.found.add(&d.tables[i], i)
	}
}

func (l *lookup) add(e *tableEntry, i int) {
	l.at[e.counter] = append(l.at[e.counter], i)
	l.used[e.number] = true
}

// of returns the places of the counter's tables, in the directory's order.
func (d *directory) of(counter CounterID) (places []int) {
	if d.found != nil {
		return d.found.at[counter]
	}
	for i := range d.tables {
		if d.tables[i].counter == counter {
			places = append(places, i)
		}
	}
	return places
}

// add appends a table.
func (d *directory) add(e tableEntry) *tableEntry {
	if d.found != nil {
		d.found.add(&e, len(d.tables))
	}
	d.tables = append(d.tables, e)
	return &d.tables[len(d.tables)-1]
}

// freeNumber returns the lowest number that no table has.
func (d *directory) freeNumber() uint16 {
	l := d.found
	if l == nil {
		l = &lookup{used: make(map[uint16]bool, len(d.tables))}
		for i := range d.tables {
			l.used[d.tables[i].number] = true
		}
	}
	for l.used[l.free] {
		l.free++
	}
	return l.free
}

// leastAhead is how many tables must be in use before others are registered
// ahead of their first hit.
const leastAhead = 16

// ahead returns the table and as many of those that are not registered yet as
// are: each registration reads and writes the whole directory, so that ten
// thousand one by one would take minutes, and doubling takes a few dozen.
func (t *Tables) ahead(first *Table) []*Table {
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
	if open < leastAhead {
		return []*Table{first}
	}
	// Every worker takes them in the same order, and finds those of the others.
	slices.SortFunc(closed, func(a, b *Table) int { return slices.Compare(a.def.Counter[:], b.def.Counter[:]) })
	return append([]*Table{first}, closed[:min(open, len(closed))]...)
}
