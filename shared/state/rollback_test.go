package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// After a rollback the older filter finds tables with windows that only the newer
// one knows. It leaves them as they are, and its other counters go on.
func TestTablesOfANewerBuildAreLeftAlone(t *testing.T) {
	store := newMemory()
	goldenTable(t, store)
	newer := store.bytes(directoryKey)
	window := newer[directoryHeadBytes+tableHeadBytes:]
	window[0] = 200
	store.Set(directoryKey, newer, 0)

	table := configured(store, "q", 1, definition("new", 3, aligned(9, ms, 0)))
	require.Equal(t, OK, table.Read(new(Entry), keyed(table, []byte("a")), 3600*second))
	d, ok := readDirectory(store.bytes(directoryKey))
	require.True(t, ok)
	require.Len(t, d.tables, 3)
	require.EqualValues(t, 2, d.tables[2].number)
	require.Equal(t, newer[directoryHeadBytes:], store.bytes(directoryKey)[directoryHeadBytes:len(newer)])
}
