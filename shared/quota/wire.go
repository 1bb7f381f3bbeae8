package quota

import "errors"

// The wire types of protobuf that the messages use. Groups, which protobuf has
// given up, are refused.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// Why bytes are not a message.
var (
	errCut    = errors.New("the message ends inside a field")
	errTag    = errors.New("a field has no number or a wire type that does not exist")
	errType   = errors.New("a field has another wire type than its message says")
	errRange  = errors.New("a number does not fit its field")
	errSize   = errors.New("a key or counter has not 16 bytes, or a text is too long or not UTF-8")
	errBounds = errors.New("a list is empty or too long")
	errLong   = errors.New("the message is longer than 64 KiB")
)

func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// The numbers of all fields are below 16, so a tag is one byte.
func tag(number, wire byte) byte { return number<<3 | wire }

// appendNumber leaves 0 out, as proto3 does.
func appendNumber(b []byte, number byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return appendVarint(append(b, tag(number, wireVarint)), v)
}

func appendBool(b []byte, number byte, v bool) []byte {
	if !v {
		return b
	}
	return append(b, tag(number, wireVarint), 1)
}

func appendKey(b []byte, number byte, key *[16]byte) []byte {
	return append(append(b, tag(number, wireBytes), 16), key[:]...)
}

// open begins a message within a message, and returns where its length belongs.
func open(b []byte, number byte) (_ []byte, at int) {
	b = append(b, tag(number, wireBytes), 0)
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
	long := appendVarint(length[:0], uint64(n))
	b = append(b, long[1:]...)
	copy(b[at+len(long):], b[at+1:at+1+n])
	copy(b[at:], long)
	return b
}

// field is one field of a message. What it holds is in number or in bytes.
type field struct {
	id     uint64
	wire   byte
	number uint64
	bytes  []byte
}

// eachField calls set for each field of a message.
func eachField(b []byte, set func(field) error) error {
	for len(b) > 0 {
		f, n, err := readField(b)
		if err != nil {
			return err
		}
		if err := set(f); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// readField reads the field at the beginning of b, which has n bytes.
func readField(b []byte) (f field, n int, err error) {
	key, n := varint(b)
	if n == 0 {
		return f, 0, errCut
	}
	if f.id, f.wire = key>>3, byte(key&7); f.id == 0 || f.id >= 1<<29 {
		return f, 0, errTag
	}
	rest := b[n:]
	size := 0
	switch f.wire {
	case wireVarint:
		if f.number, size = varint(rest); size == 0 {
			return f, 0, errCut
		}
		return f, n + size, nil
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		length, at := varint(rest)
		if at == 0 {
			return f, 0, errCut
		}
		n, rest = n+at, rest[at:]
		if length > uint64(len(rest)) {
			return f, 0, errCut
		}
		size = int(length) // fits: it is no more than the rest
	default:
		return f, 0, errTag
	}
	if size > len(rest) {
		return f, 0, errCut
	}
	f.bytes = rest[:size]
	return f, n + size, nil
}

// varint reads a number of n bytes; n is 0 where b does not begin with one.
func varint(b []byte) (v uint64, n int) {
	for i, c := range b[:min(len(b), 10)] {
		if i == 9 && c > 1 {
			return 0, 0
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// read puts a number of at most bound into its field.
func read[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](f field, to *T, bound uint64) error {
	switch {
	case f.wire != wireVarint:
		return errType
	case f.number > bound:
		return errRange
	}
	*to = T(f.number)
	return nil
}

func readUint32(f field, to *uint32) error { return read(f, to, 1<<32-1) }

func readInt64(f field, to *int64) error { return read(f, to, 1<<64-1) }

func readBool(f field, to *bool) error {
	var n uint64
	err := read(f, &n, 1<<64-1)
	*to = n != 0
	return err
}

func readKey(f field, to *[16]byte) error {
	switch {
	case f.wire != wireBytes:
		return errType
	case len(f.bytes) != len(to):
		return errSize
	}
	copy(to[:], f.bytes)
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
	case f.wire != wireBytes:
		return nil, errType
	case len(*list) >= bound:
		return nil, errBounds
	}
	*list = more(*list)
	return &(*list)[len(*list)-1], nil
}
