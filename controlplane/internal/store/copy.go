package store

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
)

// ErrNotEmpty says that a store was used before.
var ErrNotEmpty = errors.New("it is not empty: a copy takes a store that no serve has ever used")

// copyingKey is in meta while a copy is under way.
var copyingKey = []byte("copying")

// copiedAtOnce is how many records a transaction of a copy has.
const copiedAtOnce = 20

// Source is a store that is only read.
type Source interface {
	viewer
	io.Closer
}

// OpenCopy opens a store only to copy it: one on etcd, a directory that no other process
// has open, or a backup's file.
func OpenCopy(ctx context.Context, at string) (Source, error) {
	if IsURL(at) {
		return OpenEtcd(ctx, at, nil)
	}
	if info, err := os.Stat(at); err != nil || info.IsDir() {
		return openDir(at, true)
	}
	db, err := openFile(at, true)
	return db, naming("open "+at, err)
}

// Copy copies all records of a store, of which none may be damaged, to one that is empty:
// revisions with their numbers, what proxies answered, the audit log and the secret.
func Copy(ctx context.Context, from Source, to Store) (c Contents, err error) {
	commit := func(change func(records) error) error { return to.(backend).commit(ctx, false, change) }
	return c, naming("copy", from.view(func(r records) error {
		c = r.contents()
		if err := flawless(r.flaws()); err != nil {
			return err
		}
		if err := commit(records.beginCopy); err != nil {
			return err
		}
		var all []recordKey
		for _, bucket := range buckets {
			for k := range r.descend(bucket, nil) {
				all = append(all, recordKey{bucket, string(k)})
			}
		}
		for part := range slices.Chunk(all, copiedAtOnce) {
			if err := commit(func(to records) (err error) {
				for _, at := range part {
					k := []byte(at.k)
					err = errors.Join(err, to.set(at.bucket, k, r.value(at.bucket, k)))
				}
				return err
			}); err != nil {
				return err
			}
		}
		return commit(func(to records) error {
			err := to.remove(metaBucket, copyingKey)
			for _, bucket := range []string{revisionsBucket, auditBucket} {
				err = errors.Join(err, to.setSequence(bucket, r.sequence(bucket)))
			}
			return err
		})
	}))
}

func (r records) beginCopy() error {
	if r.sequence(revisionsBucket) > 0 || r.sequence(auditBucket) > 0 || r.value(metaBucket, secretKey) != nil {
		return ErrNotEmpty
	}
	return r.set(metaBucket, copyingKey, []byte("yes"))
}
