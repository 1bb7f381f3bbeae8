package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
)

// checkPages checks the structure of a bbolt file: every page that can be reached
// lies in the file, is reached once and is not free, and keys are in order. bbolt
// relies on that, and so in part does its own check: it would follow a loop of
// pages for ever, and allocate whatever a wrong count says.
// The layout is that of bbolt's version 2:
//
//	page    id u64, flags u16, count u16, overflow u32; count elements, their data
//	branch  data's place u32, key's length u32, child u64
//	leaf    flags u32, data's place u32, key's length u32, value's length u32
//	bucket  a leaf's value: root u64, sequence u64; where root is 0, a page follows
//	meta    magic u32, version u32, page size u32, flags u32, root u64,
//	        sequence u64, free list u64, end u64, transaction u64, FNV-1a u64
func checkPages(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p := pages{f: f, reached: map[uint64]bool{}}
	m, err := p.meta(info.Size())
	if err != nil {
		return err
	}
	if err := p.free(m.freelist); err != nil {
		return err
	}
	if err := p.tree(m.root, nil, nil, 0); err != nil {
		return err
	}
	return p.apart()
}

const (
	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	headerBytes  = 16
	elementBytes = 16
	bucketFlag   = 0x01

	// maxDepth is far more levels than a file of any size has.
	maxDepth = 40
)

var order = binary.NativeEndian

type pages struct {
	f       io.ReaderAt
	size    uint64 // of a page
	end     uint64 // the first page that does not exist
	reached map[uint64]bool
	runs    []run
}

// run is a page with those that overflow from it.
type run struct{ id, n uint64 }

type metaPage struct{ root, freelist, end, transaction uint64 }

func damage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}

func (p *pages) read(at, n uint64) ([]byte, error) {
	b := make([]byte, n)
	if _, err := p.f.ReadAt(b, int64(at)); err != nil {
		return nil, damage("read at %d: %w", at, err)
	}
	return b, nil
}

// meta reads the newer of the two meta pages that are whole.
func (p *pages) meta(fileSize int64) (newest metaPage, err error) {
	const metaBytes, magic, version = 56, 0xED0CDAED, 2
	found := false
	// The second one is at the page size, which stands in the first one.
	for shift := -1; shift <= 6; shift++ {
		at := uint64(0)
		if shift >= 0 {
			at = 1024 << shift
		}
		b, err := p.read(at, headerBytes+metaBytes+8)
		if err != nil {
			continue // the file ends before it
		}
		b = b[headerBytes:]
		h := fnv.New64a()
		_, _ = h.Write(b[:metaBytes])
		size := uint64(order.Uint32(b[8:]))
		if order.Uint32(b) != magic || order.Uint32(b[4:]) != version || order.Uint64(b[metaBytes:]) != h.Sum64() ||
			at > 0 && size != at || p.size > 0 && size != p.size {
			continue
		}
		m := metaPage{order.Uint64(b[16:]), order.Uint64(b[32:]), order.Uint64(b[40:]), order.Uint64(b[48:])}
		if !found || m.transaction > newest.transaction {
			newest, p.size, found = m, size, true
		}
	}
	if !found || p.size < 1024 || p.size > 64<<10 {
		return newest, damage("it has no meta page")
	}
	p.end = newest.end
	if fileSize < 0 || newest.end > uint64(fileSize)/p.size {
		return newest, damage("%d bytes are left of at least %d pages of %d", fileSize, newest.end, p.size)
	}
	p.runs = []run{{0, 2}}
	return newest, nil
}

// page reads a page's header and marks the page as used.
func (p *pages) page(id uint64, kinds ...uint16) (kind uint16, count, room uint64, err error) {
	if id < 2 || id >= p.end {
		return 0, 0, 0, damage("page %d does not exist", id)
	}
	if p.reached[id] {
		return 0, 0, 0, damage("page %d is in use twice", id)
	}
	p.reached[id] = true
	b, err := p.read(id*p.size, headerBytes)
	if err != nil {
		return 0, 0, 0, err
	}
	kind, count = order.Uint16(b[8:]), uint64(order.Uint16(b[10:]))
	n := 1 + uint64(order.Uint32(b[12:]))
	if order.Uint64(b) != id || !slices.Contains(kinds, kind) || n > p.end-id {
		return 0, 0, 0, damage("page %d is overwritten", id)
	}
	p.runs = append(p.runs, run{id, n})
	return kind, count, n * p.size, nil
}

// free reads the list of free pages.
func (p *pages) free(id uint64) error {
	const none = 1<<64 - 1
	if id == none {
		return nil
	}
	_, count, room, err := p.page(id, freelistPage)
	if err != nil {
		return err
	}
	at := id*p.size + headerBytes
	room -= headerBytes
	if count == 0xFFFF { // the first number is the count
		b, err := p.read(at, 8)
		if err != nil {
			return err
		}
		count, at, room = order.Uint64(b), at+8, room-8
	}
	if count > room/8 || count > p.end {
		return damage("the list of free pages is longer than its pages")
	}
	b, err := p.read(at, count*8)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[8:] {
		id := order.Uint64(b)
		if id < 2 || id >= p.end {
			return damage("free page %d does not exist", id)
		}
		p.runs = append(p.runs, run{id, 1})
	}
	return nil
}

// tree checks the pages from id down. Their keys must be from low to below high;
// nil is no bound.
func (p *pages) tree(id uint64, low, high []byte, depth int) error {
	kind, count, room, err := p.page(id, branchPage, leafPage)
	if err != nil {
		return err
	}
	if depth > maxDepth || kind == branchPage && count == 0 {
		return damage("page %d is overwritten", id)
	}
	all := section{p, id * p.size, room}
	keys, elements, err := all.elements(kind, count)
	if err != nil {
		return fmt.Errorf("%w in page %d", err, id)
	}
	for i, k := range keys {
		if bytes.Compare(k, low) < 0 || i > 0 && bytes.Compare(k, keys[i-1]) <= 0 || high != nil && bytes.Compare(k, high) >= 0 {
			return damage("the keys of page %d are not in order", id)
		}
		e := elements[i*elementBytes:]
		switch {
		case kind == branchPage:
			next := high
			if i+1 < len(keys) {
				next = keys[i+1]
			}
			err = p.tree(order.Uint64(e[8:]), k, next, depth+1)
		case order.Uint32(e)&bucketFlag != 0:
			at := uint64(i*elementBytes) + headerBytes + uint64(order.Uint32(e[4:])) + uint64(len(k))
			err = all.bucket(at, uint64(order.Uint32(e[12:])), depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// section is the place of a page with its overflow, or of a page inside a value.
type section struct {
	p        *pages
	at, room uint64
}

// elements reads the keys of a page, and checks that its values are inside it.
func (s section) elements(kind uint16, count uint64) (keys [][]byte, elements []byte, err error) {
	if headerBytes+count*elementBytes > s.room {
		return nil, nil, damage("%d entries", count)
	}
	if elements, err = s.p.read(s.at+headerBytes, count*elementBytes); err != nil {
		return nil, nil, err
	}
	used := uint64(0)
	for i := range count {
		e := elements[i*elementBytes:]
		place, length, value := uint64(order.Uint32(e)), uint64(order.Uint32(e[4:])), uint64(0)
		if kind == leafPage {
			place, length, value = length, uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		}
		place += headerBytes + i*elementBytes
		// Entries never overlap, so all of them together fit too, and this never
		// reads more than the file.
		if used += length + value; place+length+value > s.room || used > s.room {
			return nil, nil, damage("entry %d reaches beyond the end", i)
		}
		k, err := s.p.read(s.at+place, length)
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, k)
	}
	return keys, elements, nil
}

// bucket checks a value that is a bucket.
func (s section) bucket(at, length uint64, depth int) error {
	const bucketBytes = 16
	if length < bucketBytes {
		return damage("a bucket of %d bytes", length)
	}
	b, err := s.p.read(s.at+at, bucketBytes)
	if err != nil {
		return err
	}
	if root := order.Uint64(b); root != 0 {
		return s.p.tree(root, nil, nil, depth)
	}
	if length < bucketBytes+headerBytes {
		return damage("a bucket of %d bytes", length)
	}
	inner := section{s.p, s.at + at + bucketBytes, length - bucketBytes}
	if b, err = s.p.read(inner.at, headerBytes); err != nil {
		return err
	}
	if order.Uint16(b[8:]) != leafPage {
		return damage("a bucket is overwritten")
	}
	keys, _, err := inner.elements(leafPage, uint64(order.Uint16(b[10:])))
	if err == nil && !slices.IsSortedFunc(keys, bytes.Compare) {
		err = damage("the keys of a bucket are not in order")
	}
	return err
}

// apart checks that no page is in two runs.
func (p *pages) apart() error {
	slices.SortFunc(p.runs, func(a, b run) int { return cmp.Compare(a.id, b.id) })
	for i := 1; i < len(p.runs); i++ {
		if before := p.runs[i-1]; before.id+before.n > p.runs[i].id {
			return damage("page %d is in use twice", p.runs[i].id)
		}
	}
	return nil
}
