package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func TestAuditTellsEveryAppend(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b, err := Open(dir)
	require.NoError(t, err)
	d := draft("a")
	d.Audit = Entry{Who: "token ci", From: "192.0.2.1", Action: "apply", Text: "new"}
	_, err = b.Append(ctx, d)
	require.NoError(t, err)
	id, err := b.Record(ctx, Entry{Who: "token ops", Action: "counters set"})
	require.NoError(t, err)
	require.Equal(t, uint64(2), id)
	require.NoError(t, b.Close())

	b = open(t, dir)
	list, err := b.Audit(ctx, 0, 0)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "counters set", list[0].Action)
	require.Empty(t, list[0].Outcome, "nobody has said how it ended")
	require.WithinDuration(t, time.Now(), list[1].At, time.Minute)
	list[1].At = time.Time{}
	require.Equal(t, Entry{ID: 1, Who: "token ci", From: "192.0.2.1", Action: "apply", Revision: 1, Text: "new"}, list[1])

	require.NoError(t, b.Settle(ctx, 2, "2 of 2 proxies"))
	list, err = b.Audit(ctx, 1, 0)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "2 of 2 proxies", list[0].Outcome)
	list, err = b.Audit(ctx, 5, 2)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, uint64(1), list[0].ID)
}

func TestAuditIsBounded(t *testing.T) {
	b, ctx := open(t, t.TempDir()), t.Context()
	require.NoError(t, b.db.Update(func(tx *bbolt.Tx) error {
		for range maxEntries {
			if err := (records{tx}).appendEntry(&Entry{Action: "apply"}); err != nil {
				return err
			}
		}
		return nil
	}))
	for range 3 {
		_, err := b.Record(ctx, Entry{Action: "apply"})
		require.NoError(t, err)
	}
	list, err := b.Audit(ctx, 0, 0)
	require.NoError(t, err)
	require.Len(t, list, maxEntries)
	require.Equal(t, uint64(maxEntries+3), list[0].ID)
	require.Equal(t, uint64(4), list[maxEntries-1].ID)
	require.NoError(t, b.Settle(ctx, 1, "late"), "an entry that is gone")
}
