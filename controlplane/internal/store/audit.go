package store

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"go.etcd.io/bbolt"
)

// appendEntry appends to the audit log within a transaction.
func appendEntry(tx *bbolt.Tx, e Entry, revision uint64) error {
	_, err := putEntry(tx, e, revision)
	return err
}

func putEntry(tx *bbolt.Tx, e Entry, revision uint64) (uint64, error) {
	bucket := tx.Bucket(auditBucket)
	id := uint64(1)
	if last, _ := bucket.Cursor().Last(); last != nil {
		id = binary.BigEndian.Uint64(last) + 1
	}
	e.ID, e.At = id, time.Now().UTC()
	if revision > 0 {
		e.Revision = revision
	}
	text, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	if id > maxEntries {
		if err := bucket.Delete(key(id - maxEntries)); err != nil {
			return 0, err
		}
	}
	return id, bucket.Put(key(id), text)
}

// Record implements Store.
func (b *Bolt) Record(ctx context.Context, e Entry) (id uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err = b.db.Update(func(tx *bbolt.Tx) (err error) {
		id, err = putEntry(tx, e, 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("record %s: %w", e.Action, err)
	}
	return id, nil
}

// Settle implements Store.
func (b *Bolt) Settle(_ context.Context, id uint64, outcome string) error {
	err := b.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(auditBucket)
		text := bucket.Get(key(id))
		if text == nil {
			return nil
		}
		var e Entry
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("read audit entry: %w", err)
		}
		e.Outcome = outcome
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return bucket.Put(key(id), text)
	})
	if err != nil {
		return fmt.Errorf("settle audit entry %d: %w", id, err)
	}
	return nil
}

// Audit implements Store.
func (b *Bolt) Audit(_ context.Context, limit int, before uint64) ([]Entry, error) {
	list := []Entry{}
	if before == 0 {
		before = math.MaxUint64
	}
	err := b.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(auditBucket).Cursor()
		k, v := c.Seek(key(before))
		if k == nil {
			k, v = c.Last()
		} else {
			k, v = c.Prev()
		}
		for ; k != nil && (limit <= 0 || len(list) < limit); k, v = c.Prev() {
			var e Entry
			if err := json.Unmarshal(v, &e); err != nil {
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
