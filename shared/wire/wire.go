// Package wire reads the fields of protocol buffers, for messages of the quota service and
// for the proxy's metadata.
//
// Its invariant: whatever the bytes, reading ends and copies nothing. It knows no messages.
package wire

import "errors"

// How a field is written. Groups, which protobuf has given up, are refused.
const (
	Varint  = 0
	Fixed64 = 1
	Bytes   = 2
	Fixed32 = 5
)

// Why bytes are not a message.
var (
	ErrCut = errors.New("the message ends inside a field")
	ErrTag = errors.New("a field has no number or a wire type that does not exist")
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
	if f.ID, f.Wire = key>>3, byte(key&7); f.ID == 0 || f.ID >= 1<<29 {
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
