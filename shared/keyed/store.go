package keyed

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

var le = binary.LittleEndian

const (
	// pageKeyBytes is the length of a page's key; other keys are shorter. The last
	// eight bytes are the page's index in hexadecimal.
	pageKeyBytes = 15
	// chunkBytes is about how much memory a store allocates at once.
	chunkBytes = 32 << 10
	// written is the cas of every value: the shard's lock prevents other writes between
	// a read and its write.
	written uint32 = 1
)

// store is a shard's shared data. Get returns the store's own bytes, and a write to
// them is a write to the store, which the shard's lock makes safe. Pages lie in
// chunks; the first write to a page of a chunk allocates it.
type store struct {
	few map[string][]byte // the directory and the seed

	empty     []byte // a page before it is first written
	chunks    [][]byte
	chunkBits int
	chunkSize uint64 // bytes of a chunk, as the allocator rounds it up
	made      uint64 // number of existing chunks

	scratch []byte // a copy of a page that does not exist yet or must not change
	now     func() int64
	access  access // toChange, except within with
}

// access says what Get returns of pages.
type access uint8

const (
	toChange access = iota // the store's own bytes
	toLook                 // a copy
	toWalk                 // the store's own bytes, but only of pages that were written
)

// with calls a function while Get returns pages for that access.
func (s *store) with(a access, do func()) {
	s.access = a
	defer func() { s.access = toChange }()
	do()
}

// prepare sets the store up for that many pages that begin as empty.
func (s *store) prepare(empty []byte, pages int) {
	s.empty, s.scratch = empty, make([]byte, len(empty))
	for s.chunkBits = 0; len(empty)<<(s.chunkBits+1) <= chunkBytes && 1<<s.chunkBits < pages; s.chunkBits++ {
	}
	s.chunks = make([][]byte, (pages-1)>>s.chunkBits+1)
	s.chunkSize = uint64(allocated(len(empty) << s.chunkBits))
}

// page returns the bytes of a page, nil before its chunk exists.
func (s *store) page(key []byte) []byte {
	index := parseHex(le.Uint64(key[pageKeyBytes-8:]))
	chunk := s.chunks[index>>s.chunkBits]
	if chunk == nil {
		return nil
	}
	at := int(index&(1<<s.chunkBits-1)) * len(s.empty)
	return chunk[at : at+len(s.empty) : at+len(s.empty)]
}

// parseHex reads eight lower-case hexadecimal digits, the first one in the
// lowest byte.
func parseHex(digits uint64) uint32 {
	const each = 0x0101010101010101
	d := digits&(0x0f*each) + 9*(digits>>6&each)
	d = (d<<4 | d>>8) & 0x00ff00ff00ff00ff
	d = (d<<8 | d>>16) & 0x0000ffff0000ffff
	return uint32(d<<16 | d>>32)
}

// Get returns the value of the key.
func (s *store) Get(key []byte) (value []byte, cas uint32, status state.Status) {
	if len(key) != pageKeyBytes {
		value, found := s.few[string(key)]
		if !found {
			return nil, 0, state.NotFound
		}
		return value, written, state.OK
	}
	if s.empty == nil { // before prepare
		return nil, 0, state.NotFound
	}
	b := s.page(key)
	switch {
	case b != nil && b[0] != 0: // a written page begins with its format version
		if s.access != toLook {
			return b, written, state.OK
		}
		copy(s.scratch, b)
	case s.access == toWalk:
		return nil, 0, state.NotFound
	default:
		copy(s.scratch, s.empty)
	}
	return s.scratch, written, state.OK
}

// Now is the limiter's clock. A goroutine may have waited for the shard's lock since it
// read it.
func (s *store) Now() int64 { return s.now() }

// Monotonic is asked by tables that hold units; a limiter has no such table.
func (s *store) Monotonic() int64 { return s.now() }

// Set stores the value. A page that Get returned is in its place already.
func (s *store) Set(key, value []byte, _ uint32) state.Status {
	if len(key) != pageKeyBytes {
		s.few[string(key)] = slices.Clone(value)
		return state.OK
	}
	b := s.page(key)
	if b == nil {
		index := parseHex(le.Uint64(key[pageKeyBytes-8:]))
		s.chunks[index>>s.chunkBits] = make([]byte, len(s.empty)<<s.chunkBits)
		s.made++
		b = s.page(key)
	}
	if &b[0] != &value[0] {
		copy(b, value)
	}
	return state.OK
}

// shard is a share of a limiter's keys, with its own lock.
type shard struct {
	mu     sync.Mutex
	table  *state.Table
	store  store
	key    state.Key // of the current call: its hash, and its windows
	entry  state.Entry
	counts counts
}

// counts are a shard's share of Stats.
type counts struct{ allowed, denied, floorDenied, evicted, full, rebased, blocks uint64 }

// open gives the shard a table for capacity keys.
func (s *shard) open(windows []limit.Window, capacity uint32, now int64) {
	s.store.few = make(map[string][]byte)
	s.key = state.Key{
		Bytes: make([]byte, 8), Limits: state.Limits{Windows: slices.Clone(windows), OfRule: windows},
	}
	random := func(b []byte) { _, _ = rand.Read(b) } // never fails
	tables := state.NewTables(&s.store, random, 0, 0)
	s.table = tables.Table(state.Definition{Windows: windows, Capacity: capacity})

	// All pages are alike before they are first written. The store keeps one for all of
	// them, so that reading one allocates nothing.
	s.read(now) // opens the table
	s.store.prepare(s.table.EmptyPage(), int(page.GeometryFor(windows, capacity).Pages))
}

// read finds the key's entry.
func (s *shard) read(now int64) {
	must("read a key", s.table.Read(&s.entry, s.key, now))
}

// look finds the key's entry and changes nothing.
func (s *shard) look(now int64) {
	s.store.with(toLook, func() { s.read(now) })
}

// must panics if the table fails. That happens only if its bytes have changed since
// it wrote them.
func must(act string, status state.Status) {
	if status != state.OK {
		panic(fmt.Sprintf("keyed: cannot %s: status %d: the counters are damaged", act, status))
	}
}

const (
	// perShard is the smallest capacity of a shard if there are several. With fewer
	// keys, the fixed memory of each shard would outweigh that of its keys.
	perShard = 2048
	// maxShardBits bounds the shards to 64.
	maxShardBits = 6
	// tableBytes bounds the memory of a shard's table besides its pages: directory,
	// seed and their maps.
	tableBytes = 3 << 10
)

// shardBits returns the base-2 logarithm of the number of shards: eight for each
// processor, as long as each has enough keys. Keys are spread evenly over shards and
// over the pages in them, so more shards make no page fuller. A capacity of a few
// keys is exact only in one shard.
func shardBits(capacity uint32) uint {
	bits := uint(0)
	for bits < maxShardBits && 1<<bits < 8*runtime.GOMAXPROCS(0) && capacity>>(bits+1) >= perShard {
		bits++
	}
	return bits
}

// MaxBytes returns an upper bound of the limiter's memory in bytes, whatever keys
// come. The limiter uses about that much once all its pages have been used, and much
// less before.
func (l *Limiter) MaxBytes() int64 { return l.maxBytes }

// bytes returns the memory of the store's existing pages.
func (s *store) bytes() uint64 { return s.made * s.chunkSize }

// allocated returns the bytes that the allocator takes for a request of bytes.
func allocated(bytes int) int { return cap(slices.Grow([]byte(nil), bytes)) }

// allocatedSlice is allocated for a slice of n values that hold pointers. The
// allocator may put a word before them.
func allocatedSlice[T any](n int) int64 {
	return int64(allocated(n*int(reflect.TypeFor[T]().Size()) + 8))
}

// maxBytes bounds the memory that a shard refers to when all its pages exist. It
// includes three more pages, as patterns and scratch, and room to decode the log of
// the entry's key and of another key.
func (s *shard) maxBytes(windows []limit.Window) int64 {
	size := tableBytes + allocatedSlice[[]byte](len(s.store.chunks))
	size += int64(len(s.store.chunks)) * int64(s.store.chunkSize)
	size += 3*int64(allocated(len(s.store.empty))) + 8*int64(len(windows))*int64(reflect.TypeFor[limit.Window]().Size())
	for _, w := range windows {
		if w.Algorithm == limit.SlidingWindowLog {
			size += 3 * limit.MaxLog * 8
		}
	}
	return size
}
