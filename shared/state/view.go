package state

// On returns the same tables over another store, none of them read yet. A store
// that keeps writes to itself shows what would happen without changing anything.
func (t *Tables) On(store Store) *Tables {
	return NewTables(store, t.random, t.self.id, t.self.configuredNs)
}

// Counterpart returns t's table for the counter of another Tables' table.
func (t *Tables) Counterpart(table *Table) *Table { return t.Table(table.def) }
