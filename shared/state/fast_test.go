package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// beside plays a vector's hits on the fast path, in a store of its own.
type beside struct {
	like   *Table // the general path's
	table  *Table
	fast   *Fast
	entry  Entry
	served int
}

func newBeside(like *Table, id string, windows []limit.Window) *beside {
	b := &beside{like: like, table: configured(newMemory(), "o", 0, definition(id, 4, windows...))}
	if b.fast = NewFast(b.table, b.table.def.Windows); b.fast == nil {
		return nil
	}
	return b
}

// hit counts, and asks for the same bytes as the general path left.
func (b *beside) hit(t *testing.T, now int64, cost uint32) {
	if b == nil {
		return
	}
	key := keyed(b.table, []byte("k"))
	passNs, ok := b.fast.Read(&b.entry, key.Bytes, now, cost)
	if !ok {
		require.Equal(t, OK, b.table.Read(&b.entry, key, now))
		passNs = b.table.Check(&b.entry, cost)
	}
	if passNs == b.entry.Now && cost > 0 {
		var status Status
		if ok {
			status, ok = b.fast.Commit(&b.entry, cost)
		}
		if !ok {
			status = b.table.Commit(&b.entry, cost, true)
		}
		require.Equal(t, OK, status)
	}
	if ok {
		b.served++
	}
	require.Equal(t, b.like.tables.store.(*memory).values, b.table.tables.store.(*memory).values)
}
