package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
)

// ErrNotEmpty says that a store was used before.
var ErrNotEmpty = errors.New("it is not empty: a copy takes a store that no serve has ever used")

// copyingKey is in meta while a copy is under way.
var copyingKey = []byte("copying")

// copiedAtOnce is how many records a transaction of a copy has.
const copiedAtOnce = 20

type viewer interface {
	view(what string, do func(records) error) error
}

// OpenCopy opens a store only to copy it: one on etcd, a directory that no other process
// has open, or a backup's file.
func OpenCopy(ctx context.Context, at string) (from viewer, closeFrom func() error, err error) {
	info, missing := os.Stat(at)
	switch {
	case IsURL(at):
		e, err := OpenEtcd(ctx, at, nil)
		if err != nil {
			return nil, nil, err
		}
		return e, e.Close, nil
	case missing != nil || info.IsDir():
		b, err := openDir(at, true)
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	}
	db, err := openFile(at, true)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", at, err)
	}
	return &Bolt{db: db}, db.Close, nil
}

// Copy copies all records of a store, of which none may be damaged, to one that is empty:
// revisions with their numbers, what proxies answered, the audit log and the secret.
func Copy(ctx context.Context, from viewer, to Store) (c Contents, err error) {
	target := to.(backend)
	if err := from.view("copy", func(r records) error { c = r.contents(); return flawless(r.flaws()) }); err != nil {
		return c, err
	}
	err = target.commit(ctx, "copy", false, func(r records) error {
		if r.sequence(revisionsBucket) > 0 || r.sequence(auditBucket) > 0 || r.value(metaBucket, secretKey) != nil {
			return ErrNotEmpty
		}
		return r.set(metaBucket, copyingKey, []byte("yes"))
	})
	if err != nil {
		return c, err
	}
	return c, from.view("copy", func(r records) error {
		var list []func(records) error
		commit := func() error {
			defer func() { list = nil }()
			return target.commit(ctx, "copy", false, func(to records) (err error) {
				for _, change := range list {
					err = errors.Join(err, change(to))
				}
				return err
			})
		}
		for _, bucket := range buckets {
			for k, value := range r.descend(bucket, nil) {
				k, value := bytes.Clone(k), bytes.Clone(value)
				list = append(list, func(to records) error { return to.set(bucket, k, value) })
				if len(list) == copiedAtOnce {
					if err := commit(); err != nil {
						return err
					}
				}
			}
			if n := r.sequence(bucket); n > 0 {
				list = append(list, func(to records) error { return to.setSequence(bucket, n) })
			}
		}
		list = append(list, func(to records) error { return to.remove(metaBucket, copyingKey) })
		return commit()
	})
}
