package automaton

import "encoding/binary"

// set is a set of small numbers, one bit for each.
type set []uint64

func (s set) add(i uint32)      { s[i/64] |= 1 << (i % 64) }
func (s set) has(i uint32) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s set) join(other set) {
	for w := range s {
		s[w] |= other[w]
	}
}

func (s set) meets(other set) bool {
	for w := range s {
		if s[w]&other[w] != 0 {
			return true
		}
	}
	return false
}

// appendTo appends the set as bytes.
func (s set) appendTo(b []byte) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}
