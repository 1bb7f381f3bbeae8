package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Bounds of an entry's texts in bytes.
const (
	maxName = 256  // Who, From and Action
	maxText = 4096 // Text and Outcome
)

// putEntry stores an entry with its texts cut.
func (r records) putEntry(e Entry) error {
	for _, name := range []*string{&e.Who, &e.From, &e.Action} {
		*name = printable.Cut(*name, maxName)
	}
	e.Text, e.Outcome = printable.Cut(e.Text, maxText), printable.Cut(e.Outcome, maxText)
	return r.putJSON(auditBucket, key(e.ID), e)
}

// appendEntry appends to the audit log, and sets the entry's ID and At.
func (r records) appendEntry(e *Entry) (err error) {
	e.ID, err = r.next(auditBucket)
	if err != nil {
		return err
	}
	e.At = time.Now().UTC()
	for _, old := range slices.Collect(r.newest(auditBucket, max(e.ID, maxEntries)-maxEntries+1)) {
		if err := r.delete(key(old), auditBucket); err != nil {
			return err
		}
	}
	return r.putEntry(*e)
}

// Record implements Store.
func (s store) Record(ctx context.Context, e Entry) (id uint64, err error) {
	err = s.write(ctx, "record "+e.Action, func(r records) error { return r.appendEntry(&e) })
	if err != nil {
		return 0, err
	}
	return e.ID, nil
}

// SetOutcome implements Store.
func (s store) SetOutcome(ctx context.Context, id uint64, outcome string) error {
	return s.write(ctx, fmt.Sprintf("set the outcome of audit entry %d", id), func(r records) error {
		var e Entry
		if err := r.getJSON(auditBucket, key(id), &e); errors.Is(err, ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		e.Outcome = outcome
		return r.putEntry(e)
	})
}

// Audit implements Store. A damaged entry is listed with that as its outcome.
func (s store) Audit(_ context.Context, policy string, limit int, before uint64) ([]Entry, error) {
	list := []Entry{}
	err := s.read("list audit entries", func(r records) error {
		for id := range r.newest(auditBucket, before) {
			e := Entry{ID: id}
			if err := r.getJSON(auditBucket, key(id), &e); err != nil {
				e.Outcome = err.Error()
			} else if policy != "" && e.Policy != policy {
				continue
			}
			list = append(list, e)
			if len(list) == limit {
				break
			}
		}
		return nil
	})
	return list, err
}

// Secret implements Store. A damaged secret counts as none. A store that takes no changes tells one that is there.
func (s store) Secret(ctx context.Context) (secret []byte, err error) {
	err = s.read("read audit secret", func(r records) (err error) {
		secret, err = r.get(metaBucket, secretKey)
		return err
	})
	if err == nil {
		return secret, nil
	}
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // never fails: see its documentation
	err = s.write(ctx, "make audit secret", func(r records) error {
		secret, err = r.get(metaBucket, secretKey)
		if err == nil {
			return nil
		}
		secret = fresh // in each try the same
		return r.put(metaBucket, secretKey, secret)
	})
	return secret, err
}
