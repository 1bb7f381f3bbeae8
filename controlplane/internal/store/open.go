package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// lockTimeout is how long Open tries to lock the database: long enough for a
// predecessor that is just closing it, short enough to be an answer.
const lockTimeout = 500 * time.Millisecond

// Open opens the store in a directory, which it creates if need be. It
// returns ErrHeld when another process has it open, and ErrDamaged when the
// file there is not a whole database or lacks what was acknowledged.
func Open(dir string) (*Bolt, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	b, err := openDir(dir, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	// bbolt syncs the file; a new file's name is safe once its directory is.
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("sync data directory: %w", err), b.Close())
	}
	return b, nil
}

// Exposed returns a file of a data directory that everybody on the machine may
// write to, or the directory itself, "" if there is none. It is no reason to
// refuse: volumes of containers are made like that.
func Exposed(dir string) (name string, mode fs.FileMode) {
	if runtime.GOOS == "windows" {
		return "", 0 // modes mean nothing there
	}
	for _, name := range []string{dir, filepath.Join(dir, FileName), filepath.Join(dir, LastName)} {
		if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o002 != 0 {
			return name, info.Mode()
		}
	}
	return "", 0
}

// openDir opens the store in a directory. flag is os.O_RDWR, or os.O_RDONLY to
// change nothing there.
func openDir(dir string, flag int) (*Bolt, error) {
	file, lastFile := filepath.Join(dir, FileName), filepath.Join(dir, LastName)
	if err := checkRegular(file); err != nil {
		return nil, err
	}
	_, missing := os.Stat(file)
	if _, err := os.Stat(lastFile); err == nil && errors.Is(missing, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w: it is gone, but %s says that there was one", file, ErrDamaged, lastFile)
	}
	db, err := openFile(file, flag)
	if errors.Is(err, ErrDamaged) {
		if l, lastErr := openLast(dir, os.O_RDONLY); lastErr == nil {
			err = errors.Join(fmt.Errorf("%w; revisions up to %d were acknowledged", err, l.known.Revision), l.f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	b := &Bolt{db: db, files: map[string]os.FileInfo{}, watchers: map[chan struct{}]struct{}{}}
	if b.last, err = catchUp(db, dir, flag); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file, err), db.Close())
	}
	for _, name := range []string{file, lastFile} {
		if b.files[name], err = os.Stat(name); err != nil {
			return nil, errors.Join(fmt.Errorf("open store: %w", err), b.Close())
		}
	}
	return b, nil
}

// inPlace fails where the next Open would not find what is stored now: a removed
// file can be written to as long as it is open.
func (b *Bolt) inPlace() error {
	for name, opened := range b.files {
		if now, err := os.Stat(name); err != nil || !os.SameFile(now, opened) {
			return fmt.Errorf("%s has been taken away or replaced, so nothing more is stored: "+
				"put it back and start sluice serve anew", name)
		}
	}
	return nil
}

// checkRegular refuses links, which may lead to a device or to a file that another
// serve holds under its own name.
func checkRegular(name string) error {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("open %s: not a regular file: the data directory itself may be a link, not what is in it", name)
	}
	return nil
}

// openFile opens a database and checks that it is whole. The error is ErrHeld where
// another process has it open.
func openFile(file string, flag int) (db *bbolt.DB, err error) {
	err = guard(func() error {
		// bbolt's lock keeps the pages as they are while inspect reads them. bbolt
		// itself does not read them yet.
		switch info, err := os.Stat(file); {
		case err != nil && flag == os.O_RDONLY:
			return err
		case err == nil && info.Size() > 0:
			if err := inspect(file); err != nil {
				return err
			}
		case flag == os.O_RDONLY:
			return damage("it is empty")
		}
		var opened *os.File
		db, err = bbolt.Open(file, 0o600, &bbolt.Options{
			Timeout: lockTimeout, ReadOnly: flag == os.O_RDONLY,
			OpenFile: func(name string, flag int, mode fs.FileMode) (f *os.File, err error) {
				opened, err = os.OpenFile(name, flag, mode)
				return opened, err
			},
		})
		if err != nil {
			return damaged(err)
		}
		// Restore moves the file away while it has it locked.
		if same, err := isAt(opened, file); err != nil || !same {
			return errors.Join(err, bolterrors.ErrTimeout)
		}
		if flag != os.O_RDONLY {
			if err := prepare(db); err != nil {
				return err
			}
		}
		return db.View(walk)
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = ErrHeld
	}
	if err != nil && db != nil {
		err = errors.Join(err, db.Close())
		db = nil
	}
	return db, err
}

func inspect(file string) error {
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: lockTimeout, ReadOnly: true})
	if err != nil {
		return damaged(err)
	}
	return errors.Join(checkPages(file), db.Close())
}

// damaged makes an error of bbolt ErrDamaged, unless it is about the lock or comes
// from the system.
func damaged(err error) error {
	var system syscall.Errno
	if errors.Is(err, bolterrors.ErrTimeout) || errors.As(err, &system) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func isAt(f *os.File, name string) (bool, error) {
	a, err := f.Stat()
	if err != nil {
		return false, err
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b), nil
}

// guard makes errors of bbolt's panics over a file that makes no sense to it, and
// of the fault of reading mapped memory beyond the end of a file.
func guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch found := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("%w: it is cut short or overwritten", ErrDamaged)
		default:
			err = fmt.Errorf("%w: %v", ErrDamaged, found)
		}
	}()
	return do()
}

// view reads in a transaction. If the file is overwritten meanwhile, only this
// reading fails.
func (b *Bolt) view(do func(*bbolt.Tx) error) error {
	return guard(func() error { return b.db.View(do) })
}

func prepare(db *bbolt.DB) error {
	// A database that is ready stays as it is: a transaction would have to be
	// recorded.
	ready := false
	err := db.View(func(tx *bbolt.Tx) error {
		ready = tx.Bucket(metaBucket) != nil
		return nil
	})
	if err != nil || ready {
		return err
	}
	return db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(formatKey, []byte(format))
	})
}

// walk checks that everything that belongs together is there.
func walk(tx *bbolt.Tx) error {
	if meta := tx.Bucket(metaBucket); meta != nil {
		if found := meta.Get(formatKey); string(found) != format {
			return fmt.Errorf("store format %q is not %s: it was written by another release", found, format)
		}
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return damage("it has no %s", name)
		}
	}
	for _, name := range append([][]byte{auditBucket}, revisionBuckets...) {
		err := tx.Bucket(name).ForEach(func(k, _ []byte) error {
			if len(k) != 8 {
				return damage("a key of %s has %d bytes", name, len(k))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, name := range [][]byte{revisionsBucket, auditBucket} {
		bucket := tx.Bucket(name)
		if k, _ := bucket.Cursor().Last(); k != nil && binary.BigEndian.Uint64(k) > bucket.Sequence() {
			return damage("%s go up to %d, and %d were given", name, binary.BigEndian.Uint64(k), bucket.Sequence())
		}
	}
	for _, texts := range [][]byte{yamlBucket, jsonBucket} {
		if err := sameKeys(tx.Bucket(revisionsBucket), tx.Bucket(texts)); err != nil {
			return fmt.Errorf("%w: %s", err, texts)
		}
	}
	return nil
}

func sameKeys(a, b *bbolt.Bucket) error {
	ca, cb := a.Cursor(), b.Cursor()
	ka, _ := ca.First()
	kb, _ := cb.First()
	for bytes.Equal(ka, kb) {
		if ka == nil {
			return nil
		}
		ka, _ = ca.Next()
		kb, _ = cb.Next()
	}
	return damage("parts of some revisions are missing")
}

// catchUp compares a database with the record of acknowledged changes, and brings
// the record up to the database: a change that was durable but never acknowledged
// counts from now on.
func catchUp(db *bbolt.DB, dir string, flag int) (*last, error) {
	var has position
	if err := db.View(func(tx *bbolt.Tx) error { has = positionOf(tx); return nil }); err != nil {
		return nil, err
	}
	if flag == os.O_RDWR {
		flag |= os.O_CREATE
	}
	l, err := openLast(dir, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage("%s is not beside it", LastName)
	}
	if err != nil {
		return nil, err
	}
	switch acknowledged := l.known; {
	case l.turn == 0 && (has.Revision > 0 || has.Entry > 0 || flag == os.O_RDONLY):
		err = damage("%s is not beside it or not whole, so nothing says whether all that was acknowledged is here", LastName)
	case has.behind(acknowledged):
		err = damage("it lacks what was acknowledged: it ends with transaction %d (revision %d, audit entry %d), "+
			"and transaction %d (revision %d, audit entry %d) was acknowledged", has.Transaction, has.Revision, has.Entry,
			acknowledged.Transaction, acknowledged.Revision, acknowledged.Entry)
	case l.turn == 0: // both records, so that their room is there for good
		err = errors.Join(l.set(has), l.set(has))
	case flag != os.O_RDONLY:
		err = l.advance(has)
	}
	if err != nil {
		return nil, errors.Join(err, l.f.Close())
	}
	return l, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
