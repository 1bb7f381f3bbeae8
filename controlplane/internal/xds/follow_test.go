package xds

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// kept asserts which revisions are left after a while.
func (f *fixture) kept(want string) {
	f.t.Helper()
	time.Sleep(2 * pruneInterval)
	require.Equal(f.t, want, f.numbers())
}

// keeping is run on a server that keeps two revisions.
func keeping(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	run(t, func(t *testing.T, f *fixture) {
		f.o.Keep = 2
		f.restart()
		test(t, f)
	})
}

// A revision is dropped soon after the last proxy has let go of it, and not only with the next one.
func TestOldRevisionsAreDropped(t *testing.T) {
	keeping(t, func(t *testing.T, f *fixture) {
		quick, stuck := f.proxy("quick"), f.proxy("stuck")
		f.apply("1")
		accept("1", quick, stuck)
		f.apply("2")
		accept("2", quick)
		pushed := stuck.expect("2") // and says nothing
		for _, domain := range []string{"3", "4", "5", "6"} {
			f.apply(domain)
			accept(domain, quick)
		}
		f.kept("[6 5 2 1]") // what it runs, and what it was sent
		stuck.nack(pushed)
		stuck.refuse("6", "1") // what it fell back on was there
		f.kept("[6 5 1]")
		f.apply("7")
		accept("7", quick, stuck)
		f.kept("[7 6]")
		f.apply("8")
		accept("8", quick)
		f.apply("9")
		accept("9", quick)
		f.apply("10")
		accept("10", quick)
		f.kept("[10 9 8 7]")
		stuck.hangUp()
		f.kept("[10 9 7]") // what it ran last

		f.o.Keep = 0
		f.restart()
		f.apply("11", "12")
		f.kept("[12 11 10 9 7]")
		f.o.Keep = 2
		f.restart()
		f.kept("[12 11 10 7]")
		stuck.version = "9-a-b" // which is gone
		stuck.connect()
		accept("12", stuck)
	})
}

// The one that a new proxy falls back on stays, however old, and an aborted one ages out.
func TestLastGoodRevisionIsKept(t *testing.T) {
	keeping(t, func(t *testing.T, f *fixture) {
		f.apply("good")
		e := f.proxy("e1")
		accept("good", e)
		for _, domain := range []string{"bad 1", "bad 2", "bad 3"} {
			f.apply(domain)
			e.refuse(domain, "good")
		}
		e.hangUp()
		require.NoError(t, f.store.Forget(t.Context(), store.Identity{Node: "e1"}))
		f.restart() // nobody remembers the proxy
		f.apply("worse")
		f.kept("[5 4 1]")
		fresh := f.proxy("fresh")
		fresh.refuse("worse", "good")
		aborted := f.canary("aborted", 10)
		accept("aborted", fresh)
		f.step(aborted, store.Aborted)
		accept("good", fresh)
		f.apply("better")
		accept("better", fresh)
		f.apply("best")
		accept("best", fresh)
		f.kept("[8 7]")
	})
}

// brittle is a store that fails as often as it is told to.
type brittle struct {
	store.Store
	reads, drops, replies atomic.Int64 // how often each is to fail
}

func (b *brittle) SaveReply(ctx context.Context, r store.Reply) error {
	if b.replies.Add(-1) >= 0 {
		return errors.New("the disk fails")
	}
	return b.Store.SaveReply(ctx, r)
}

func (b *brittle) History(ctx context.Context, policy string, limit int) ([]store.Summary, error) {
	if b.reads.Add(-1) >= 0 {
		return nil, errors.New("the disk fails")
	}
	return b.Store.History(ctx, policy, limit)
}

func (b *brittle) Drop(ctx context.Context, numbers []uint64) error {
	if b.drops.Add(-1) >= 0 {
		return errors.New("the disk fails")
	}
	return b.Store.Drop(ctx, numbers)
}

// What the store fails to do is done once it can, without another revision.
func TestStoreThatFailsForAWhile(t *testing.T) {
	keeping(t, func(t *testing.T, f *fixture) {
		f.halt()
		var err error
		f.store, err = store.Open(f.dir)
		require.NoError(t, err)
		b := &brittle{Store: f.store}
		f.serveOn(b)
		e := f.proxy("e1")
		b.reads.Store(2)
		f.apply("one")
		idle(e)
		time.Sleep(3 * retryInterval)
		accept("one", e)
		b.drops.Store(2)
		f.apply("two")
		accept("two", e)
		f.apply("three")
		accept("three", e)
		f.kept("[3 2 1]")
		time.Sleep(3 * retryInterval)
		f.kept("[3 2]")
		f.apply("bad")
		b.replies.Store(1)
		e.refuse("bad", "three")
		f.readAgain()
		require.NoError(t, f.Refresh(t.Context()))
		accept("three", f.proxy("later")) // the refusal counts though the store has not kept it
	})
}

// spoil changes a byte of a stored policy.
func (f *fixture) spoil(domain string) {
	f.t.Helper()
	file := filepath.Join(f.dir, store.FileName)
	content, err := os.ReadFile(file)
	require.NoError(f.t, err)
	good := []byte(`"domain":"` + domain + `"`)
	require.Contains(f.t, string(content), string(good))
	opened, err := os.OpenFile(file, os.O_WRONLY, 0) // it may be mapped: it is not to become shorter
	require.NoError(f.t, err)
	defer opened.Close()
	_, err = opened.WriteAt(bytes.ReplaceAll(content, good, []byte(`"domain":"`+domain[1:]+`?"`)), 0)
	require.NoError(f.t, err)
}

func TestDamagedRevisionIsNotPushed(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one", "two")
		e := f.proxy("e1")
		accept("two", e)
		f.apply("three")
		accept("three", e)
		f.halt()
		f.spoil("three")
		f.start()
		require.Equal(t, []uint64{3}, f.ledger.Damaged(""))
		e.connect() // it holds the one that is damaged
		fresh := f.proxy("fresh")
		accept("two", e, fresh)
		require.Zero(t, f.ledger.Behind())
		require.Equal(t, uint64(4), f.apply("four"))
		accept("four", e, fresh)
		f.o.Keep = 1
		f.restart()
		f.kept("[4]") // one that is damaged is dropped by age
	})
}

// The file may be damaged while serve runs, too. What is aborted is nobody's damage any more.
func TestDamageFoundAtThePush(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("one")
		two := f.canary("two", 100)
		f.spoil("two") // bbolt has the file mapped
		accept("one", f.proxy("e1"))
		require.Equal(t, []uint64{two}, f.ledger.Damaged(""))
		f.spoil("one")
		accept("one", f.proxy("fresh")) // what was read while it was whole is kept
		require.Equal(t, []uint64{two}, f.ledger.Damaged(""))
		f.step(two, store.Aborted)
		require.Empty(t, f.ledger.Damaged(""))
	})
}
