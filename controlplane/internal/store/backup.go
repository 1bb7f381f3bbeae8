package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
)

// Contents says what a database holds.
type Contents struct {
	Revisions int
	Newest    uint64 // revision, 0 if there is none
	Given     uint64 // the highest revision number that was ever given
}

// Backup implements Store. It copies at once, into a file beside the database:
// bbolt cannot grow its map while a transaction reads, and the caller may be slow.
func (b *Bolt) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	f, err := os.CreateTemp(filepath.Dir(b.db.Path()), ".backup-*")
	if err != nil {
		return nil, 0, fmt.Errorf("back up: %w", err)
	}
	c := unnamed{f}
	_ = os.Remove(f.Name()) // where the system allows it, a crash leaves nothing
	size, err := copyTo(b.db, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("back up: %w", err), c.Close())
	}
	return c, size, nil
}

// unnamed is a file that is gone once it is closed.
type unnamed struct{ *os.File }

func (u unnamed) Close() error {
	err := u.File.Close()
	_ = os.Remove(u.Name())
	return err
}

func copyTo(db *bbolt.DB, w io.Writer) (n int64, err error) {
	err = guard(func() error {
		return db.View(func(tx *bbolt.Tx) (err error) {
			n, err = tx.WriteTo(w)
			return err
		})
	})
	return n, err
}

// BackupDir backs up a directory that no other process has open. It changes nothing
// there.
func BackupDir(dir, file string) (Contents, error) {
	b, err := openDir(dir, os.O_RDONLY)
	if err != nil {
		return Contents{}, err
	}
	defer b.Close()
	return Save(file, func(w io.Writer) error {
		_, err := copyTo(b.db, w)
		return err
	})
}

// Save makes a file of a backup. The file gets its name, in place of an older one,
// only once it is checked and durable.
func Save(file string, write func(io.Writer) error) (c Contents, err error) {
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return c, fmt.Errorf("write %s: it is there and is not a regular file", file)
	}
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, "."+filepath.Base(file)+"-*.part")
	if err != nil {
		return c, fmt.Errorf("write backup: %w", err)
	}
	defer os.Remove(f.Name()) // gone by then if all went well
	if err = errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return c, fmt.Errorf("write backup: %w", err)
	}
	if c, err = Check(f.Name()); err != nil {
		return c, fmt.Errorf("check backup: %w", err)
	}
	if err := errors.Join(os.Rename(f.Name(), file), syncDir(dir)); err != nil {
		return c, fmt.Errorf("write backup: %w", err)
	}
	return c, nil
}

// Check reads all of a database and returns ErrDamaged if any part of it is damaged.
func Check(file string) (Contents, error) {
	db, err := openFile(file, os.O_RDONLY)
	if err != nil {
		return Contents{}, err
	}
	defer db.Close()
	var c Contents
	err = guard(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			c = contents(tx)
			return flawed(flaws(tx))
		})
	})
	return c, err
}

func contents(tx *bbolt.Tx) Contents {
	bucket := tx.Bucket(revisionsBucket)
	c := Contents{Given: bucket.Sequence()}
	_ = bucket.ForEach(func(k, _ []byte) error {
		c.Revisions++
		c.Newest = binary.BigEndian.Uint64(k)
		return nil
	})
	return c
}

// flaw is a damaged entry.
type flaw struct{ bucket, key []byte }

func flaws(tx *bbolt.Tx) (list []flaw) {
	for _, name := range buckets {
		if bytes.Equal(name, metaBucket) {
			continue
		}
		_ = tx.Bucket(name).ForEach(func(k, v []byte) error {
			if _, err := unseal(name, k, v); err != nil {
				list = append(list, flaw{name, bytes.Clone(k)})
			}
			return nil
		})
	}
	return list
}

// flawed is the error of a database with flaws.
func flawed(list []flaw) error {
	const maxNames = 10
	names := make([]string, 0, maxNames+1)
	for i, f := range list {
		if i == maxNames {
			names = append(names, fmt.Sprintf("%d more", len(list)-maxNames))
			break
		}
		names = append(names, entryName(f.bucket, f.key))
	}
	if len(names) == 0 {
		return nil
	}
	return damage("not what was stored: %s", strings.Join(names, ", "))
}

// drop deletes an entry; for the text of a revision, all of the revision.
func (f flaw) drop(tx *bbolt.Tx) error {
	texts := [][]byte{revisionsBucket, yamlBucket, jsonBucket}
	if !slices.ContainsFunc(texts, func(name []byte) bool { return bytes.Equal(name, f.bucket) }) {
		return tx.Bucket(f.bucket).Delete(f.key)
	}
	for _, name := range revisionBuckets {
		if err := tx.Bucket(name).Delete(f.key); err != nil {
			return err
		}
	}
	return nil
}
