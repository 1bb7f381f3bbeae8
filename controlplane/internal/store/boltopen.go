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
	"slices"
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
	return openDir(dir, false)
}

// openDir opens the store in a directory. With readOnly it changes nothing there.
func openDir(dir string, readOnly bool) (*Bolt, error) {
	file, lastFile := filepath.Join(dir, FileName), filepath.Join(dir, LastName)
	if err := checkRegular(file); err != nil {
		return nil, err
	}
	_, missing := os.Stat(file)
	if _, err := os.Stat(lastFile); err == nil && missing != nil {
		return nil, fmt.Errorf("open %s: %w: it is gone, but %s says that there was one", file, ErrDamaged, lastFile)
	}
	db, err := openFile(file, readOnly)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	b := &boltFile{db: db, batch: db.Batch, change: make(chan struct{})}
	if err := b.compareWithLast(dir, readOnly); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file, err), b.Close())
	}
	return &Bolt{store{b}, b}, nil
}

// compareWithLast compares an open database with the record of acknowledged changes.
func (b *boltFile) compareWithLast(dir string, readOnly bool) (err error) {
	b.last, err = openLast(filepath.Join(dir, LastName), readOnly)
	if err != nil {
		return err
	}
	if err := b.last.check(b.db.position()); err != nil {
		return err
	}
	if !readOnly {
		// A change that was durable but never acknowledged counts from now on. bbolt
		// syncs the file; a new file's name is safe once its directory is.
		if err := errors.Join(b.last.advance(b.db.position()), syncDir(dir)); err != nil {
			return err
		}
	}
	return b.inPlace() // Restore moves the file away while it has it locked
}

// Exposed returns a file of a data directory that everybody on the machine may
// write to, or the directory itself, "" if there is none. It is no reason to
// refuse: volumes of containers are made like that.
func Exposed(dir string) (name string, mode fs.FileMode) {
	for _, name := range []string{dir, filepath.Join(dir, FileName), filepath.Join(dir, LastName)} {
		if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o002 != 0 {
			return name, info.Mode()
		}
	}
	return "", 0
}

// checkRegular refuses links, which may lead to a device or to a file that another
// serve holds under its own name.
func checkRegular(name string) error {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("open %s: not a regular file: the data directory itself may be a link, not what is in it",
			name)
	}
	return nil
}

// database is bbolt's, with its open file.
type database struct {
	*bbolt.DB
	f *os.File
}

// openFile opens a database and checks that it is whole before anything is written.
// The error is ErrHeld where another process has it open.
func openFile(file string, readOnly bool) (*database, error) {
	info, err := os.Stat(file)
	if err == nil && (!info.Mode().IsRegular() || readOnly && info.Size() == 0) {
		return nil, damage("it is empty or not a regular file")
	}
	db := &database{}
	if err := guard(func() error { return db.openWhole(file, readOnly) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openWhole opens a database, and fails if it is not whole.
func (d *database) openWhole(file string, readOnly bool) error {
	if err := d.open(file, readOnly); err != nil {
		return err
	}
	fresh := false
	err := d.read(func(tx *bbolt.Tx) error {
		err := checkPages(tx, d.f)
		first, _ := tx.Cursor().First()
		fresh = first == nil
		return err
	})
	if err == nil && fresh && !readOnly {
		err = d.Update(createBuckets)
	}
	if err != nil {
		return err
	}
	return d.read(checkLayout)
}

func (d *database) open(file string, readOnly bool) (err error) {
	d.DB, err = bbolt.Open(file, 0o600, &bbolt.Options{
		Timeout: lockTimeout, ReadOnly: readOnly, PreLoadFreelist: true,
		OpenFile: func(name string, flag int, mode fs.FileMode) (*os.File, error) {
			d.f, err = os.OpenFile(name, flag, mode)
			return d.f, err
		},
	})
	var system syscall.Errno
	switch {
	case err == nil:
		d.MaxBatchDelay = 2 * time.Millisecond
		return nil
	case errors.As(err, &system):
		return err
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrHeld
	}
	return damage("%w", err)
}

// Close gives up the lock. Closing again does nothing.
func (d *database) Close() (err error) {
	if d.DB != nil {
		err = d.DB.Close()
	}
	_ = d.f.Close() // still open where bbolt made nothing of it
	return err
}

// read reads in a transaction. If the file is overwritten meanwhile, only this
// reading fails.
func (d *database) read(do func(*bbolt.Tx) error) error {
	return guard(func() error { return d.View(do) })
}

func (d *database) view(do func(records) error) error {
	return d.read(func(tx *bbolt.Tx) error { return do(boltRecords(tx)) })
}

// guard makes errors of bbolt's panics over a file that makes no sense to it, and
// of the fault of reading mapped memory beyond the end of a file.
func guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch found := recover().(type) {
		case nil:
		case runtime.Error:
			err = damage("it is cut short or overwritten")
		default:
			err = damage("%v", found)
		}
	}()
	return do()
}

func damage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}

func createBuckets(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	return tx.Bucket([]byte(metaBucket)).Put(formatKey, []byte(format))
}

// checkLayout checks that everything that belongs together is there. Values are
// checked when they are read.
func checkLayout(tx *bbolt.Tx) error {
	r := boltRecords(tx)
	isMissing := func(name string) bool { return tx.Bucket([]byte(name)) == nil }
	if isMissing(metaBucket) {
		return damage("it has no %s", metaBucket)
	}
	// Before the other buckets: another release may have others.
	if err := r.checkFormat(); err != nil {
		return err
	}
	if at := slices.IndexFunc(buckets, isMissing); at >= 0 {
		return damage("it has no %s", buckets[at])
	}
	for _, name := range []string{revisionsBucket, auditBucket} {
		given := r.sequence(name)
		for _, k := range r.keys(name) {
			if len(k) != 8 || binary.BigEndian.Uint64(k) > given {
				return damage("%s go up to %d, and one is %x", name, given, k)
			}
		}
	}
	for _, name := range textBuckets {
		if !slices.EqualFunc(r.keys(name), r.keys(revisionsBucket), bytes.Equal) {
			return damage("parts of some revisions are missing: %s", name)
		}
	}
	return nil
}

func (r records) checkFormat() error {
	switch found := string(r.value(metaBucket, formatKey)); {
	case found != format && found != oldFormat:
		return fmt.Errorf("store format %q is not %s: it was written by another release", found, format)
	case r.value(metaBucket, copyingKey) != nil:
		return errors.New("a copy to this store was cut short: delete what is there, and copy again")
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

const (
	branchPage = 0x01
	bucketFlag = 0x01

	headerBytes  = 16
	elementBytes = 16
)

// checkPages checks the structure of a database with bbolt's own check. That runs in
// a goroutine of its own, where a page number beyond the file ends the process and a
// loop of pages never ends. So follow first reads every page that the check will.
// The layout is that of bbolt's version 2:
//
//	page    id u64, flags u16, count u16, overflow u32; count elements, their data
//	branch  data's place u32, key's length u32, child u64
//	leaf    flags u32, data's place u32, key's length u32, value's length u32
//	bucket  a leaf's value: root u64, sequence u64; where root is 0, a page follows
//
// What reaches beyond the file or its page is a panic, as it is to bbolt; see guard.
func checkPages(tx *bbolt.Tx, f *os.File) error {
	file, err := syscall.Mmap(int(f.Fd()), 0, int(tx.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map it: %w", err)
	}
	defer func() { _ = syscall.Munmap(file) }()
	if _, err := f.ReadAt(make([]byte, 1), tx.Size()-1); err != nil {
		return damage("it is cut short: %w", err)
	}
	p := pages{file, tx.DB().Info().PageSize, map[int]bool{}}
	p.follow(int(tx.Cursor().Bucket().RootPage()))
	for flaw := range tx.Check() {
		err = damage("%w", flaw)
	}
	return err
}

type pages struct {
	file     []byte
	size     int // of a page
	followed map[int]bool
}

// follow reads a page, those that it continues on and those under it.
func (p pages) follow(id int) {
	if p.followed[id] {
		panic(fmt.Sprintf("page %d is in use twice", id))
	}
	p.followed[id] = true
	page := p.file[id*p.size:]
	overflow := int(binary.NativeEndian.Uint32(page[12:]))
	p.elements(page[:(1+overflow)*p.size])
}

func (p pages) elements(page []byte) {
	order := binary.NativeEndian
	for i := range int(order.Uint16(page[10:])) {
		element := page[headerBytes+i*elementBytes:]
		number := func(at int) int { return int(order.Uint32(element[at:])) }
		if order.Uint16(page[8:]) == branchPage {
			place, keyLength := number(0), number(4)
			_ = element[place : place+keyLength]
			p.follow(int(order.Uint64(element[8:])))
			continue
		}
		flags, place := number(0), number(4)
		keyLength, valueLength := number(8), number(12)
		value := element[place+keyLength:][:valueLength]
		if flags&bucketFlag == 0 {
			continue
		}
		if root := int(order.Uint64(value)); root != 0 {
			p.follow(root)
		} else {
			p.elements(value[headerBytes:])
		}
	}
}
