package store

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Bounds of an entry's texts in bytes.
const (
	maxName = 256  // Who, From and Action
	maxText = 4096 // Text and Outcome
)

// bounded returns the entry with its texts cut.
func (e Entry) bounded() Entry {
	for _, name := range []*string{&e.Who, &e.From, &e.Action} {
		*name = printable.Cut(*name, maxName)
	}
	e.Text, e.Outcome = printable.Cut(e.Text, maxText), printable.Cut(e.Outcome, maxText)
	return e
}

// appendEntry appends to the audit log within a transaction, and sets the
// entry's ID and At.
func appendEntry(tx *bbolt.Tx, e *Entry) error {
	bucket := tx.Bucket(auditBucket)
	id, k, err := next(bucket)
	if err != nil {
		return err
	}
	*e = e.bounded()
	e.ID, e.At = id, time.Now().UTC()
	c := bucket.Cursor()
	for first, _ := c.First(); first != nil && binary.BigEndian.Uint64(first)+maxEntries <= id; first, _ = c.First() {
		if err := c.Delete(); err != nil {
			return err
		}
	}
	return putEntry(tx, k, *e)
}

func putEntry(tx *bbolt.Tx, k []byte, e Entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return put(tx, auditBucket, k, text)
}

// Record implements Store.
func (b *Bolt) Record(ctx context.Context, e Entry) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err := b.commit(b.db.Update, func(tx *bbolt.Tx) error { return appendEntry(tx, &e) })
	if err != nil {
		return 0, fmt.Errorf("record %s: %w", e.Action, err)
	}
	return e.ID, nil
}

// Settle implements Store.
func (b *Bolt) Settle(_ context.Context, id uint64, outcome string) error {
	err := b.commit(b.db.Update, func(tx *bbolt.Tx) error {
		text, err := get(tx, auditBucket, key(id))
		if text == nil || err != nil {
			return err
		}
		var e Entry
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("read audit entry: %w", err)
		}
		e.Outcome = outcome
		return putEntry(tx, key(id), e.bounded())
	})
	if err != nil {
		return fmt.Errorf("settle audit entry %d: %w", id, err)
	}
	return nil
}

// Audit implements Store. A damaged entry is listed with that as its outcome.
func (b *Bolt) Audit(_ context.Context, limit int, before uint64) ([]Entry, error) {
	list := []Entry{}
	if before == 0 {
		before = math.MaxUint64
	}
	err := b.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(auditBucket).Cursor()
		newest := c.Last
		if at, _ := c.Seek(key(before)); at != nil {
			newest = c.Prev
		}
		for k, v := newest(); k != nil && (limit <= 0 || len(list) < limit); k, v = c.Prev() {
			e := Entry{ID: binary.BigEndian.Uint64(k)}
			if text, err := unseal(auditBucket, k, v); err != nil {
				e.Outcome = err.Error()
			} else if err := json.Unmarshal(text, &e); err != nil {
				return fmt.Errorf("read audit entry: %w", err)
			}
			list = append(list, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list audit entries: %w", err)
	}
	return list, nil
}
