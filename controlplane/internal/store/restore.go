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

// Restored is what Restore did.
type Restored struct {
	Contents
	Kept    string   // where the database is now that was there; "" if there was none
	Unknown bool     // it was there, and how many revisions it had could not be read
	Dropped []string // what was damaged and is left out
}

// Restore puts a backup in place of the database in a directory, which no other
// process may have open. What was there is moved aside. Numbers go on above all
// that the backup, what was there and its record of acknowledged changes have.
// A backup that is damaged is refused, unless dropDamaged leaves out the entries
// that are.
//
// The record is set last: until then Open refuses the directory, and Restore
// can be done again.
func Restore(backup, dir string, dropDamaged bool) (r Restored, err error) {
	part, err := takeCopy(backup, dir)
	if err != nil {
		return r, err
	}
	defer os.Remove(part)

	file := filepath.Join(dir, FileName)
	// Locked until the end, if it is there: serve cannot have it open meanwhile.
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
	// A link is refused where somebody has made a new database meanwhile.
	if err := errors.Join(os.Link(part, file), syncDir(dir)); err != nil {
		return r, fmt.Errorf("put backup in place: %w", err)
	}
	return r, record.set(placed)
}

// takeCopy copies a backup beside the place where it is to be.
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

// ready makes the copy what is to be in the directory.
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

// moveAside renames a file to a name that is free, and returns that; "" if
// there is no such file.
func moveAside(file string) (string, error) {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	name := file + time.Now().UTC().Format(".20060102T150405Z")
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); err != nil {
			break
		}
		name = fmt.Sprintf("%s%s-%d", file, time.Now().UTC().Format(".20060102T150405Z"), n)
	}
	return name, os.Rename(file, name)
}
