package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHoldingOfAllVMs: the sum is of the VMs that give signs of life.
func TestHoldingOfAllVMs(t *testing.T) {
	d := newDesk(t, 64, inFlight())
	share := func(vm uint64, units int64) int64 {
		all, status := d.table.tables.ShareHolding(7, vm, Holding{units, 1})
		require.Equal(t, OK, status)
		return all.Units
	}
	require.EqualValues(t, 3, share(1, 3))
	require.EqualValues(t, 5, share(2, 2))
	require.EqualValues(t, 4, share(1, 2))
	for range 6 { // the second has trapped
		d.pass(second)
		share(1, 2)
	}
	require.EqualValues(t, 2, share(1, 2))
	all, _ := d.table.tables.ShareHolding(7, 1, Holding{})
	require.Zero(t, all)
	all, _ = d.table.tables.ShareHolding(8, 1, Holding{1, 1})
	require.Equal(t, Holding{1, 1}, all, "of another rule")
}
