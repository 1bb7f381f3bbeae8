package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// Restored says what Restore did.
type Restored struct {
	Contents
	Kept    string   // the new name of the old database, "" if there was none
	Unknown bool     // nothing says how many revisions the old database had
	Dropped []string // damaged records that are left out
}

// Restore puts a backup in place of the database in a directory, which no other
// process may have open. It moves the old database aside. New numbers are above
// those of the backup, of the old database and of its record of acknowledged
// changes. A damaged backup is refused, unless dropDamaged leaves out the damaged
// records.
//
// The record is set last: until then Open refuses the directory, and Restore can
// be repeated.
func Restore(backup, dir string, dropDamaged bool) (r Restored, err error) {
	from, err := openFile(backup, true)
	if err != nil {
		return r, fmt.Errorf("read %s: %w", backup, err)
	}
	defer from.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, fmt.Errorf("create data directory: %w", err)
	}
	file := filepath.Join(dir, FileName)
	old, oldErr := openFile(file, true) // locked until the end, so that no serve opens it meanwhile
	if errors.Is(oldErr, ErrHeld) {
		return r, fmt.Errorf("restore into %s: %w", dir, oldErr)
	}
	record, err := openLast(filepath.Join(dir, LastName), false)
	if err != nil {
		return r, err
	}
	defer record.f.Close()
	given := record.known
	if old != nil {
		defer old.Close()
		given = given.highest(old.position())
	}
	missing := errors.Is(oldErr, fs.ErrNotExist)
	r.Unknown = oldErr != nil && !missing && record.turn == 0

	var placed position
	err = place(file, from.copyTo, func(part string) error {
		db, err := openFile(part, false)
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			err := r.mend(tx, given, filepath.Base(backup), dropDamaged)
			placed = positionOf(tx)
			return err
		})
		if err = errors.Join(err, db.Close()); err != nil || missing {
			return err
		}
		r.Kept = file + time.Now().UTC().Format(".20060102T150405.000000Z")
		return os.Rename(file, r.Kept)
	})
	if err != nil {
		return r, fmt.Errorf("restore %s: %w", backup, err)
	}
	record.known = position{} // the transaction goes back
	return r, record.advance(placed)
}

// mend makes a copy of a backup what the directory is to have: without what is
// damaged, for a text of a revision without all of the revision, and with the numbers
// that were given before.
func (r *Restored) mend(tx *bbolt.Tx, given position, name string, dropDamaged bool) error {
	backup := boltRecords(tx)
	list := backup.flaws()
	if err := flawless(list); err != nil && !dropDamaged {
		return err
	}
	for _, at := range list {
		r.Dropped = append(r.Dropped, at.String())
		from := []string{at.bucket}
		if slices.Contains(textBuckets, at.bucket) {
			from = revisionBuckets
		}
		if err := backup.delete([]byte(at.k), from...); err != nil {
			return err
		}
	}
	has := positionOf(tx)
	given = given.highest(has)
	r.Contents = backup.contents()
	r.Given = given[1]
	return errors.Join(
		backup.setSequence(revisionsBucket, given[1]),
		backup.setSequence(auditBucket, given[2]),
		backup.appendEntry(&Entry{
			Who: "sluice store restore", Action: "restore", Revision: r.Newest,
			Text: fmt.Sprintf("from %s, with revision numbers up to %d of %d", name, has[1], r.Given),
		}),
	)
}
