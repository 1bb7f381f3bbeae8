package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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

// add makes a draft a revision, after whatever comes in between.
func add(ctx context.Context, s Store, d Draft) (Revision, error) {
	for {
		last, err := s.Last(ctx)
		if err != nil {
			return Revision{}, err
		}
		list, err := s.Append(ctx, Change{Last: last, Drafts: []Draft{d}})
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return Revision{}, err
		}
		return list[0], nil
	}
}

func draft(text string) Draft {
	return Draft{File: "policy.yaml", YAML: []byte(text), JSON: []byte(`{"of":"` + text + `"}`)}
}

func appendAll(t *testing.T, b *Bolt, texts ...string) {
	t.Helper()
	for _, text := range texts {
		_, err := add(t.Context(), b, draft(text))
		require.NoError(t, err)
	}
}

func TestRevisions(t *testing.T) {
	dir, ctx := filepath.Join(t.TempDir(), "not", "there", "yet"), t.Context()
	b := open(t, dir)
	list, err := b.History(ctx, "", 0)
	require.NoError(t, err)
	require.Empty(t, list)
	appendAll(t, b, "a", "b", "c")
	d := draft("b")
	d.Wasm, d.RollbackOf = "/lib/b.wasm", 2
	r, err := add(ctx, b, d)
	require.NoError(t, err)
	require.Equal(t, uint64(4), r.Number)
	require.NoError(t, b.Close())

	b = open(t, dir)
	kept, err := b.Get(ctx, 4)
	require.NoError(t, err)
	require.Equal(t, r, kept)
	require.WithinDuration(t, time.Now(), r.Created, time.Minute)
	r.Created = time.Time{}
	require.Equal(t, Revision{YAML: []byte("b"), JSON: []byte(`{"of":"b"}`), Summary: Summary{
		Number: 4, Policy: DefaultPolicy, File: "policy.yaml", Wasm: "/lib/b.wasm", RollbackOf: 2, Bytes: 1,
		SHA256: "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", // printf b | sha256sum
	}}, r)
	list, err = b.History(ctx, "", 2)
	require.NoError(t, err)
	require.Equal(t, []uint64{4, 3}, []uint64{list[0].Number, list[1].Number})

	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Accepted: true}))
	require.ErrorContains(t, b.Drop(ctx, []uint64{1, 4}), "revision 4 is the newest")
	require.NoError(t, b.Healthy(ctx), "what is refused says nothing about the disk")
	_, err = b.Get(ctx, 1)
	require.NoError(t, err, "all or none")
	require.NoError(t, b.Drop(ctx, []uint64{2, 1, 77}))
	require.NoError(t, b.Drop(ctx, []uint64{2, 1}), "again")
	for number, want := range map[uint64]error{0: ErrNotFound, 1: ErrNotFound, 2: ErrNotFound, 3: nil, 4: nil, 5: ErrNotFound} {
		_, err := b.Get(ctx, number)
		require.ErrorIs(t, err, want)
	}
	require.NoError(t, b.db.view(func(r records) error {
		for _, bucket := range revisionBuckets {
			require.Nil(t, r.bucket(bucket).Get(key(2)), bucket)
		}
		return nil
	}))
	appendAll(t, b, "e")
	r, err = b.Get(ctx, 5)
	require.NoError(t, err)
	require.Equal(t, "e", string(r.YAML))
}

func TestRepliesMarkRevisionAndProxy(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := open(t, dir)
	appendAll(t, b, "x", "y")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 1, Accepted: true, At: at}))
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Text: "no", At: at.Add(time.Second)}))
	require.NoError(t, b.Close())

	b = open(t, dir)
	proxies, err := b.Proxies(ctx)
	require.NoError(t, err)
	require.Equal(t, []Proxy{{
		Node: "e1", Acked: 1, AckedAt: at, Nacked: 2, NackedAt: at.Add(time.Second), NackText: "no",
		Refused: []uint64{2}, Unsettled: true,
	}}, proxies)
	require.NoError(t, b.Forget(ctx, Identity{Node: "e1"}))
	proxies, err = b.Proxies(ctx)
	require.NoError(t, err)
	require.Empty(t, proxies)
	list, err := b.History(ctx, "", 0)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, true, false}, []bool{list[0].Acked, list[0].Nacked, list[1].Acked, list[1].Nacked})
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

func TestConcurrentAppendsAndReplies(t *testing.T) {
	b, ctx := open(t, t.TempDir()), t.Context()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				r, err := add(ctx, b, draft("x"))
				if err == nil {
					err = b.SaveReply(ctx, Reply{Node: fmt.Sprint("e", i), Revision: r.Number, Accepted: true})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	list, err := b.History(ctx, "", 0)
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

func TestAppended(t *testing.T) {
	b := open(t, t.TempDir())
	before := b.Appended()
	appendAll(t, b, "x")
	<-before
	select {
	case <-b.Appended():
		t.Fatal("closed before the next one")
	default:
	}
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	require.NoError(t, b.db.Update(func(tx *bbolt.Tx) error {
		return records{tx}.bucket(metaBucket).Put(formatKey, []byte("99"))
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
		require.NoError(t, b.db.view(func(r records) error {
			require.LessOrEqual(t, r.tx.Size(), int64(3*(kept+1)*2*text), "after %d of them", n)
			return nil
		}))
	}
}

func TestAudit(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := open(t, dir)
	d := draft("a")
	d.Audit = Entry{Who: "token ci", From: "192.0.2.1", Action: "apply", Text: "new"}
	_, err := add(ctx, b, d)
	require.NoError(t, err)
	id, err := b.Record(ctx, Entry{Who: strings.Repeat("é", 1000), Action: "counters set"})
	require.NoError(t, err)
	require.Equal(t, uint64(2), id)
	_, err = b.Record(ctx, Entry{Action: "backup"})
	require.NoError(t, err)
	require.NoError(t, b.Settle(ctx, 2, "2 of 2 proxies"))
	require.NoError(t, b.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(auditBucket)).Put(key(3), []byte("else"))
	}))
	require.NoError(t, b.Close())

	b = open(t, dir)
	list, err := b.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Contains(t, list[0].Outcome, "audit entry 3 is not what was stored")
	require.Equal(t, "2 of 2 proxies", list[1].Outcome)
	require.Len(t, list[1].Who, maxName-1, "no half of a letter")
	require.WithinDuration(t, time.Now(), list[2].At, time.Minute)
	list[2].At = time.Time{}
	require.Equal(t, Entry{ID: 1, Who: "token ci", From: "192.0.2.1", Action: "apply", Policy: DefaultPolicy, Revision: 1, Text: "new"}, list[2])
	list, err = b.Audit(ctx, "", 1, 3)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, uint64(2), list[0].ID)
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
	list, err := b.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, list, maxEntries)
	require.Equal(t, uint64(maxEntries+3), list[0].ID)
	require.Equal(t, uint64(4), list[maxEntries-1].ID)
	require.NoError(t, b.Settle(ctx, 1, "late"), "an entry that is gone")
}

// A secret is made once for a store and no other store has it.
func TestSecret(t *testing.T) {
	dir := t.TempDir()
	var seen [][]byte
	for _, at := range []string{dir, dir, t.TempDir()} {
		b := open(t, at)
		secret, err := b.Secret(t.Context())
		require.NoError(t, err)
		require.Len(t, secret, 32)
		seen = append(seen, secret)
		require.NoError(t, b.Close())
	}
	require.Equal(t, seen[0], seen[1])
	require.NotEqual(t, seen[0], seen[2])
}
