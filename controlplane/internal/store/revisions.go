package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Append implements Store.
func (b *Bolt) Append(ctx context.Context, d Draft) (Revision, error) {
	var revision Revision
	err := b.commit(ctx, "append revision", b.db.Update, func(r records) error {
		number, err := r.next(revisionsBucket)
		if err != nil {
			return err
		}
		revision = Revision{YAML: bytes.Clone(d.YAML), JSON: bytes.Clone(d.JSON), Summary: Summary{
			Number: number, File: d.File, Wasm: d.Wasm, RollbackOf: d.RollbackOf, Created: time.Now().UTC(),
			SHA256: fmt.Sprintf("%x", sha256.Sum256(d.YAML)), Bytes: len(d.YAML),
		}}
		entry := d.Audit
		entry.Revision = number
		return errors.Join(
			r.putJSON(revisionsBucket, key(number), revision.Summary),
			r.put(yamlBucket, key(number), d.YAML),
			r.put(jsonBucket, key(number), d.JSON),
			r.appendEntry(&entry),
		)
	})
	if err != nil {
		return Revision{}, err
	}
	b.setFailed(nil)
	b.notify()
	return revision, nil
}

// Get implements Store.
func (b *Bolt) Get(_ context.Context, number uint64) (revision Revision, err error) {
	err = b.view(fmt.Sprintf("get revision %d", number), func(r records) (err error) {
		if revision.Summary, err = r.summary(number); err == nil {
			revision.YAML, err = r.get(yamlBucket, key(number))
		}
		if err == nil {
			revision.JSON, err = r.get(jsonBucket, key(number))
		}
		return err
	})
	if err != nil {
		return Revision{}, err
	}
	return revision, nil
}

// History implements Store.
func (b *Bolt) History(_ context.Context, limit int) ([]Summary, error) {
	list := []Summary{}
	err := b.view("list revisions", func(r records) error {
		for number := range r.newest(revisionsBucket, 0, limit) {
			s, err := r.summary(number)
			if err != nil {
				s = Summary{Number: number, Damaged: true}
			}
			list = append(list, s)
		}
		return nil
	})
	return list, err
}

// summary reads a revision's summary. A damaged mark is none.
func (r records) summary(number uint64) (s Summary, err error) {
	k := key(number)
	if err := r.getJSON(revisionsBucket, k, &s); err != nil {
		return s, err
	}
	_, refused := r.get(nackedBucket, k)
	_, accepted := r.get(ackedBucket, k)
	s.Acked, s.Nacked = accepted == nil, refused == nil
	return s, nil
}

// Drop implements Store. The file does not shrink: what comes next uses the
// pages again.
func (b *Bolt) Drop(ctx context.Context, numbers []uint64) error {
	return b.commit(ctx, "drop revisions", b.db.Update, func(r records) error {
		for newest := range r.newest(revisionsBucket, 0, 1) {
			if slices.Contains(numbers, newest) {
				return fmt.Errorf("revision %d is the newest", newest)
			}
		}
		for _, number := range numbers {
			if err := r.delete(key(number), revisionBuckets...); err != nil {
				return err
			}
		}
		return nil
	})
}
