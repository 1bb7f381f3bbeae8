package xds

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// brittle is a store that fails as often as it is told to.
type brittle struct {
	store.Store
	reads, drops atomic.Int64 // how often each is to fail
}

var errBrittle = errors.New("the disk fails")

func (b *brittle) History(ctx context.Context, policy string, limit int) ([]store.Summary, error) {
	if b.reads.Add(-1) >= 0 {
		return nil, errBrittle
	}
	return b.Store.History(ctx, policy, limit)
}

func (b *brittle) Drop(ctx context.Context, numbers []uint64) error {
	if b.drops.Add(-1) >= 0 {
		return errBrittle
	}
	return b.Store.Drop(ctx, numbers)
}

// follower is a server on a store, in time that stands still while it works.
type follower struct {
	*Server
	t     *testing.T
	store *brittle
}

func follow(t *testing.T, test func(f follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		policies, err := store.Open(t.TempDir())
		require.NoError(t, err)
		b := &brittle{Store: policies}
		s, err := New(t.Context(), Options{Store: b, Keep: 2, Wasm: "/f.wasm"})
		require.NoError(t, err)
		defer func() {
			s.Stop()
			synctest.Wait()
			require.NoError(t, policies.Close())
		}()
		test(follower{s, t, b})
	})
}

// append adds so many revisions, one after the other.
func (f follower) append(n int) {
	f.t.Helper()
	for range n {
		_, err := add(f.t.Context(), f.store, store.Draft{YAML: []byte("{}"), JSON: []byte("{}")})
		require.NoError(f.t, err)
		synctest.Wait()
	}
}

// stored lists the revisions in the store, newest first.
func (f follower) stored() string {
	f.t.Helper()
	history, err := f.store.Store.History(f.t.Context(), "", 0)
	require.NoError(f.t, err)
	list := make([]uint64, 0, len(history))
	for _, s := range history {
		list = append(list, s.Number)
	}
	return fmt.Sprint(list)
}

func (f follower) session() *session {
	s, _, _ := f.ledger.open(1, store.Identity{Node: "n"}, node{id: "n"}, "here")
	f.ledger.subscribe(s, 0, 0, true)
	return s
}

func (f follower) accept(s *session, number uint64) {
	f.t.Helper()
	require.NoError(f.t, f.ledger.replied(f.t.Context(), s, store.Reply{Node: "n", Revision: number, Accepted: true}))
}

// A revision is dropped soon after the last proxy has let go of it, and not only
// with the next revision.
func TestRevisionThatComesOutOfUse(t *testing.T) {
	for name, release := range map[string]func(f follower, s *session){
		"accepted another": func(f follower, s *session) { f.ledger.sent(s, 3); f.accept(s, 3) },
		"hung up":          func(f follower, s *session) { f.ledger.close(s) },
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, func(f follower) {
				f.append(1)
				s := f.session()
				f.ledger.sent(s, 1)
				f.append(2)
				require.Equal(t, "[3 2 1]", f.stored(), "the proxy may run what it was sent")
				time.Sleep(2 * pruneInterval)
				require.Equal(t, "[3 2 1]", f.stored())
				if name == "accepted another" {
					f.accept(s, 1)
				}
				release(f, s)
				time.Sleep(2 * pruneInterval)
				synctest.Wait()
				require.Equal(t, "[3 2]", f.stored())
			})
		})
	}
}

// What the store fails to do is done once it can, without another revision.
func TestStoreThatFailsForAWhile(t *testing.T) {
	t.Run("reading", func(t *testing.T) {
		follow(t, func(f follower) {
			s := f.session()
			f.store.reads.Store(2)
			f.append(1)
			_, ok := f.ledger.wanted(s)
			require.False(t, ok)
			time.Sleep(3 * retryInterval)
			synctest.Wait()
			number, ok := f.ledger.wanted(s)
			require.True(t, ok)
			require.Equal(t, uint64(1), number)
		})
	})
	t.Run("dropping", func(t *testing.T) {
		follow(t, func(f follower) {
			f.store.drops.Store(2)
			f.append(3)
			require.Equal(t, "[3 2 1]", f.stored())
			time.Sleep(3 * retryInterval)
			synctest.Wait()
			require.Equal(t, "[3 2]", f.stored())
		})
	})
}
