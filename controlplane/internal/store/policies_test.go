package store

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// testdata/before-policies was written by the release before policies had names: three
// revisions, a refusal, an audit log.
func TestDirectoryOfBeforePoliciesHadNames(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	for _, name := range []string{FileName, LastName} {
		f, err := os.Open(filepath.Join("testdata", "before-policies", name+".gz"))
		require.NoError(t, err)
		defer f.Close()
		from, err := gzip.NewReader(f)
		require.NoError(t, err)
		text, err := io.ReadAll(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	b := open(t, dir)
	require.Equal(t, []uint64{3, 2, 1}, numbersOf(t, b, DefaultPolicy, 0))
	third, err := b.Get(ctx, 3)
	require.NoError(t, err)
	require.Equal(t, "third", string(third.YAML))
	require.Equal(t, DefaultPolicy, third.Policy)
	require.True(t, third.Nacked)
	proxies, err := b.Proxies(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(2), proxies[0].Acked)
	entries, err := b.Audit(ctx, DefaultPolicy, 0, 0)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	formatOf := func() (found string) {
		require.NoError(t, b.db.View(func(tx *bbolt.Tx) error {
			found = string(boltRecords(tx).value(metaBucket, formatKey))
			return nil
		}))
		return found
	}
	_, err = add(ctx, b, draft("fourth"))
	require.NoError(t, err)
	require.Equal(t, format, formatOf(), "the release before can go on with it")
	_, err = add(ctx, b, of("edge", "fifth"))
	require.NoError(t, err)
	require.Equal(t, severalFormat, formatOf(), "it would give edge's policy to all proxies")
	backup := backupOf(t, b)
	require.NoError(t, b.Close())
	restored, err := Restore(backup, t.TempDir(), false)
	require.NoError(t, err)
	require.Equal(t, 5, restored.Revisions)
	b = open(t, dir)
	require.Equal(t, []uint64{4, 3, 2, 1}, numbersOf(t, b, DefaultPolicy, 0))
	require.Equal(t, []uint64{5}, numbersOf(t, b, "edge", 0))
}
