package state

// On returns the same tables over another store, as a worker has them before it
// has read any. Over a store that keeps writes to itself they say what would
// happen, and nothing does.
func (t *Tables) On(store Store) *Tables {
	return NewTables(store, t.random, t.self.id, t.self.configuredNs)
}

// Like returns the table of the same counter as one of other tables.
func (t *Tables) Like(table *Table) *Table { return t.Table(table.def) }
