package store

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
	_, err = add(ctx, b, of("edge", "fourth"))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	b = open(t, dir)
	require.Equal(t, []uint64{3, 2, 1}, numbersOf(t, b, DefaultPolicy, 0))
	require.Equal(t, []uint64{4}, numbersOf(t, b, "edge", 0))
}

func damagedRecord(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	appendAll(t, s, "a", "b")
	require.NoError(t, s.commit(ctx, false, func(r records) error {
		value := append([]byte{}, r.value(yamlBucket, key(2))...)
		value[len(value)-1] ^= 1
		return r.set(yamlBucket, key(2), value)
	}))
	_, err := s.Get(ctx, 2)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "revision 2 (yaml) is not what was stored")
	_, err = s.Get(ctx, 1)
	require.NoError(t, err)
}

func backupOpens(t *testing.T, reopen opener) {
	s, ctx := reopen(), t.Context()
	appendAll(t, s, "a", "b")
	_, err := add(ctx, s, of("edge", "c"))
	require.NoError(t, err)
	require.NoError(t, s.Drop(ctx, []uint64{1}))
	secret, err := s.Secret(ctx)
	require.NoError(t, err)
	dir := t.TempDir()
	restored, err := Restore(backupOf(t, s), dir, false)
	require.NoError(t, err)
	require.Equal(t, Contents{Revisions: 2, Newest: 3, Given: 3}, restored.Contents)
	copied := open(t, dir)
	for _, number := range []uint64{2, 3} {
		want, err := s.Get(ctx, number)
		require.NoError(t, err)
		got, err := copied.Get(ctx, number)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	again, err := copied.Secret(ctx)
	require.NoError(t, err)
	require.Equal(t, secret, again)
}
