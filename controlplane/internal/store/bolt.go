package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// FileName is the database's name in the data directory.
const FileName = "sluice.db"

// format is the layout below; a store written in another one is refused.
//
//	meta       "format" → "1", "audit_secret" → 32 bytes
//	revisions  number, 8 bytes big-endian → Summary as JSON, without marks
//	yaml       number → the text as given
//	json       number → what proxies get
//	acked      number → "", some proxy accepted it
//	nacked     number → "", some proxy refused it
//	proxies    node id → Proxy as JSON
//	audit      id, 8 bytes big-endian → Entry as JSON
const format = "2"

var (
	metaBucket      = []byte("meta")
	revisionsBucket = []byte("revisions")
	yamlBucket      = []byte("yaml")
	jsonBucket      = []byte("json")
	ackedBucket     = []byte("acked")
	nackedBucket    = []byte("nacked")
	proxiesBucket   = []byte("proxies")
	auditBucket     = []byte("audit")

	buckets = [][]byte{metaBucket, revisionsBucket, yamlBucket, jsonBucket, ackedBucket, nackedBucket, proxiesBucket, auditBucket}

	// revisionBuckets have a revision's number as their key.
	revisionBuckets = [][]byte{revisionsBucket, yamlBucket, jsonBucket, ackedBucket, nackedBucket}

	formatKey = []byte("format")
)

// lockTimeout is how long Open tries to lock the database: long enough for a
// predecessor that is just closing it, short enough to be an answer.
const lockTimeout = 500 * time.Millisecond

// Bolt is the embedded store, one file.
type Bolt struct {
	db *bbolt.DB

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

var _ Store = (*Bolt)(nil)

// Open opens the store in a directory, which it creates if need be. It
// returns ErrHeld when another process has it open, and ErrDamaged when the
// file there is not a whole database.
func Open(dir string) (*Bolt, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	file := filepath.Join(dir, FileName)
	db, err := openFile(file)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: %w", dir, ErrHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	// bbolt syncs the file; a new file's name is safe once its directory is.
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("sync data directory: %w", err), db.Close())
	}
	return &Bolt{db: db, watchers: map[chan struct{}]struct{}{}}, nil
}

// openFile opens the database and finds out whether it is whole. bbolt panics
// at what it cannot make sense of, and reading memory mapped beyond the end of
// a truncated file is a fault; both become errors here, where the files of
// interrupted copies turn up.
func openFile(file string) (db *bbolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch found := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("%w: it is cut short or overwritten", ErrDamaged)
		default:
			err = fmt.Errorf("%w: %v", ErrDamaged, found)
		}
		if err != nil && db != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	db, err = bbolt.Open(file, 0o600, &bbolt.Options{Timeout: lockTimeout})
	var system syscall.Errno
	switch {
	case errors.Is(err, bolterrors.ErrTimeout) || errors.As(err, &system):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err = prepare(db); err == nil {
		err = db.View(walk)
	}
	return db, err
}

// walk visits every page that tells what there is, and sees that the file is
// as long as it says.
func walk(tx *bbolt.Tx) error {
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%w: %d bytes are left of at least %d", ErrDamaged, info.Size(), tx.Size())
	}
	for _, name := range buckets {
		bucket := tx.Bucket(name)
		if bucket == nil {
			return fmt.Errorf("%w: it has no %s", ErrDamaged, name)
		}
		if err := bucket.ForEach(func(_, _ []byte) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

func prepare(db *bbolt.DB) error {
	return db.Update(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(metaBucket); meta != nil {
			if found := meta.Get(formatKey); string(found) != format {
				return fmt.Errorf("store format %q is not %s: it was written by another release", found, format)
			}
			return nil
		}
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(formatKey, []byte(format))
	})
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close closes the database and gives up its lock.
func (b *Bolt) Close() error { return b.db.Close() }

// Append implements Store.
func (b *Bolt) Append(ctx context.Context, d Draft) (Revision, error) {
	if err := ctx.Err(); err != nil {
		return Revision{}, err
	}
	var r Revision
	err := b.db.Update(func(tx *bbolt.Tx) error {
		number := uint64(1)
		if last, _ := tx.Bucket(revisionsBucket).Cursor().Last(); last != nil {
			number = binary.BigEndian.Uint64(last) + 1
		}
		r = Revision{
			Summary: d.summary(number, time.Now()),
			YAML:    bytes.Clone(d.YAML),
			JSON:    bytes.Clone(d.JSON),
		}
		text, err := json.Marshal(r.Summary)
		if err != nil {
			return err
		}
		return errors.Join(
			tx.Bucket(revisionsBucket).Put(key(number), text),
			tx.Bucket(yamlBucket).Put(key(number), r.YAML),
			tx.Bucket(jsonBucket).Put(key(number), r.JSON),
			appendEntry(tx, d.Audit, number),
		)
	})
	if err != nil {
		return Revision{}, fmt.Errorf("append revision: %w", err)
	}
	b.notify()
	return r, nil
}

// Get implements Store.
func (b *Bolt) Get(_ context.Context, number uint64) (Revision, error) {
	var r Revision
	err := b.db.View(func(tx *bbolt.Tx) (err error) {
		r, err = read(tx, key(number))
		return err
	})
	if err != nil {
		return Revision{}, fmt.Errorf("get revision %d: %w", number, err)
	}
	return r, nil
}

// Last implements Store.
func (b *Bolt) Last(context.Context) (Revision, error) {
	var r Revision
	err := b.db.View(func(tx *bbolt.Tx) (err error) {
		last, _ := tx.Bucket(revisionsBucket).Cursor().Last()
		if last == nil {
			return ErrNotFound
		}
		r, err = read(tx, last)
		return err
	})
	if err != nil {
		return Revision{}, fmt.Errorf("get last revision: %w", err)
	}
	return r, nil
}

// History implements Store.
func (b *Bolt) History(_ context.Context, limit int) ([]Summary, error) {
	list := []Summary{}
	err := b.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(revisionsBucket).Cursor()
		for k, v := c.Last(); k != nil && (limit <= 0 || len(list) < limit); k, v = c.Prev() {
			s, err := summarize(tx, k, v)
			if err != nil {
				return err
			}
			list = append(list, s)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list revisions: %w", err)
	}
	return list, nil
}

// Drop implements Store. The file does not shrink: what comes next uses the
// pages again.
func (b *Bolt) Drop(ctx context.Context, numbers []uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := b.db.Update(func(tx *bbolt.Tx) error {
		newest, _ := tx.Bucket(revisionsBucket).Cursor().Last()
		for _, number := range numbers {
			k := key(number)
			if bytes.Equal(k, newest) {
				return fmt.Errorf("revision %d is the newest", number)
			}
			for _, name := range revisionBuckets {
				if err := tx.Bucket(name).Delete(k); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("drop revisions: %w", err)
	}
	return nil
}

// Book implements Store. Answers that come at once share a write: a fleet
// answers within the same second.
func (b *Bolt) Book(ctx context.Context, a Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := b.db.Batch(func(tx *bbolt.Tx) error {
		marks := tx.Bucket(nackedBucket)
		if a.Accepted {
			marks = tx.Bucket(ackedBucket)
		}
		proxies := tx.Bucket(proxiesBucket)
		known := Proxy{}
		if text := proxies.Get([]byte(a.Node)); text != nil {
			if err := json.Unmarshal(text, &known); err != nil {
				return fmt.Errorf("read proxy: %w", err)
			}
		}
		text, err := json.Marshal(known.After(a))
		if err != nil {
			return err
		}
		return errors.Join(marks.Put(key(a.Revision), nil), proxies.Put([]byte(a.Node), text))
	})
	if err != nil {
		return fmt.Errorf("book answer to revision %d: %w", a.Revision, err)
	}
	return nil
}

// Proxies implements Store.
func (b *Bolt) Proxies(context.Context) ([]Proxy, error) {
	list := []Proxy{}
	err := b.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(proxiesBucket).ForEach(func(_, v []byte) error {
			var p Proxy
			if err := json.Unmarshal(v, &p); err != nil {
				return fmt.Errorf("read proxy: %w", err)
			}
			list = append(list, p)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list proxies: %w", err)
	}
	return list, nil
}

// Forget implements Store.
func (b *Bolt) Forget(_ context.Context, node string) error {
	err := b.db.Batch(func(tx *bbolt.Tx) error { return tx.Bucket(proxiesBucket).Delete([]byte(node)) })
	if err != nil {
		return fmt.Errorf("forget proxy: %w", err)
	}
	return nil
}

// Watch implements Store.
func (b *Bolt) Watch(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	b.watchers[c] = struct{}{}
	b.mu.Unlock()
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, c)
	})
	return c
}

func (b *Bolt) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.watchers {
		select {
		case c <- struct{}{}:
		default: // it has one waiting already
		}
	}
}

func read(tx *bbolt.Tx, k []byte) (Revision, error) {
	text := tx.Bucket(revisionsBucket).Get(k)
	if text == nil {
		return Revision{}, ErrNotFound
	}
	s, err := summarize(tx, k, text)
	if err != nil {
		return Revision{}, err
	}
	// bbolt's bytes are only valid within the transaction.
	return Revision{
		Summary: s,
		YAML:    bytes.Clone(tx.Bucket(yamlBucket).Get(k)),
		JSON:    bytes.Clone(tx.Bucket(jsonBucket).Get(k)),
	}, nil
}

func summarize(tx *bbolt.Tx, k, text []byte) (Summary, error) {
	var s Summary
	if err := json.Unmarshal(text, &s); err != nil {
		return Summary{}, fmt.Errorf("read revision: %w", err)
	}
	s.Acked = tx.Bucket(ackedBucket).Get(k) != nil
	s.Nacked = tx.Bucket(nackedBucket).Get(k) != nil
	return s, nil
}

func key(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }
