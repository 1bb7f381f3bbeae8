package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

func open(t *testing.T, dir string) *Bolt {
	t.Helper()
	b, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func draft(text string) Draft {
	return Draft{File: "policy.yaml", YAML: []byte(text), JSON: []byte(`{"of":"` + text + `"}`)}
}

func TestAppendNumbersAndKeeps(t *testing.T) {
	dir, ctx := filepath.Join(t.TempDir(), "not", "there", "yet"), t.Context()
	b, err := Open(dir)
	require.NoError(t, err)

	for i, text := range []string{"a", "b", "c"} {
		d := draft(text)
		d.Wasm = "/lib/" + text + ".wasm"
		r, err := b.Append(ctx, d)
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), r.Number)
		require.WithinDuration(t, time.Now(), r.Created, time.Minute)
	}
	require.NoError(t, b.Close())

	b = open(t, dir)
	r, err := b.Get(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, "b", string(r.YAML))
	require.JSONEq(t, `{"of":"b"}`, string(r.JSON))
	require.Equal(t, "/lib/b.wasm", r.Wasm)
	require.Equal(t, "policy.yaml", r.File)
	require.Equal(t, 1, r.Bytes)
	// printf b | sha256sum
	require.Equal(t, "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", r.SHA256)

	_, err = b.Get(ctx, 4)
	require.ErrorIs(t, err, ErrNotFound)
	_, err = b.Get(ctx, 0)
	require.ErrorIs(t, err, ErrNotFound)
}

func TestHistoryIsNewestFirst(t *testing.T) {
	b, ctx := open(t, t.TempDir()), t.Context()
	list, err := b.History(ctx, 0)
	require.NoError(t, err)
	require.Empty(t, list)
	for i := range 5 {
		d := draft(fmt.Sprint(i))
		if i == 4 {
			d.RollbackOf = 2
		}
		_, err := b.Append(ctx, d)
		require.NoError(t, err)
	}
	list, err = b.History(ctx, 2)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, uint64(5), list[0].Number)
	require.Equal(t, uint64(2), list[0].RollbackOf)
	require.Equal(t, uint64(4), list[1].Number)
	list, err = b.History(ctx, 0)
	require.NoError(t, err)
	require.Len(t, list, 5)
}

func TestBookMarksRevisionAndProxy(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b, err := Open(dir)
	require.NoError(t, err)
	for range 2 {
		_, err := b.Append(ctx, draft("x"))
		require.NoError(t, err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 1, Accepted: true, At: at}))
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Text: "no", At: at.Add(time.Second)}))
	want := Proxy{
		Node: "e1", Acked: 1, AckedAt: at, Nacked: 2, NackedAt: at.Add(time.Second), NackText: "no",
		Refused: []uint64{2}, Unsettled: true,
	}
	require.NoError(t, b.Close())

	b = open(t, dir)
	proxies, err := b.Proxies(ctx)
	require.NoError(t, err)
	require.Equal(t, []Proxy{want}, proxies)
	list, err := b.History(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{list[0].Acked, list[0].Nacked})
	require.Equal(t, []bool{true, false}, []bool{list[1].Acked, list[1].Nacked})

	require.NoError(t, b.Forget(ctx, Identity{Node: "e1"}))
	proxies, err = b.Proxies(ctx)
	require.NoError(t, err)
	require.Empty(t, proxies)
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

func TestConcurrentAppendsAndBookings(t *testing.T) {
	b, ctx := open(t, t.TempDir()), t.Context()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				r, err := b.Append(ctx, draft("x"))
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				if err := b.SaveReply(ctx, Reply{Node: fmt.Sprint("e", i), Revision: r.Number, Accepted: true}); err != nil {
					t.Errorf("book: %v", err)
				}
			}
		})
	}
	wg.Wait()
	list, err := b.History(ctx, 0)
	require.NoError(t, err)
	require.Len(t, list, 40)
	for i, s := range list {
		require.Equal(t, uint64(40-i), s.Number)
		require.True(t, s.Acked)
	}
	proxies, err := b.Proxies(ctx)
	require.NoError(t, err)
	require.Len(t, proxies, 8)
}

func TestHeldByAnother(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	watch := buildtest.StartStopwatch()
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorContains(t, err, dir)
	require.Less(t, watch.Elapsed(), 5*time.Second)
}

func TestOtherFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte("this is no database, whatever its name\n"), 0o600))
	_, err := Open(dir)
	require.ErrorContains(t, err, FileName)

	dir = t.TempDir()
	db, err := bbolt.Open(filepath.Join(dir, FileName), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		return meta.Put(formatKey, []byte("99"))
	}))
	require.NoError(t, db.Close())
	_, err = Open(dir)
	require.ErrorContains(t, err, `"99"`)
	_, err = Open(dir)
	require.NotErrorIs(t, err, ErrHeld, "a refused store is not left locked")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(file)
	require.ErrorContains(t, err, "create data directory")
}

func TestAppended(t *testing.T) {
	b := open(t, t.TempDir())
	before := b.Appended()
	_, err := b.Append(t.Context(), draft("x"))
	require.NoError(t, err)
	<-before
	select {
	case <-b.Appended():
		t.Fatal("closed before the next one")
	default:
	}
}

// A copy that was interrupted, or a file that something else wrote to, is an
// error and never a crash.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	b, err := Open(dir)
	require.NoError(t, err)
	for i := range 50 {
		_, err := b.Append(t.Context(), draft(strings.Repeat("x", 1000*i)))
		require.NoError(t, err)
	}
	require.NoError(t, b.Close())
	whole, err := os.ReadFile(filepath.Join(dir, FileName))
	require.NoError(t, err)

	page := os.Getpagesize()
	for name, damaged := range map[string][]byte{
		"text":        []byte("this is no database"),
		"a page":      whole[:page],
		"both metas":  whole[:2*page],
		"three pages": whole[:3*page],
		"half":        whole[:len(whole)/2],
		"overwritten": append(slices.Clone(whole[:2*page]), bytes.Repeat([]byte{0xA5}, len(whole)-2*page)...),
		"zeroed":      append(slices.Clone(whole[:2*page]), make([]byte, len(whole)-2*page)...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), damaged, 0o600))
			_, err := Open(dir)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, filepath.Join(dir, FileName))
		})
	}
}

func TestDrop(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b, err := Open(dir)
	require.NoError(t, err)
	for _, text := range []string{"a", "b", "c", "d"} {
		_, err := b.Append(ctx, draft(text))
		require.NoError(t, err)
	}
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Accepted: true}))
	require.ErrorContains(t, b.Drop(ctx, []uint64{1, 4}), "revision 4 is the newest")
	require.NoError(t, b.Healthy(ctx), "what is refused says nothing about the disk")
	_, err = b.Get(ctx, 1)
	require.NoError(t, err, "all or none")
	require.NoError(t, b.Drop(ctx, []uint64{2, 1, 77}))
	require.NoError(t, b.Drop(ctx, []uint64{2, 1}), "again")
	require.NoError(t, b.Close())

	b = open(t, dir)
	for number, text := range map[uint64]string{3: "c", 4: "d"} {
		r, err := b.Get(ctx, number)
		require.NoError(t, err)
		require.Equal(t, text, string(r.YAML))
	}
	for _, number := range []uint64{1, 2} {
		_, err := b.Get(ctx, number)
		require.ErrorIs(t, err, ErrNotFound)
	}
	require.NoError(t, b.db.View(func(tx *bbolt.Tx) error {
		for _, name := range revisionBuckets {
			require.Nil(t, tx.Bucket([]byte(name)).Get(key(2)), name)
		}
		return nil
	}))
	r, err := b.Append(ctx, draft("e"))
	require.NoError(t, err)
	require.Equal(t, uint64(5), r.Number, "no number is given twice")
}

// Dropping as many as come keeps the database from growing. How far it goes is
// not the same in every run: bbolt writes the buckets of a transaction in no
// order, so the texts lie in another order on the free pages each time. The
// bound is what is kept, twice, since a page that is written again takes its
// neighbor along before the old pages are free, and half of that for the holes
// in between. The file itself grows by doubling.
func TestDroppedPagesAreUsedAgain(t *testing.T) {
	const kept, text = 10, 100_000
	b, ctx := open(t, t.TempDir()), t.Context()
	for n := uint64(1); n <= 100; n++ {
		_, err := b.Append(ctx, draft(strings.Repeat("x", text)))
		require.NoError(t, err)
		if n > kept {
			require.NoError(t, b.Drop(ctx, []uint64{n - kept}))
		}
		require.NoError(t, b.db.View(func(tx *bbolt.Tx) error {
			require.LessOrEqual(t, tx.Size(), int64(3*(kept+1)*2*text), "after %d of them", n)
			return nil
		}))
	}
}
