package record

import "encoding/binary"

const (
	any64      = 1<<64 - 1
	maxInstant = 1<<63 - 1
	maxUnits   = 1<<32 - 1
)

func flag(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// appendNumber appends a number that is not negative.
func appendNumber[T ~uint32 | ~uint64 | ~int64](b []byte, n T) []byte {
	return binary.AppendUvarint(b, uint64(n))
}

// decoder reads a value. The first error ends it; what is read then is 0.
type decoder struct {
	rest []byte
	err  error
}

// must ends the decoder if the value cannot be one.
func (d *decoder) must(holds bool) {
	if d.err == nil && !holds {
		d.err = ErrDamage
	}
}

// next is the next bytes, zeros if there are too few.
func (d *decoder) next(n int) (b [8]byte) {
	d.must(n <= len(d.rest))
	if d.err == nil {
		copy(b[:], d.rest[:n])
		d.rest = d.rest[n:]
	}
	return b
}

func (d *decoder) byte() byte { return d.next(1)[0] }

func (d *decoder) uint64() uint64 {
	b := d.next(8)
	return binary.LittleEndian.Uint64(b[:])
}

// number reads a number from 0 to most.
func (d *decoder) number(most uint64) uint64 {
	n, size := binary.Uvarint(d.rest)
	d.must(size > 0 && n <= most)
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) signed() int64 {
	n, size := binary.Varint(d.rest)
	d.must(size > 0)
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[size:]
	return n
}
