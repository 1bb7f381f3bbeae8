package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// FileName is the database's name in the data directory.
const FileName = "sluice.db"

// Bolt is the embedded store: one file, and a small one beside it; see LastName.
type Bolt struct {
	store
	*boltFile
}

// boltFile is the backend of a Bolt.
type boltFile struct {
	db    *database
	last  *last
	batch func(func(*bbolt.Tx) error) error // the database's

	mu     sync.Mutex
	change chan struct{} // closed and replaced at every Append
	failed error         // of the last commit that failed, nil since a revision was stored
	probed time.Time     // when Healthy last tried whether that is still so
}

var _ Store = (*Bolt)(nil)

// Close closes the database and gives up its lock. Closing again does nothing.
func (b *boltFile) Close() error {
	_ = b.last.f.Close() // all of it is synced
	return b.db.Close()
}

// inPlace fails where the next Open would not find what is stored now: a removed
// file can be written to as long as it is open.
func (b *boltFile) inPlace() error {
	for _, f := range []*os.File{b.db.f, b.last.f} {
		opened, err := f.Stat()
		now, missing := os.Stat(f.Name())
		if err != nil || missing != nil || !os.SameFile(now, opened) {
			return fmt.Errorf("%s has been taken away or replaced, so nothing more is stored: "+
				"put it back and restart sluice serve", f.Name())
		}
	}
	return nil
}

func (b *boltFile) view(do func(records) error) error { return b.db.view(do) }

// commit makes a change durable, and then the record of it. Changes that come at once share a
// write: a fleet replies within the same second. If only the record fails, the change counts: all read it,
// and the next Open acknowledges it.
func (b *boltFile) commit(ctx context.Context, _ bool, change func(records) error) error {
	if err := errors.Join(ctx.Err(), b.inPlace()); err != nil {
		return err
	}
	var reached position
	var refused error // by change itself, so it says nothing about the disk
	err := b.batch(func(tx *bbolt.Tx) error {
		refused = change(boltRecords(tx))
		reached = positionOf(tx)
		return refused
	})
	if err != nil {
		if refused == nil {
			b.setFailed(err)
		}
		return err
	}
	if err := b.last.advance(reached); err != nil {
		b.setFailed(err)
		b.wake()
		return fmt.Errorf("the change is stored, but its record is not: %w", err)
	}
	return nil
}

const (
	// probeInterval keeps those who ask for health from wearing out a full disk.
	probeInterval = 10 * time.Second
	// probeBytes is the room of the largest policy, as YAML and as JSON.
	probeBytes = 2 << 20
)

// Healthy implements Store.
func (b *Bolt) Healthy(ctx context.Context) error {
	if err := b.inPlace(); err != nil {
		return err
	}
	b.mu.Lock()
	failed := b.failed
	probe := failed != nil && time.Since(b.probed) >= probeInterval
	if probe {
		b.probed = time.Now()
	}
	b.mu.Unlock()
	if probe {
		failed = b.probe(ctx)
	}
	if failed != nil {
		return fmt.Errorf("the last change could not be stored: %w", failed)
	}
	_, err := b.History(ctx, "", 1)
	return err
}

// probe stores as much as a revision and drops it again. Without it, a store would stay
// unhealthy after a full disk until the next revision. Something smaller might fit where a
// revision does not.
func (b *boltFile) probe(ctx context.Context) error {
	for _, size := range []int{probeBytes, 0} {
		err := b.commit(ctx, false, func(r records) error { return r.put(metaBucket, probeKey, make([]byte, size)) })
		if err != nil {
			return fmt.Errorf("try the disk: %w", err)
		}
	}
	b.setFailed(nil)
	return nil
}

func (b *boltFile) setFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
}

// Appended implements Store.
func (b *boltFile) Appended() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.change
}

// Leads implements Store: there is no other.
func (b *boltFile) Leads() bool { return true }

// Tell implements Store.
func (b *boltFile) Tell(context.Context, [][]byte) (int, error) { return 0, nil }

// Told implements Store.
func (b *boltFile) Told() (map[string][]byte, <-chan struct{}) { return nil, nil }

func (b *boltFile) appended() {
	b.setFailed(nil)
	b.wake()
}

// wake wakes those that wait for Appended.
func (b *boltFile) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.change)
	b.change = make(chan struct{})
}

// boltTx is a transaction of bbolt's.
type boltTx struct{ *bbolt.Tx }

func boltRecords(tx *bbolt.Tx) records { return records{boltTx{tx}} }

func (t boltTx) bucket(name string) *bbolt.Bucket { return t.Bucket([]byte(name)) }

func (t boltTx) value(bucket string, k []byte) []byte      { return t.bucket(bucket).Get(k) }
func (t boltTx) set(bucket string, k, value []byte) error  { return t.bucket(bucket).Put(k, value) }
func (t boltTx) remove(bucket string, k []byte) error      { return t.bucket(bucket).Delete(k) }
func (t boltTx) sequence(bucket string) uint64             { return t.bucket(bucket).Sequence() }
func (t boltTx) setSequence(bucket string, n uint64) error { return t.bucket(bucket).SetSequence(n) }

func (t boltTx) descend(bucket string, below []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, value []byte) bool) {
		c := t.bucket(bucket).Cursor()
		k, _ := c.Seek(below)
		step := c.Prev
		if below == nil || k == nil {
			step = c.Last
		}
		for k, value := step(); k != nil && yield(k, value); k, value = c.Prev() {
		}
	}
}
