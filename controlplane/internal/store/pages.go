package store

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"go.etcd.io/bbolt"
)

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

// follow reads a page, those that overflow from it and those under it.
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
		e := page[headerBytes+i*elementBytes:]
		a, b, c := int(order.Uint32(e)), int(order.Uint32(e[4:])), int(order.Uint32(e[8:]))
		if order.Uint16(page[8:]) == branchPage {
			_ = e[a : a+b]
			p.follow(int(order.Uint64(e[8:])))
			continue
		}
		value := e[b+c:][:order.Uint32(e[12:])]
		if a&bucketFlag == 0 {
			continue
		}
		if root := int(order.Uint64(value)); root != 0 {
			p.follow(root)
		} else {
			p.elements(value[headerBytes:])
		}
	}
}
