package keyed

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

var le = binary.LittleEndian

const (
	// pageKeyBytes is the length of a page's key, which no other key has;
	// its last eight bytes are the page's index in hexadecimal.
	pageKeyBytes = 15
	// chunkBytes is about how much memory a store takes at once.
	chunkBytes = 32 << 10
	// written is the cas of every value: under the shard's lock nobody else
	// writes between a read and its write.
	written uint32 = 1
)

// store is a shard's shared data. It hands out its own bytes and takes them
// back as written, which its shard's lock makes safe. Pages lie in chunks
// that come into being with the first write to one of theirs.
type store struct {
	few map[string][]byte // the directory and the seed

	empty     []byte // what a page holds before it is written
	chunks    [][]byte
	chunkBits int
	chunkSize uint64 // bytes of a chunk, as the allocator rounds it up
	made      uint64 // chunks that exist

	scratch  []byte // what a page is changed in that is not written yet, or not at all
	readOnly bool   // Get hands out a copy
	walking  bool   // Get hands out only pages that were written
}

// prepare makes room for that many pages that look like empty.
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
	case b != nil && b[0] != 0: // a written page begins with its format's version
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

// Set makes value the key's. The bytes that Get has handed out are there
// already.
func (s *store) Set(key, value []byte, _ uint32) state.Status {
	if len(key) != pageKeyBytes {
		s.few[string(key)] = slices.Clone(value)
		return state.OK
	}
	if s.empty == nil { // see newShard
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
