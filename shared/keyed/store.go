package keyed

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/state"
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

	scratch  []byte // a copy of a page that does not exist yet or must not change
	now      func() int64
	readOnly bool // Get returns a copy
	walking  bool // Get finds only pages that were written
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
	if s.empty == nil {
		return nil, 0, state.NotFound
	}
	b := s.page(key)
	switch {
	case b != nil && b[0] != 0: // a written page begins with its format version
		if !s.readOnly {
			return b, written, state.OK
		}
		copy(s.scratch, b)
	case s.walking:
		return nil, 0, state.NotFound
	default:
		copy(s.scratch, s.empty)
	}
	return s.scratch, written, state.OK
}

// Now is the limiter's clock. A goroutine may have waited for the shard's lock since it
// read it.
func (s *store) Now() int64 { return s.now() }

// Monotonic is asked by tables that hold units, of which a limiter has none.
func (s *store) Monotonic() int64 { return s.now() }

// Set stores the value. A page that Get returned is in its place already.
func (s *store) Set(key, value []byte, _ uint32) state.Status {
	if len(key) != pageKeyBytes {
		s.few[string(key)] = slices.Clone(value)
		return state.OK
	}
	if s.empty == nil { // see shard.open
		s.empty = slices.Clone(value)
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
