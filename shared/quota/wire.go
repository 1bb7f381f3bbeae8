package quota

import (
	"encoding/binary"
	"errors"

	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// Why the fields are not a message.
var (
	errType   = errors.New("a field has another wire type than its message says")
	errRange  = errors.New("a number does not fit its field")
	errSize   = errors.New("a key or counter has not 16 bytes, or a text is too long or not UTF-8")
	errBounds = errors.New("a list is empty or too long")
	errLong   = errors.New("the message is longer than 64 KiB")
)

// The numbers of all fields are below 16, so a tag is one byte.
func tag(number, kind byte) byte { return number<<3 | kind }

// appendNumber leaves 0 out, as proto3 does.
func appendNumber(b []byte, number byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, tag(number, wire.Varint)), v)
}

func appendBool(b []byte, number byte, v bool) []byte {
	if !v {
		return b
	}
	return append(b, tag(number, wire.Varint), 1)
}

func appendKey(b []byte, number byte, key *[16]byte) []byte {
	return append(append(b, tag(number, wire.Bytes), 16), key[:]...)
}

// open begins a message within a message, and returns where its length belongs.
func open(b []byte, number byte) (_ []byte, at int) {
	b = append(b, tag(number, wire.Bytes), 0)
	return b, len(b) - 1
}

// closed writes the length of the message that open began. Almost all lengths
// take the one byte that is there; the message moves for a longer one.
func closed(b []byte, at int) []byte {
	n := len(b) - at - 1
	if n < 0x80 {
		b[at] = byte(n)
		return b
	}
	var length [5]byte
	long := binary.AppendUvarint(length[:0], uint64(n))
	b = append(b, long[1:]...)
	copy(b[at+len(long):], b[at+1:at+1+n])
	copy(b[at:], long)
	return b
}

type field = wire.Field[[]byte]

// eachField calls set for each field of a message.
func eachField(b []byte, set func(field) error) error {
	for len(b) > 0 {
		f, err := wire.Cut(&b)
		if err != nil {
			return err
		}
		if err := set(f); err != nil {
			return err
		}
	}
	return nil
}

// read puts a number of at most bound into its field.
func read[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](f field, to *T, bound uint64) error {
	switch {
	case f.Wire != wire.Varint:
		return errType
	case f.Number > bound:
		return errRange
	}
	*to = T(f.Number)
	return nil
}

func readUint32(f field, to *uint32) error { return read(f, to, 1<<32-1) }

func readUint64(f field, to *uint64) error { return read(f, to, 1<<64-1) }

func readFixed64(f field, to *uint64) error {
	if f.Wire != wire.Fixed64 {
		return errType
	}
	*to = binary.LittleEndian.Uint64(f.Bytes)
	return nil
}

func readInt64(f field, to *int64) error { return read(f, to, 1<<64-1) }

func readBool(f field, to *bool) error {
	var n uint64
	err := read(f, &n, 1<<64-1)
	*to = n != 0
	return err
}

func readKey(f field, to *[16]byte) error {
	switch {
	case f.Wire != wire.Bytes:
		return errType
	case len(f.Bytes) != len(to):
		return errSize
	}
	copy(to[:], f.Bytes)
	return nil
}

// more returns s with one more element, which may hold what it held before: its
// slices are used again.
func more[T any](s []T) []T {
	if len(s) < cap(s) {
		return s[:len(s)+1]
	}
	var zero T
	return append(s, zero)
}

// item makes room for one more of at most bound messages in a list.
func item[T any](f field, list *[]T, bound int) (*T, error) {
	switch {
	case f.Wire != wire.Bytes:
		return nil, errType
	case len(*list) >= bound:
		return nil, errBounds
	}
	*list = more(*list)
	return &(*list)[len(*list)-1], nil
}
