package state

// Operations on one key, as Read found it. Clean, the one on all pages of a table, is in visit.go.

// AllWindows makes an operation act on every window of the definition.
const AllWindows = -1

// Inc counts n units in the window, or in all, whatever their limits. It returns
// Mismatch and Full as Commit does.
func (t *Table) Inc(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for column := range t.layout.Counting {
		if t.acts(window, column) {
			e.windows[column].Add(&e.usage[column], e.Now, n)
		}
	}
	return t.finish(e)
}

// Set sets the usage of the window, or of all, to n units counted now. A block goes on. It
// returns Mismatch and Full as Commit does.
func (t *Table) Set(e *Entry, window int, n uint32, evict bool) Status {
	if status := t.begin(e, evict); status != OK {
		return status
	}
	for column := range t.layout.Counting {
		if t.acts(window, column) {
			e.usage[column] = e.windows[column].Set(e.Now, n)
		}
	}
	return t.writeRecord(e, e.page.NextGeneration())
}

// acts reports whether an operation on the window changes the column.
func (t *Table) acts(window, column int) bool {
	if column == int(t.block) {
		return false
	}
	for w := range t.def.Windows {
		if int(t.columnOf[w]) == column {
			return window == AllWindows || window == w
		}
	}
	return false
}

// Reset forgets the key and reports whether it had a record. If the floor counts
// something, the key gets an empty record, so that it does not start from the
// floor; so Reset may return Full. It returns Mismatch as Commit does.
func (t *Table) Reset(e *Entry, evict bool) (had bool, status Status) {
	if status := t.startChange(&e.loaded); status != OK {
		return false, status
	}
	if e.HasRecord() {
		had = !e.page.WasReset(e.slot)
		if t.layout.HasHolds && e.holds.Total() > 0 {
			e.page.ForgetHolds(e.slot)
		}
	}
	if t.floorLives(&e.loaded, e.Now) {
		return had, t.writeEmptyRecord(e, evict)
	}
	if !e.HasRecord() {
		return false, OK
	}
	t.remove(&e.loaded, e.slot)
	e.page.NextGeneration() // of the next record: no hit from before is refunded from that
	return had, t.write(&e.loaded)
}

// writeEmptyRecord gives the key a record that has counted nothing, in its slot or in one
// that it finds.
func (t *Table) writeEmptyRecord(e *Entry, evict bool) Status {
	slot := e.slot
	if !e.HasRecord() {
		slot = t.makeRoom(e, evict)
		if slot < 0 {
			return Full
		}
	}
	// Where the key had a record, it gets a new one with a new serial: no hold from before is found in that.
	// It shares nothing of what the floor holds.
	e.takeSlot(slot)
	e.page.SetTime(e.slot, e.Now)
	e.page.SetGeneration(e.slot, e.page.NextGeneration())
	e.page.MarkReset(e.slot)
	return t.write(&e.loaded)
}
