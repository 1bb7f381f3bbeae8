// Package wire reads and appends the fields of protocol buffers, for messages of the
// quota service and for the proxy's metadata.
//
// Its invariant: whatever the bytes are, reading ends and copies nothing. It knows no
// messages: who reads or appends one names its fields. It must build for wasm: no
// reflection, no fmt.
package wire

import (
	"encoding/binary"
	"errors"
)

// How a field is written. Groups, which protobuf has given up, are refused.
const (
	Varint  = 0
	Fixed64 = 1
	Bytes   = 2
	Fixed32 = 5
)

// Why bytes are not a message.
var (
	ErrCut   = errors.New("the message ends inside a field")
	ErrTag   = errors.New("a field has no number or a wire type that does not exist")
	ErrType  = errors.New("a field has another wire type than its message says")
	ErrRange = errors.New("a number does not fit its field")
)

// Field is one field of a message. What it holds is in Number or in Bytes.
type Field[B string | []byte] struct {
	ID     uint64
	Wire   byte
	Number uint64
	Bytes  B
}

// Cut cuts the first field off a message that is not empty.
func Cut[B string | []byte](message *B) (f Field[B], err error) {
	key, ok := cutVarint(message)
	if !ok {
		return f, ErrCut
	}
	f.ID, f.Wire = key>>3, byte(key&7)
	if f.ID == 0 || f.ID >= 1<<29 {
		return f, ErrTag
	}
	size := uint64(8)
	switch f.Wire {
	case Varint:
		f.Number, ok = cutVarint(message)
		size = 0
	case Fixed64:
	case Fixed32:
		size = 4
	case Bytes:
		size, ok = cutVarint(message)
	default:
		return f, ErrTag
	}
	if !ok || size > uint64(len(*message)) {
		return f, ErrCut
	}
	f.Bytes, *message = (*message)[:size], (*message)[size:]
	return f, nil
}

// cutVarint cuts off a number, and reports whether the message begins with one.
func cutVarint[B string | []byte](message *B) (n uint64, ok bool) {
	b := *message
	for i := 0; i < len(b) && i < 10; i++ {
		c := b[i]
		if i == 9 && c > 1 {
			break
		}
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			*message = b[i+1:]
			return n, true
		}
	}
	return 0, false
}

// Reader reads the fields of one message in the order in which they were written:
//
//	r := wire.NewReader(message)
//	for r.Next() {
//		switch r.ID() {
//		case 1:
//			m.Count = r.Uint32()
//		}
//	}
//	return r.Err()
//
// It skips a field that the switch has no case for. The first error ends it; a read that
// fails returns 0.
type Reader struct {
	field Field[[]byte]
	rest  []byte
	err   error
}

// NewReader returns a reader of the message.
func NewReader(message []byte) Reader { return Reader{rest: message} }

// Next goes to the next field, and reports whether there is one.
func (r *Reader) Next() bool {
	if r.err != nil || len(r.rest) == 0 {
		return false
	}
	r.field, r.err = Cut(&r.rest)
	return r.err == nil
}

// ID is the number of the field.
func (r *Reader) ID() uint64 { return r.field.ID }

// Err is the first error; nil means that all fields were read.
func (r *Reader) Err() error { return r.err }

// Fail ends the reader with the error, unless it is nil or there was one before.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Uint reads a number from 0 to most.
func (r *Reader) Uint(most uint64) uint64 {
	if r.field.Wire != Varint {
		r.Fail(ErrType)
		return 0
	}
	if r.field.Number > most {
		r.Fail(ErrRange)
		return 0
	}
	return r.field.Number
}

// Uint32 reads a number of 32 bits.
func (r *Reader) Uint32() uint32 { return uint32(r.Uint(1<<32 - 1)) }

// Uint64 reads a number of 64 bits.
func (r *Reader) Uint64() uint64 { return r.Uint(1<<64 - 1) }

// Int64 reads an int64, which is written as the uint64 with the same bits.
func (r *Reader) Int64() int64 { return int64(r.Uint64()) }

// Bool reads a bool: every number but 0 is true.
func (r *Reader) Bool() bool { return r.Uint64() != 0 }

// Fixed64 reads a number of 8 bytes.
func (r *Reader) Fixed64() uint64 {
	if r.field.Wire != Fixed64 {
		r.Fail(ErrType)
		return 0
	}
	return binary.LittleEndian.Uint64(r.field.Bytes)
}

// Bytes reads bytes, a text or a message. They share the memory of the message around them.
func (r *Reader) Bytes() []byte {
	if r.field.Wire != Bytes {
		r.Fail(ErrType)
		return nil
	}
	return r.field.Bytes
}

// The functions below append a field, and leave out what is 0, false or empty, as proto3
// does. Field numbers are below 16, so a tag takes one byte.

func appendTag(b []byte, id, wire byte) []byte { return append(b, id<<3|wire) }

// AppendUint appends a number, or an int64 as the uint64 with the same bits.
func AppendUint[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](b []byte, id byte, n T) []byte {
	if n == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, id, Varint), uint64(n))
}

// AppendBool appends a bool.
func AppendBool(b []byte, id byte, is bool) []byte {
	if !is {
		return b
	}
	return append(appendTag(b, id, Varint), 1)
}

// AppendFixed64 appends a number of 8 bytes.
func AppendFixed64(b []byte, id byte, n uint64) []byte {
	if n == 0 {
		return b
	}
	return binary.LittleEndian.AppendUint64(appendTag(b, id, Fixed64), n)
}

// AppendBytes appends bytes or a text.
func AppendBytes[B string | []byte](b []byte, id byte, v B) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.AppendUvarint(appendTag(b, id, Bytes), uint64(len(v)))
	return append(b, v...)
}

// BeginMessage appends the beginning of a message that is a field: its own fields follow,
// then EndMessage with the same start. It is not left out where it is empty.
func BeginMessage(b []byte, id byte) (begun []byte, start int) {
	b = append(appendTag(b, id, Bytes), 0) // the one byte that almost all lengths take
	return b, len(b)
}

// EndMessage sets the length of the message whose fields begin at start. It moves them if
// the length takes more than a byte.
func EndMessage(b []byte, start int) []byte {
	n := len(b) - start
	if n < 0x80 {
		b[start-1] = byte(n)
		return b
	}
	var length [5]byte
	long := binary.AppendUvarint(length[:0], uint64(n))
	b = append(b, long[1:]...) // room
	copy(b[start-1+len(long):], b[start:start+n])
	copy(b[start-1:], long)
	return b
}
