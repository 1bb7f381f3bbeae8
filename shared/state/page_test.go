package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Reading and denying a key in a page that does not exist yet does not create the
// page, and the empty page that stands for it is never written.
func TestAMissingPageIsNotMade(t *testing.T) {
	store := &view{memory: newMemory()}
	table := configured(store, "o", 1, definition("x", 1<<20, aligned(5, second, 0), perKey(7, 9*second)))
	key := keyed(table, []byte("k"))
	e := new(Entry)
	require.Equal(t, OK, table.Read(e, key, second))
	values := len(store.values)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if table.Read(e, key, second) != OK || table.Check(e, 9) == e.Now {
			t.Error("not denied")
		}
	}))
	require.Len(t, store.values, values, "nothing is written")

	require.Equal(t, OK, table.Commit(e, 2, true))
	require.True(t, hit(t, table, []byte("other"), second, 3), "in another page")
	require.Equal(t, []uint32{2, 2}, used(t, table, []byte("k"), second))
	require.Equal(t, []uint32{3, 3}, used(t, table, []byte("other"), second))
	require.Equal(t, []uint32{0, 0}, used(t, table, []byte("third"), second))
}

// A hit from before a reset is not refunded after it, whatever has become of the layout.
func TestConvertKeepsTheGeneration(t *testing.T) {
	from := NewLayout(definition("x", 2, aligned(9, 10*second, 0)).Windows, 2)
	to := NewLayout(definition("x", 2, perKey(9, 20*second)).Windows, 2)
	old := newPage(&from, 3)
	generation := old.nextGeneration()
	old.place(&from, 1, 0xfeedface)
	old.setTime(&from, 1, second)
	old.mark(&from, 1, generation, true)
	got := old.convert(&from, &to, 8)
	require.True(t, got.readable())
	require.Equal(t, generation, got.generation())
	require.Equal(t, generation, got.recordGeneration(&to, 1))
	require.Equal(t, old.record(&from, 1)[:recordHeadBytes], got.record(&to, 1)[:recordHeadBytes], "that it was reset, too")
}
