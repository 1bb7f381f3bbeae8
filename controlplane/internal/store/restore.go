package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// Restored says what Restore did.
type Restored struct {
	Contents
	Kept    string   // the new name of the old database, "" if there was none
	Unknown bool     // nothing says how many revisions the old database had
	Dropped []string // damaged entries that are left out
}

// Restore puts a backup in place of the database in a directory, which no other
// process may have open. It moves the old database aside. New numbers are above
// those of the backup, of the old database and of its record of acknowledged
// changes. A damaged backup is refused, unless dropDamaged leaves out the damaged
// entries.
//
// The record is set last: until then Open refuses the directory, and Restore can
// be repeated.
func Restore(backup, dir string, dropDamaged bool) (r Restored, err error) {
	part, err := takeCopy(backup, dir)
	if err != nil {
		return r, err
	}
	defer os.Remove(part)

	file := filepath.Join(dir, FileName)
	// Locked until the end, so that no serve opens it meanwhile.
	old, oldErr := openFile(file, os.O_RDONLY)
	if errors.Is(oldErr, ErrHeld) {
		return r, fmt.Errorf("restore into %s: %w", dir, oldErr)
	}
	if old != nil {
		defer old.Close()
	}
	record, err := openLast(dir, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return r, err
	}
	defer record.f.Close()

	reached := record.known
	if old != nil {
		if err := old.View(func(tx *bbolt.Tx) error { reached = reached.highest(positionOf(tx)); return nil }); err != nil {
			return r, err
		}
	}
	r.Unknown = oldErr != nil && !errors.Is(oldErr, fs.ErrNotExist) && record.turn == 0
	placed, err := r.ready(part, backup, reached, dropDamaged)
	if err != nil {
		return r, fmt.Errorf("restore %s: %w", backup, err)
	}
	if r.Kept, err = moveAside(file); err != nil {
		return r, fmt.Errorf("move the old database aside: %w", err)
	}
	// Link fails if there is a new database by now.
	if err := errors.Join(os.Link(part, file), syncDir(dir)); err != nil {
		return r, fmt.Errorf("put backup in place: %w", err)
	}
	return r, record.set(placed)
}

// takeCopy copies a backup into the directory, under another name.
func takeCopy(backup, dir string) (part string, err error) {
	if info, err := os.Stat(backup); err != nil {
		return "", fmt.Errorf("read backup: %w", err)
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("read backup: %s is not a regular file", backup)
	}
	db, err := openFile(backup, os.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", backup, err)
	}
	defer db.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create data directory: %w", err)
	}
	f, err := os.CreateTemp(dir, ".restore-*.part")
	if err != nil {
		return "", fmt.Errorf("copy backup: %w", err)
	}
	_, err = copyTo(db, f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("copy backup: %w", err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// ready makes the copy the database that the directory is to have.
func (r *Restored) ready(part, backup string, reached position, dropDamaged bool) (placed position, err error) {
	db, err := openFile(part, os.O_RDWR)
	if err != nil {
		return placed, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		list := flaws(tx)
		if !dropDamaged {
			if err := flawed(list); err != nil {
				return err
			}
		}
		for _, f := range list {
			r.Dropped = append(r.Dropped, entryName(f.bucket, f.key))
			if err := f.drop(tx); err != nil {
				return err
			}
		}
		has := positionOf(tx)
		reached = reached.highest(has)
		entry := Entry{
			Who: "sluice store restore", Action: "restore", Revision: contents(tx).Newest,
			Text: fmt.Sprintf("from %s, with revision numbers up to %d of %d", filepath.Base(backup), has.Revision, reached.Revision),
		}
		err := errors.Join(
			tx.Bucket(revisionsBucket).SetSequence(reached.Revision),
			tx.Bucket(auditBucket).SetSequence(reached.Entry),
			appendEntry(tx, &entry),
		)
		r.Contents, placed = contents(tx), positionOf(tx)
		return err
	})
	return placed, errors.Join(err, db.Close())
}

// highest is the highest of each number.
func (p position) highest(q position) position {
	return position{max(p.Transaction, q.Transaction), max(p.Revision, q.Revision), max(p.Entry, q.Entry)}
}

// moveAside renames a file and returns its new name, "" if there is no such file.
func moveAside(file string) (string, error) {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	dated := file + time.Now().UTC().Format(".20060102T150405Z")
	name := dated
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); err != nil {
			return name, os.Rename(file, name)
		}
		name = fmt.Sprintf("%s-%d", dated, n)
	}
}
