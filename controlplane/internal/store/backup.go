package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
func (b *boltFile) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	f, err := os.CreateTemp(filepath.Dir(b.db.Path()), ".backup-*")
	if err != nil {
		return nil, 0, fmt.Errorf("back up: %w", err)
	}
	_ = os.Remove(f.Name()) // gone once it is closed, even by a crash
	err = errors.Join(ctx.Err(), b.db.copyTo(f))
	size, _ := f.Seek(0, io.SeekCurrent)
	_, seekErr := f.Seek(0, io.SeekStart)
	err = errors.Join(err, seekErr)
	if err != nil {
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
	if isOfStore(file) {
		return c, fmt.Errorf("write %s: it is a store itself: give the backup another name", file)
	}
	err = replaceFile(file, write, func(part string) (err error) {
		c, err = Check(part)
		return err
	})
	if err != nil {
		return c, fmt.Errorf("write backup: %w", err)
	}
	return c, nil
}

// isOfStore says whether a file is one of those of a store in its directory.
func isOfStore(file string) bool {
	dir, name := filepath.Split(file)
	_, err := os.Stat(filepath.Join(dir, LastName))
	return err == nil && (name == FileName || name == LastName)
}

// replaceFile writes a file, and gives it its name, in place of an older one, once it is durable. Before
// that, prepare is called with the name of the part that is written.
func replaceFile(file string, write func(io.Writer) error, prepare func(part string) error) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, ".sluice-*.part")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone by then if all went well
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := prepare(f.Name()); err != nil {
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
	err = replaceFile(file, from.copyTo, func(part string) (err error) {
		placed, err = r.mendDatabase(part, given, filepath.Base(backup), dropDamaged)
		if err != nil || missing {
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

// mendDatabase mends the copy of a backup that is in a file, and returns how far it has come then.
func (r *Restored) mendDatabase(file string, given position, name string, dropDamaged bool) (has position, err error) {
	db, err := openFile(file, false)
	if err != nil {
		return has, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		err := r.mendRecords(tx, given, name, dropDamaged)
		has = positionOf(tx)
		return err
	})
	return has, errors.Join(err, db.Close())
}

// mendRecords makes the records of a backup those that the directory is to have: without what is
// damaged, and with the numbers that were given before. Where a text of a revision is damaged, all of
// the revision goes.
func (r *Restored) mendRecords(tx *bbolt.Tx, given position, name string, dropDamaged bool) error {
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
	r.Given = given.revision
	return errors.Join(
		backup.setSequence(revisionsBucket, given.revision),
		backup.setSequence(auditBucket, given.entry),
		backup.appendEntry(&Entry{
			Who: "sluice store restore", Action: "restore", Revision: r.Newest,
			Text: fmt.Sprintf("from %s, with revision numbers up to %d of %d", name, has.revision, r.Given),
		}),
	)
}

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

// Target is a store that records can be copied to: one that this package opened.
type Target interface {
	Store
	backend
}

// Copy copies all records of a store to one that is empty; none may be damaged. It copies
// revisions with their numbers, the replies of proxies, the audit log and the secret.
func Copy(ctx context.Context, from Source, to Target) (c Contents, err error) {
	commit := func(change func(records) error) error { return to.commit(ctx, false, change) }
	return c, naming("copy", from.view(func(r records) error {
		c = r.contents()
		if err := flawless(r.flaws()); err != nil {
			return err
		}
		if err := commit(records.beginCopy); err != nil {
			return err
		}
		for part := range slices.Chunk(r.all(), copiedAtOnce) {
			err := commit(func(to records) (err error) {
				for _, at := range part {
					k := []byte(at.k)
					err = errors.Join(err, to.set(at.bucket, k, r.value(at.bucket, k)))
				}
				return err
			})
			if err != nil {
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

// all says where all records are.
func (r records) all() (list []recordKey) {
	for _, bucket := range buckets {
		for k := range r.descend(bucket, nil) {
			list = append(list, recordKey{bucket, string(k)})
		}
	}
	return list
}

func (r records) beginCopy() error {
	if r.sequence(revisionsBucket) > 0 || r.sequence(auditBucket) > 0 || r.value(metaBucket, secretKey) != nil {
		return ErrNotEmpty
	}
	return r.set(metaBucket, copyingKey, []byte("yes"))
}
