package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
)

// keeper is a store with what it keeps its records by.
type keeper interface {
	Store
	backend
}

// opener opens one store, again and again.
type opener func() keeper

// cases are what every store does, whatever it keeps its records in.
var cases = map[string]func(t *testing.T, open opener){
	"revisions":                   revisions,
	"policies have histories":     histories,
	"a change is whole or none":   wholeOrNone,
	"a change of many policies":   manyPolicies,
	"large texts":                 largeTexts,
	"rollouts":                    rollouts,
	"replies mark both":           repliesMark,
	"concurrent changes":          concurrentChanges,
	"audit":                       audit,
	"the audit log is bounded":    auditIsBounded,
	"a secret is made once":       secretIsMadeOnce,
	"a damaged record is told":    damagedRecord,
	"a backup is another's store": backupOpens,
}

// conform runs the cases, each on a store of its own.
func conform(t *testing.T, fresh func(t *testing.T) opener) {
	for name, test := range cases {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

func TestBoltConforms(t *testing.T) {
	conform(t, func(t *testing.T) opener {
		dir := t.TempDir()
		return func() keeper { return open(t, dir) }
	})
}

func draft(text string) Draft {
	return Draft{File: "policy.yaml", YAML: []byte(text), JSON: []byte(`{"of":"` + text + `"}`)}
}

func of(policy, text string) Draft {
	d := draft(text)
	d.Policy = policy
	if policy != DefaultPolicy {
		d.Proxies = &selector.Selector{Node: policy + "-*"}
	}
	d.Audit = Entry{Action: "apply"}
	return d
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

func appendAll(t *testing.T, s Store, texts ...string) {
	t.Helper()
	for _, text := range texts {
		_, err := add(t.Context(), s, draft(text))
		require.NoError(t, err)
	}
}

func numbersOf(t *testing.T, s Store, policy string, limit int) (list []uint64) {
	t.Helper()
	history, err := s.History(t.Context(), policy, limit)
	require.NoError(t, err)
	for _, s := range history {
		list = append(list, s.Number)
	}
	return list
}

func revisions(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	require.Empty(t, numbersOf(t, s, "", 0))
	appendAll(t, s, "a", "b", "c")
	d := draft("b")
	d.Wasm, d.RollbackOf = "/lib/b.wasm", 2
	r, err := add(ctx, s, d)
	require.NoError(t, err)
	require.Equal(t, uint64(4), r.Number)
	require.NoError(t, s.Close())

	s = open()
	kept, err := s.Get(ctx, 4)
	require.NoError(t, err)
	require.Equal(t, r, kept)
	require.WithinDuration(t, time.Now(), r.Created, time.Minute)
	r.Created = time.Time{}
	require.Equal(t, Revision{YAML: []byte("b"), JSON: []byte(`{"of":"b"}`), Summary: Summary{
		Number: 4, Policy: DefaultPolicy, File: "policy.yaml", Wasm: "/lib/b.wasm", RollbackOf: 2, Bytes: 1,
		SHA256: "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", // printf b | sha256sum
	}}, r)
	require.Equal(t, []uint64{4, 3}, numbersOf(t, s, "", 2))

	require.NoError(t, s.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Accepted: true}))
	require.ErrorContains(t, s.Drop(ctx, []uint64{1, 4}), "revision 4 is the newest")
	require.NoError(t, s.Healthy(ctx), "what is refused says nothing about the disk")
	_, err = s.Get(ctx, 1)
	require.NoError(t, err, "all or none")
	require.NoError(t, s.Drop(ctx, []uint64{2, 1, 77}))
	require.NoError(t, s.Drop(ctx, []uint64{2, 1}), "again")
	for number, want := range []error{ErrNotFound, ErrNotFound, ErrNotFound, nil, nil, ErrNotFound} {
		_, err := s.Get(ctx, uint64(number))
		require.ErrorIs(t, err, want)
	}
	require.NoError(t, s.view(func(r records) error {
		for _, bucket := range revisionBuckets {
			require.Nil(t, r.value(bucket, key(2)), bucket)
		}
		return nil
	}))
	appendAll(t, s, "e")
	r, err = s.Get(ctx, 5)
	require.NoError(t, err)
	require.Equal(t, "e", string(r.YAML))
}

func histories(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	for _, policy := range []string{"default", "edge", "default", "edge", "core"} {
		_, err := add(ctx, s, of(policy, policy))
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	s = open()
	require.Equal(t, []uint64{3, 1}, numbersOf(t, s, "default", 0))
	require.Equal(t, []uint64{4}, numbersOf(t, s, "edge", 1))
	require.Equal(t, []uint64{5, 4, 3, 2, 1}, numbersOf(t, s, "", 0))
	require.Empty(t, numbersOf(t, s, "other", 0))
	edge, err := s.Get(ctx, 4)
	require.NoError(t, err)
	require.Equal(t, "edge", edge.Policy)
	require.Equal(t, &selector.Selector{Node: "edge-*"}, edge.Proxies)
	entries, err := s.Audit(ctx, "edge", 0, 0)
	require.NoError(t, err)
	require.Equal(t, []uint64{4, 2}, []uint64{entries[0].Revision, entries[1].Revision})

	for _, number := range []uint64{3, 4, 5} {
		require.ErrorContains(t, s.Drop(ctx, []uint64{number}), "is the newest", "each policy keeps its newest")
	}
	require.NoError(t, s.Drop(ctx, []uint64{1, 2}))
	require.Equal(t, []uint64{5, 4, 3}, numbersOf(t, s, "", 0))
}

// A change of several policies is one, and only if it is based on the latest one.
func wholeOrNone(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	list, err := s.Append(ctx, Change{Drafts: []Draft{of("edge", "a"), of("core", "b")}})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, []uint64{list[0].Number, list[1].Number})
	_, err = s.Append(ctx, Change{Last: 1, Drafts: []Draft{of("edge", "c")}})
	require.ErrorIs(t, err, ErrConflict)
	require.NoError(t, s.Healthy(ctx), "what is refused says nothing about the disk")
	require.Equal(t, []uint64{2, 1}, numbersOf(t, s, "", 0))
	last, err := s.Last(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(2), last)

	list, err = s.Append(ctx, Change{Last: 2, Above: 9, Drafts: []Draft{of("edge", "c")}})
	require.NoError(t, err)
	require.Equal(t, uint64(10), list[0].Number)
}

// No store's transaction is too small for what one change may have, nor for what is
// dropped at once.
func manyPolicies(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	var change Change
	var older []uint64
	for i := range 500 {
		d := of(fmt.Sprint("policy-", i), "text")
		d.Audit.Text = strings.Repeat("x", 1000)
		change.Drafts = append(change.Drafts, d)
		older = append(older, uint64(i+1))
	}
	for i := range uint64(2) {
		change.Last = i * 500
		_, err := s.Append(ctx, change)
		require.NoError(t, err)
	}
	require.NoError(t, s.Drop(ctx, older))
	require.Len(t, numbersOf(t, s, "", 0), 500)
	require.NoError(t, s.Close())
	s = open()
	require.Len(t, numbersOf(t, s, "", 0), 500)
	r, err := s.Get(ctx, 501)
	require.NoError(t, err)
	require.Equal(t, "policy-0", r.Policy)
}

// What cannot be compressed is stored all the same, up to the largest policy.
func largeTexts(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	text := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(text)
	r, err := add(ctx, s, Draft{YAML: text, JSON: text[:len(text)-1]})
	require.NoError(t, err)
	for range 2 {
		kept, err := s.Get(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, r, kept)
		require.NoError(t, s.Close())
		s = open()
	}
}

func repliesMark(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	appendAll(t, s, "x", "y")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, s.SaveReply(ctx, Reply{Node: "e1", Revision: 1, Accepted: true, At: at}))
	require.NoError(t, s.SaveReply(ctx, Reply{Node: "e1", Revision: 2, Text: "no", At: at.Add(time.Second)}))
	require.NoError(t, s.SaveReply(ctx, Reply{Node: "e1", SAN: "e1/\xff.example", Revision: 1, Accepted: true, At: at}))
	require.NoError(t, s.Close())

	s = open()
	proxies, err := s.Proxies(ctx)
	require.NoError(t, err)
	require.Len(t, proxies, 2)
	require.Contains(t, proxies, Proxy{
		Node: "e1", Acked: 1, AckedAt: at, Nacked: 2, NackedAt: at.Add(time.Second), NackText: "no",
		Refused: []uint64{2}, Unsettled: true,
	})
	for _, id := range []Identity{{Node: "e1"}, {Node: "e1", SAN: "e1/\xff.example"}} {
		require.NoError(t, s.Forget(ctx, id))
	}
	proxies, err = s.Proxies(ctx)
	require.NoError(t, err)
	require.Empty(t, proxies)
	list, err := s.History(ctx, "", 0)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{list[0].Acked, list[0].Nacked})
	require.Equal(t, []bool{true, false}, []bool{list[1].Acked, list[1].Nacked})
}

// A fleet replies at once, while changes are made.
func concurrentChanges(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	appendAll(t, s, "first")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				r, err := add(ctx, s, draft("x"))
				if err == nil {
					err = s.SaveReply(ctx, Reply{Node: fmt.Sprint("e", i), Revision: r.Number, Accepted: true})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 200 {
		wg.Go(func() {
			if err := s.SaveReply(ctx, Reply{Node: fmt.Sprint(i), Revision: 1, Accepted: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := s.History(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, list, 41)
	for i, s := range list {
		require.Equal(t, uint64(41-i), s.Number)
		require.True(t, s.Acked)
	}
	proxies, err := s.Proxies(ctx)
	require.NoError(t, err)
	require.Len(t, proxies, 208)
}

func audit(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	d := draft("a")
	d.Audit = Entry{Who: "token ci", From: "192.0.2.1", Action: "apply", Text: "new"}
	_, err := add(ctx, s, d)
	require.NoError(t, err)
	id, err := s.Record(ctx, Entry{Who: strings.Repeat("é", 1000), Action: "counters set"})
	require.NoError(t, err)
	require.Equal(t, uint64(2), id)
	_, err = s.Record(ctx, Entry{Action: "backup"})
	require.NoError(t, err)
	require.NoError(t, s.SetOutcome(ctx, 2, "2 of 2 proxies"))
	require.NoError(t, s.commit(ctx, false, func(r records) error { return r.set(auditBucket, key(3), []byte("else")) }))
	require.NoError(t, s.Close())

	s = open()
	list, err := s.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Contains(t, list[0].Outcome, "audit entry 3 is not what was stored")
	require.Equal(t, "2 of 2 proxies", list[1].Outcome)
	require.Len(t, list[1].Who, maxName-1, "no half of a letter")
	require.WithinDuration(t, time.Now(), list[2].At, time.Minute)
	list[2].At = time.Time{}
	require.Equal(t, Entry{
		ID: 1, Who: "token ci", From: "192.0.2.1", Action: "apply", Policy: DefaultPolicy, Revision: 1, Text: "new",
	}, list[2])
	list, err = s.Audit(ctx, "", 1, 3)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, uint64(2), list[0].ID)
}

func auditIsBounded(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	const steps = 10
	for range steps {
		require.NoError(t, s.commit(ctx, false, func(r records) error {
			for range maxEntries / steps {
				if err := r.appendEntry(&Entry{Action: "apply"}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for range 3 {
		_, err := s.Record(ctx, Entry{Action: "apply"})
		require.NoError(t, err)
	}
	list, err := s.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, list, maxEntries)
	require.Equal(t, uint64(maxEntries+3), list[0].ID)
	require.Equal(t, uint64(4), list[maxEntries-1].ID)
	require.NoError(t, s.SetOutcome(ctx, 1, "late"), "an entry that is gone")
}

// No other store has the same secret.
func secretIsMadeOnce(t *testing.T, reopen opener) {
	var seen [][]byte
	for _, s := range []keeper{reopen(), open(t, t.TempDir()), nil} {
		if s == nil {
			s = reopen()
		}
		secret, err := s.Secret(t.Context())
		require.NoError(t, err)
		require.Len(t, secret, 32)
		seen = append(seen, secret)
		require.NoError(t, s.Close())
	}
	require.Equal(t, seen[0], seen[2])
	require.NotEqual(t, seen[0], seen[1])
}
