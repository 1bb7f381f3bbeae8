package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// FileName is the database's name in the data directory.
const FileName = "sluice.db"

// format is the number of the layout below. A store in another format is refused.
// All values but this one are sealed; see seal.
//
//	meta       "format" → "3", "audit_secret" → 32 bytes; "probe" → zeros, while Healthy tries to write
//	revisions  number, 8 bytes big-endian → Summary as JSON, without marks
//	yaml       number → the text as given
//	json       number → what proxies get
//	acked      number → "", some proxy accepted it
//	nacked     number → "", some proxy refused it
//	proxies    Identity.key → Proxy as JSON
//	audit      id, 8 bytes big-endian → Entry as JSON
const format = "3"

var (
	metaBucket      = []byte("meta")
	revisionsBucket = []byte("revisions")
	yamlBucket      = []byte("yaml")
	jsonBucket      = []byte("json")
	ackedBucket     = []byte("acked")
	nackedBucket    = []byte("nacked")
	proxiesBucket   = []byte("proxies")
	auditBucket     = []byte("audit")

	// revisionBuckets have a revision's number as their key.
	revisionBuckets = [][]byte{revisionsBucket, yamlBucket, jsonBucket, ackedBucket, nackedBucket}

	buckets = append([][]byte{metaBucket, proxiesBucket, auditBucket}, revisionBuckets...)

	formatKey = []byte("format")
	probeKey  = []byte("probe")
)

// Bolt is the embedded store: one file, and a small one beside it; see LastName.
type Bolt struct {
	db    *bbolt.DB
	last  *last
	files map[string]os.FileInfo // both when they were opened, by name

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
	failed   error     // of the last commit, nil if that was durable
	probed   time.Time // when Healthy last tried whether that is still so
}

var _ Store = (*Bolt)(nil)

// Close closes the database and gives up its lock. Closing again does nothing.
func (b *Bolt) Close() error {
	err := b.last.f.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(b.db.Close(), err)
}

// commit makes a change durable, and then the record of it. run is the database's
// Update or Batch.
func (b *Bolt) commit(run func(func(*bbolt.Tx) error) error, change func(*bbolt.Tx) error) error {
	if err := b.inPlace(); err != nil {
		return err
	}
	var reached position
	var refused error // by change itself, so it says nothing about the disk
	err := run(func(tx *bbolt.Tx) error {
		if refused = change(tx); refused != nil {
			return refused
		}
		reached = positionOf(tx)
		return nil
	})
	if refused != nil {
		return err
	}
	if err == nil {
		err = b.last.advance(reached)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
	return err
}

// Healthy implements Store.
func (b *Bolt) Healthy(ctx context.Context) error {
	if err := b.inPlace(); err != nil {
		return err
	}
	b.mu.Lock()
	failed, now := b.failed, time.Now()
	probe := failed != nil && now.Sub(b.probed) >= probeInterval
	if probe {
		b.probed = now
	}
	b.mu.Unlock()
	if probe {
		failed = b.probe()
	}
	if failed != nil {
		return fmt.Errorf("the last change could not be stored: %w", failed)
	}
	_, err := b.History(ctx, 1)
	return err
}

const (
	// probeInterval keeps those who ask for health from wearing out a full disk.
	probeInterval = 10 * time.Second
	// probeBytes is the room of the largest policy, as YAML and as JSON.
	probeBytes = 2 << 20
)

// probe stores as much as a revision and drops it again. Without it, a store
// would stay unhealthy after a full disk until somebody's next change.
func (b *Bolt) probe() error {
	err := b.commit(b.db.Update, func(tx *bbolt.Tx) error {
		return put(tx, metaBucket, probeKey, make([]byte, probeBytes))
	})
	if err != nil {
		return err
	}
	return b.commit(b.db.Update, func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Delete(probeKey) })
}

// next gives the next number of a bucket. bbolt's sequence is stored with the
// bucket, and Restore may have set it above the last key.
func next(bucket *bbolt.Bucket) (number uint64, k []byte, err error) {
	number, err = bucket.NextSequence()
	return number, key(number), err
}

// Append implements Store.
func (b *Bolt) Append(ctx context.Context, d Draft) (Revision, error) {
	if err := ctx.Err(); err != nil {
		return Revision{}, err
	}
	var r Revision
	err := b.commit(b.db.Update, func(tx *bbolt.Tx) error {
		number, k, err := next(tx.Bucket(revisionsBucket))
		if err != nil {
			return err
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
		entry := d.Audit
		entry.Revision = number
		return errors.Join(
			put(tx, revisionsBucket, k, text),
			put(tx, yamlBucket, k, r.YAML),
			put(tx, jsonBucket, k, r.JSON),
			appendEntry(tx, &entry),
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
	err := b.view(func(tx *bbolt.Tx) (err error) {
		r, err = read(tx, key(number))
		return err
	})
	if err != nil {
		return Revision{}, fmt.Errorf("get revision %d: %w", number, err)
	}
	return r, nil
}

// History implements Store.
func (b *Bolt) History(_ context.Context, limit int) ([]Summary, error) {
	list := []Summary{}
	err := b.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(revisionsBucket).Cursor()
		for k, v := c.Last(); k != nil && (limit <= 0 || len(list) < limit); k, v = c.Prev() {
			list = append(list, summarize(tx, k, v))
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
	err := b.commit(b.db.Update, func(tx *bbolt.Tx) error {
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

// SaveReply implements Store. Replies that come at once share a write: a fleet
// replies within the same second.
func (b *Bolt) SaveReply(ctx context.Context, r Reply) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := b.commit(b.db.Batch, func(tx *bbolt.Tx) error {
		marks := nackedBucket
		if r.Accepted {
			marks = ackedBucket
		}
		known := Proxy{} // a damaged one counts as unknown
		if text, _ := get(tx, proxiesBucket, r.ID().key()); text != nil {
			if err := json.Unmarshal(text, &known); err != nil {
				return fmt.Errorf("read proxy: %w", err)
			}
		}
		text, err := json.Marshal(known.After(r))
		if err != nil {
			return err
		}
		return errors.Join(put(tx, marks, key(r.Revision), nil), put(tx, proxiesBucket, r.ID().key(), text))
	})
	if err != nil {
		return fmt.Errorf("save reply to revision %d: %w", r.Revision, err)
	}
	return nil
}

// Proxies implements Store.
func (b *Bolt) Proxies(context.Context) ([]Proxy, error) {
	list := []Proxy{}
	err := b.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(proxiesBucket).ForEach(func(k, v []byte) error {
			text, err := unseal(proxiesBucket, k, v)
			if err != nil {
				return nil //nolint:nilerr // it counts as unknown
			}
			var p Proxy
			if err := json.Unmarshal(text, &p); err != nil {
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
func (b *Bolt) Forget(_ context.Context, id Identity) error {
	err := b.commit(b.db.Batch, func(tx *bbolt.Tx) error { return tx.Bucket(proxiesBucket).Delete(id.key()) })
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
		default: // a value is waiting already
		}
	}
}

func read(tx *bbolt.Tx, k []byte) (Revision, error) {
	value := tx.Bucket(revisionsBucket).Get(k)
	if value == nil {
		return Revision{}, ErrNotFound
	}
	r := Revision{Summary: summarize(tx, k, value)}
	if r.Damaged {
		_, err := unseal(revisionsBucket, k, value)
		return Revision{}, err
	}
	for _, part := range []struct {
		bucket []byte
		text   *[]byte
	}{{yamlBucket, &r.YAML}, {jsonBucket, &r.JSON}} {
		text, err := get(tx, part.bucket, k)
		if err != nil {
			return Revision{}, err
		}
		*part.text = bytes.Clone(text) // bbolt's bytes are only valid within the transaction
	}
	return r, nil
}

func summarize(tx *bbolt.Tx, k, value []byte) Summary {
	var s Summary
	text, err := unseal(revisionsBucket, k, value)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return Summary{Number: binary.BigEndian.Uint64(k), Damaged: true}
	}
	s.Acked, s.Nacked = marked(tx, ackedBucket, k), marked(tx, nackedBucket, k)
	return s
}

// marked says whether a revision has a mark. A damaged mark is none.
func marked(tx *bbolt.Tx, marks, k []byte) bool {
	_, err := get(tx, marks, k)
	return err == nil && tx.Bucket(marks).Get(k) != nil
}

func key(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }
