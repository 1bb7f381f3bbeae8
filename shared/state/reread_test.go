package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Reread does not hash the key again, also if the table has moved meanwhile.
func TestRereadDoesNotHash(t *testing.T) {
	store := newMemory()
	table := configured(store, "o", 1, definition("x", 4096, aligned(5, second, 0)))
	for n := range 100 {
		require.True(t, hit(t, table, numbered(n), second, uint32(1+n%5)))
	}
	var e Entry
	for n := range 100 {
		key := keyed(table, numbered(n))
		require.Equal(t, OK, table.Read(&e, key, second))
		key.Bytes = nil
		require.Equal(t, OK, table.Reread(&e, key, second))
		require.EqualValues(t, 1+n%5, table.Usage(&e, 0).Used)
	}

	key := keyed(table, numbered(7))
	require.Equal(t, OK, table.Read(&e, key, second))
	table.tables.SetSplitOwner(OwnerID("another"))
	table.tables.Split()
	require.Equal(t, OK, table.Reread(&e, key, second))
	at, _ := table.place(table.hash(numbered(7)))
	require.Equal(t, at, e.key)
}

// Reading and denying a key in a page that does not exist yet does not create the
// page, and the empty page that stands for it is never written.
func TestAMissingPageIsNotMade(t *testing.T) {
	store := &arena{values: make(map[string]*stored)}
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
