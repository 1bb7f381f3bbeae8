package store

import (
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

func (r records) contents() Contents {
	all := r.keys(revisionsBucket)
	c := Contents{Revisions: len(all), Given: r.sequence(revisionsBucket)}
	if c.Revisions > 0 {
		c.Newest = binary.BigEndian.Uint64(all[0])
	}
	return c
}

// Backup implements Store. It copies at once, into a file beside the database:
// bbolt cannot grow its map while a transaction reads, and the caller may be slow.
func (b *Bolt) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	f, err := os.CreateTemp(filepath.Dir(b.db.Path()), ".backup-*")
	if err != nil {
		return nil, 0, fmt.Errorf("back up: %w", err)
	}
	_ = os.Remove(f.Name()) // gone once it is closed, even by a crash
	err = errors.Join(ctx.Err(), b.db.copyTo(f))
	size, _ := f.Seek(0, io.SeekCurrent)
	_, seekErr := f.Seek(0, io.SeekStart)
	if err = errors.Join(err, seekErr); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("back up: %w", err), f.Close())
	}
	return f, size, nil
}

func (d *database) copyTo(w io.Writer) error {
	return d.read(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})
}

// BackupDir backs up a directory that no other process has open. It changes nothing
// there.
func BackupDir(dir, file string) (Contents, error) {
	b, err := openDir(dir, true)
	if err != nil {
		return Contents{}, err
	}
	defer b.Close()
	return Save(file, b.db.copyTo)
}

// Save makes a file of a backup. The file gets its name, in place of an older one,
// only once it is checked and durable.
func Save(file string, write func(io.Writer) error) (c Contents, err error) {
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return c, fmt.Errorf("write %s: it is there and is not a regular file", file)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), LastName)); err == nil && slices.Contains([]string{FileName, LastName}, filepath.Base(file)) {
		return c, fmt.Errorf("write %s: it is a store itself: give the backup another name", file)
	}
	err = place(file, write, func(part string) (err error) {
		c, err = Check(part)
		return err
	})
	if err != nil {
		return c, fmt.Errorf("write backup: %w", err)
	}
	return c, nil
}

// place makes a file that gets its name only once it is durable and ready.
func place(file string, write func(io.Writer) error, ready func(part string) error) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, ".sluice-*.part")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone by then if all went well
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := ready(f.Name()); err != nil {
		return err
	}
	return errors.Join(os.Rename(f.Name(), file), syncDir(dir))
}

// Check reads all of a database and returns ErrDamaged if any part of it is damaged.
func Check(file string) (c Contents, err error) {
	db, err := openFile(file, true)
	if err != nil {
		return c, err
	}
	defer db.Close()
	err = db.view(func(r records) error {
		c = r.contents()
		return flawless(r.flaws())
	})
	return c, err
}

// flaws lists the records that are damaged.
func (r records) flaws() (list []recordKey) {
	for _, bucket := range buckets {
		for k, v := range r.descend(bucket, nil) {
			if _, err := unseal(bucket, k, v); err != nil && bucket != metaBucket {
				list = append(list, recordKey{bucket, string(k)})
			}
		}
	}
	return list
}

func flawless(list []recordKey) error {
	if len(list) == 0 {
		return nil
	}
	const maxNames = 10
	var names []string
	for _, at := range list[:min(len(list), maxNames)] {
		names = append(names, at.String())
	}
	return damage("not what was stored: %s (%d in all)", strings.Join(names, ", "), len(list))
}
