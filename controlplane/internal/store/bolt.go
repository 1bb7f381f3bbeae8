package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// FileName is the database's name in the data directory.
const FileName = "sluice.db"

// Bolt is the embedded store: one file, and a small one beside it; see LastName.
type Bolt struct {
	db   *database
	last *last

	mu       sync.Mutex
	appended chan struct{} // closed and replaced at every Append
	failed   error         // of the last commit that failed, nil since a revision was stored
	probed   time.Time     // when Healthy last tried whether that is still so
}

var _ Store = (*Bolt)(nil)

// Close closes the database and gives up its lock. Closing again does nothing.
func (b *Bolt) Close() error {
	_ = b.last.f.Close() // all of it is synced
	return b.db.Close()
}

// inPlace fails where the next Open would not find what is stored now: a removed
// file can be written to as long as it is open.
func (b *Bolt) inPlace() error {
	for _, f := range []*os.File{b.db.f, b.last.f} {
		opened, err := f.Stat()
		now, missing := os.Stat(f.Name())
		if err != nil || missing != nil || !os.SameFile(now, opened) {
			return fmt.Errorf("%s has been taken away or replaced, so nothing more is stored: "+
				"put it back and start sluice serve anew", f.Name())
		}
	}
	return nil
}

func (b *Bolt) view(what string, do func(records) error) error {
	if err := b.db.view(do); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// commit makes a change durable, and then the record of it. run is the database's
// Update or Batch.
func (b *Bolt) commit(ctx context.Context, what string, run func(func(*bbolt.Tx) error) error, change func(records) error) error {
	if err := errors.Join(ctx.Err(), b.inPlace()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var reached position
	var refused error // by change itself, so it says nothing about the disk
	err := run(func(tx *bbolt.Tx) error {
		refused = change(records{tx})
		reached = records{tx}.position()
		return refused
	})
	if refused == nil {
		if err == nil {
			err = b.last.advance(reached)
		}
		if err != nil {
			b.setFailed(err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
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
// unhealthy after a full disk until somebody's next revision. What is smaller may find
// room where that does not.
func (b *Bolt) probe(ctx context.Context) error {
	for _, size := range []int{probeBytes, 0} {
		err := b.commit(ctx, "try the disk", b.db.Update, func(r records) error {
			return r.put(metaBucket, probeKey, make([]byte, size))
		})
		if err != nil {
			return err
		}
	}
	b.setFailed(nil)
	return nil
}

func (b *Bolt) setFailed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
}

// Appended implements Store.
func (b *Bolt) Appended() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.appended
}

func (b *Bolt) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.appended)
	b.appended = make(chan struct{})
}
