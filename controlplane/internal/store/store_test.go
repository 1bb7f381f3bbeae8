package store

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func open(t *testing.T, dir string) *Bolt {
	t.Helper()
	b, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestProxyAfter(t *testing.T) {
	ack := func(r uint64) Reply { return Reply{Node: "n", Revision: r, Accepted: true} }
	nack := func(r uint64) Reply { return Reply{Node: "n", Revision: r} }
	for _, tc := range []struct {
		name      string
		answers   []Reply
		acked     uint64
		refused   []uint64
		unsettled bool
	}{
		{"one accepted", []Reply{ack(1)}, 1, nil, false},
		{"refused after accepted", []Reply{ack(1), nack(2)}, 1, []uint64{2}, true},
		{"withdrawal confirmed", []Reply{ack(1), nack(2), ack(1)}, 1, []uint64{2}, false},
		{"next one accepted", []Reply{ack(1), nack(2), ack(1), ack(3)}, 3, nil, false},
		{"the refused one accepted later", []Reply{nack(2), ack(2)}, 2, nil, false},
		{"refused twice", []Reply{nack(2), nack(2)}, 0, []uint64{2}, true},
		{"an accepted one refused later", []Reply{ack(6), nack(6), ack(3)}, 3, []uint64{6}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p Proxy
			for _, a := range tc.answers {
				p = p.After(a)
			}
			require.Equal(t, tc.acked, p.Acked)
			require.ElementsMatch(t, tc.refused, p.Refused)
			require.Equal(t, tc.unsettled, p.Unsettled)
		})
	}
	var p Proxy
	for r := range uint64(100) {
		p = p.After(nack(r + 1))
	}
	require.Len(t, p.Refused, maxRefused)
	require.Equal(t, uint64(100), p.Refused[maxRefused-1])
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	require.NoError(t, b.db.Update(func(tx *bbolt.Tx) error {
		return boltRecords(tx).set(metaBucket, formatKey, []byte("99"))
	}))
	require.NoError(t, b.Close())
	for range 2 { // it is not left locked
		_, err := Open(dir)
		require.ErrorContains(t, err, `"99"`)
	}
	_, err := Open(filepath.Join(dir, FileName))
	require.ErrorContains(t, err, "create data directory")
}

// Dropping as many as come keeps the database from growing. How far it goes is
// not the same in every run: bbolt writes the buckets of a transaction in no
// order, so the texts lie in another order on the free pages each time. The
// bound is what is kept, twice, since a page that is written again takes its
// neighbor along before the old pages are free, and half of that for the holes
// in between. The file itself grows by doubling.
func TestDroppedPagesAreUsedAgain(t *testing.T) {
	const kept, text = 10, 100_000
	b := open(t, t.TempDir())
	for n := uint64(1); n <= 100; n++ {
		appendAll(t, b, strings.Repeat("x", text))
		if n > kept {
			require.NoError(t, b.Drop(t.Context(), []uint64{n - kept}))
		}
		require.NoError(t, b.db.read(func(tx *bbolt.Tx) error {
			require.LessOrEqual(t, tx.Size(), int64(3*(kept+1)*2*text), "after %d of them", n)
			return nil
		}))
	}
}
