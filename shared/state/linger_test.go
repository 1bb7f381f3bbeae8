package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLingeringIsLeft: another configuration of the same owner settles, once, what one that
// ends has left; those of other owners or without the counter do not.
func TestLingeringIsLeft(t *testing.T) {
	d := newDesk(t, 64, inFlight())
	var left []Lingering
	for i := range 2 {
		r, ok := d.hold("a", 1)
		require.True(t, ok)
		left = append(left, Lingering{r, d.store.monotonicNs + int64(i)})
	}
	require.Equal(t, OK, d.table.tables.LeaveLingering([]*Table{d.table, d.table}, left))
	take := func(table *Table) (taken []Lingering) {
		require.Equal(t, OK, table.tables.TakeLingering(func(of *Table, l Lingering) {
			require.Same(t, table, of)
			taken = append(taken, l)
		}))
		return taken
	}
	require.Empty(t, take(configured(d.store, "another", 2, definition("x", 64, inFlight()))))
	require.Empty(t, take(configured(d.store, "o", 2, definition("y", 64, inFlight()))))
	d.table = configured(d.store, "o", 2, definition("x", 64, inFlight()))
	require.Equal(t, left, take(d.table))
	require.Empty(t, take(d.table), "it is taken once")
	for _, l := range left {
		require.False(t, d.settle("a", l.Receipt, 0))
	}
	d.requireStands("a", 0, 0, "all slots are free")

	require.Equal(t, OK, d.table.tables.LeaveLingering([]*Table{d.table}, left[:1]))
	d.pass(60 * second)
	require.Empty(t, take(configured(d.store, "another", 2, definition("x", 64, inFlight()))))
	require.Empty(t, take(d.table), "nobody took it for long")
}
