package store

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
)

func of(policy, text string) Draft {
	d := draft(text)
	if d.Policy = policy; policy != DefaultPolicy {
		d.Proxies = &selector.Selector{Node: policy + "-*"}
	}
	d.Audit = Entry{Action: "apply"}
	return d
}

func numbersOf(t *testing.T, b *Bolt, policy string, limit int) (list []uint64) {
	t.Helper()
	history, err := b.History(t.Context(), policy, limit)
	require.NoError(t, err)
	for _, s := range history {
		list = append(list, s.Number)
	}
	return list
}

func TestPoliciesHaveHistoriesOfTheirOwn(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := open(t, dir)
	for _, policy := range []string{"default", "edge", "default", "edge", "core"} {
		_, err := add(ctx, b, of(policy, policy))
		require.NoError(t, err)
	}
	require.NoError(t, b.Close())
	b = open(t, dir)
	require.Equal(t, []uint64{3, 1}, numbersOf(t, b, "default", 0))
	require.Equal(t, []uint64{4}, numbersOf(t, b, "edge", 1))
	require.Equal(t, []uint64{5, 4, 3, 2, 1}, numbersOf(t, b, "", 0))
	require.Empty(t, numbersOf(t, b, "other", 0))
	edge, err := b.Get(ctx, 4)
	require.NoError(t, err)
	require.Equal(t, "edge", edge.Policy)
	require.Equal(t, &selector.Selector{Node: "edge-*"}, edge.Proxies)
	entries, err := b.Audit(ctx, "edge", 1, 0)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, uint64(4), entries[0].Revision)
	entries, err = b.Audit(ctx, "edge", 0, entries[0].ID)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	for number, text := range map[uint64]string{3: "3 is the newest", 4: "4 is the newest", 5: "5 is the newest"} {
		require.ErrorContains(t, b.Drop(ctx, []uint64{number}), text, "each policy keeps its newest")
	}
	require.NoError(t, b.Drop(ctx, []uint64{1, 2}))
	require.Equal(t, []uint64{5, 4, 3}, numbersOf(t, b, "", 0))
}

// A change of several policies is one, and only in the light of the last one.
func TestAChangeIsWholeOrNone(t *testing.T) {
	b, ctx := open(t, t.TempDir()), t.Context()
	before := b.Appended()
	list, err := b.Append(ctx, Change{Drafts: []Draft{of("edge", "a"), of("core", "b")}})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, []uint64{list[0].Number, list[1].Number})
	<-before
	_, err = b.Append(ctx, Change{Last: 1, Drafts: []Draft{of("edge", "c")}})
	require.ErrorIs(t, err, ErrConflict)
	require.NoError(t, b.Healthy(ctx), "what is refused says nothing about the disk")
	require.Equal(t, []uint64{2, 1}, numbersOf(t, b, "", 0))
	last, err := b.Last(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(2), last)

	list, err = b.Append(ctx, Change{Last: 2, Above: 9, Drafts: []Draft{of("edge", "c")}})
	require.NoError(t, err)
	require.Equal(t, uint64(10), list[0].Number)
}

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
			found = string(records{tx}.bucket(metaBucket).Get(formatKey))
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
