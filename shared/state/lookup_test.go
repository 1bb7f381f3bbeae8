package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first hits of many tables write the directory only a few times, and those of
// another worker find all tables registered.
func TestFirstHitsOfManyTables(t *testing.T) {
	const many = 1000
	store := newMemory()
	worker := func() []*Table {
		tables := NewTables(store, seeded(1), 1, 1)
		list := make([]*Table, many)
		for n := range list {
			list[n] = tables.Table(definition(fmt.Sprint(n), 100, aligned(1, anHour, 0)))
		}
		return list
	}
	registered, writes := 0, 0
	for n, table := range worker() {
		require.True(t, hit(t, table, []byte("k"), second, 1))
		if now := len(store.directory(t).tables); now != registered {
			require.Truef(t, now == registered+1 || registered >= minAhead && now <= 2*registered+1, "%d after %d", now, registered)
			registered = now
			writes++
		}
		require.GreaterOrEqual(t, registered, n+1)
	}
	require.Equal(t, many, registered)
	require.Equal(t, 22, writes, "16 one by one, then 33, 67, 135, 271, 543 and the rest")
	written := store.values[string(directoryKey)].cas
	for _, table := range worker() {
		require.False(t, hit(t, table, []byte("k"), second, 1), "what the first worker counted")
	}
	require.Equal(t, written, store.values[string(directoryKey)].cas, "nothing was left to write")
}
