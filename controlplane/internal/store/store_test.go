package store

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
		answers   []Reply
		acked     uint64
		refused   []uint64
		unsettled bool
	}{
		{[]Reply{ack(1)}, 1, nil, false},
		{[]Reply{ack(1), nack(2)}, 1, []uint64{2}, true},
		{[]Reply{ack(1), nack(2), ack(1)}, 1, []uint64{2}, false}, // its withdrawal
		{[]Reply{ack(1), nack(2), ack(1), ack(3)}, 3, nil, false},
		{[]Reply{nack(2), ack(2)}, 2, nil, false},
		{[]Reply{nack(2), nack(2)}, 0, []uint64{2}, true},
		{[]Reply{ack(6), nack(6), ack(3)}, 3, []uint64{6}, false},
	} {
		var p Proxy
		for _, a := range tc.answers {
			p = p.After(a)
		}
		require.ElementsMatch(t, tc.refused, p.Refused, "%v", tc)
		require.Equal(t, []any{tc.acked, tc.unsettled}, []any{p.Acked, p.Unsettled}, "%v", tc)
	}
	var p Proxy
	for r := range uint64(100) {
		p = p.After(nack(r))
	}
	require.Len(t, p.Refused, maxRefused)
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	require.NoError(t, b.commit(t.Context(), false, func(r records) error { return r.set(metaBucket, formatKey, []byte("99")) }))
	require.NoError(t, b.Close())
	for range 2 { // it is not left locked
		_, err := Open(dir)
		require.ErrorContains(t, err, `"99"`)
	}
	_, err := Open(filepath.Join(dir, FileName))
	require.ErrorContains(t, err, "create data directory")
}
