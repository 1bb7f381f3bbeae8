package quota

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

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

const (
	max32 = 1<<32 - 1
	max64 = 1<<64 - 1
)

// coder goes over the fields of a message in one of four ways, so that each message says once
// which fields it has: it appends them all, of a message that others may read meanwhile, or it has them forget what they held, then has the
// one take it that was read, and in the end has them judge whether they may be absent.
type coder struct {
	mode mode
	err  error
	b    []byte // what was appended
	at   int    // in b: where the length of an inner message belongs

	rest []byte // what is to be read
	f    wire.Field[[]byte]
	took bool   // a field was taken since next
	keys uint16 // numbers of keys that were read, a bit each
}

type mode uint8

const (
	appending mode = iota
	appended
	unread
	forgetting
	reading
	judging
)

func reader(b []byte) coder {
	c := coder{mode: unread, rest: b}
	if len(b) > MaxMessageBytes {
		c.err = errLong
	}
	return c
}

// next reports whether the fields are to be gone over, once more. Fields that were written in
// their order are read in one go.
//
//go:noinline // as number
func (c *coder) next() bool {
	switch c.mode {
	case appending:
		c.mode = appended
		return true
	case unread:
		c.mode = forgetting
		return c.err == nil
	case forgetting:
		c.mode = reading
		c.cut()
	case reading:
		if !c.took { // a field of a later release
			c.cut()
		}
	default:
		return false
	}
	if c.took = false; c.f.ID == 0 {
		c.mode = judging
	}
	return c.err == nil
}

// cut cuts off the next field; its ID is 0 where there is none.
func (c *coder) cut() {
	c.took, c.f.ID = true, 0
	if c.err == nil && len(c.rest) > 0 {
		c.f, c.err = wire.Cut(&c.rest)
	}
}

func (c *coder) appends() bool { return c.mode <= appended }

// reads reports whether the field was read, which must be written so.
func (c *coder) reads(id, kind byte) bool {
	if c.mode != reading || c.f.ID != uint64(id) || c.err != nil {
		return false
	}
	if c.f.Wire != kind {
		c.err = errType
	}
	return c.err == nil
}

// The numbers of all fields are below 16, so a tag is one byte.
func (c *coder) tag(id, kind byte) { c.b = append(c.b, id<<3|kind) }

func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](c *coder, id byte, n *T, bound uint64) {
	if v := c.number(id, uint64(*n), bound); !c.appends() {
		*n = T(v)
	}
}

// number leaves 0 out, as proto3 does.
//
//go:noinline // the filter would hold it sixty times
func (c *coder) number(id byte, n, bound uint64) uint64 {
	switch {
	case c.appends():
		if n != 0 {
			c.tag(id, wire.Varint)
			c.b = binary.AppendUvarint(c.b, n)
		}
	case c.mode == forgetting:
		return 0
	case !c.reads(id, wire.Varint):
	case c.f.Number > bound:
		c.err = errRange
	default:
		n = c.f.Number
		c.cut()
	}
	return n
}

//go:noinline // as number
func (c *coder) u32(id byte, n *uint32) { number(c, id, n, max32) }

//go:noinline // as number
func (c *coder) flag(id byte, set *bool) {
	n := uint64(0)
	if *set {
		n = 1
	}
	if n = c.number(id, n, max64); !c.appends() {
		*set = n != 0
	}
}

//go:noinline // as number
func (c *coder) fixed64(id byte, n *uint64) {
	switch {
	case c.appends() && *n != 0:
		c.tag(id, wire.Fixed64)
		c.b = binary.LittleEndian.AppendUint64(c.b, *n)
	case c.mode == forgetting:
		*n = 0
	case c.reads(id, wire.Fixed64):
		*n = binary.LittleEndian.Uint64(c.f.Bytes)
		c.cut()
	}
}

func (c *coder) text(id byte, s *string, maxBytes int) {
	switch {
	case c.appends() && *s != "":
		c.tag(id, wire.Bytes)
		c.b = append(binary.AppendUvarint(c.b, uint64(len(*s))), *s...)
	case c.mode == forgetting:
		*s = ""
	case !c.reads(id, wire.Bytes):
	case len(c.f.Bytes) > maxBytes || !utf8.Valid(c.f.Bytes):
		c.err = errSize
	default:
		*s = string(c.f.Bytes)
		c.cut()
	}
}

// key is never absent.
//
//go:noinline // as number
func (c *coder) key(id byte, key *[16]byte) {
	switch {
	case c.appends():
		c.tag(id, wire.Bytes)
		c.b = append(append(c.b, 16), key[:]...)
	case c.mode == forgetting:
		*key = [16]byte{}
	case c.mode == judging && c.keys&(1<<id) == 0, c.reads(id, wire.Bytes) && len(c.f.Bytes) != len(key):
		c.err = errSize
	case c.reads(id, wire.Bytes):
		copy(key[:], c.f.Bytes)
		c.keys |= 1 << id
		c.cut()
	}
}

// items returns from which message of a list on they are to be gone over. It has made room for
// one that is read, which may hold what it held before: its slices are used again.
func items[T any](c *coder, id byte, list *[]T, least, most int) (from int) {
	n := len(*list)
	switch {
	case c.appends():
		return 0
	case c.mode == forgetting:
		*list = (*list)[:0]
	case !c.hasItem(id, n, least, most):
	case n < cap(*list):
		*list = (*list)[:n+1]
	default:
		var zero T
		*list = append(*list, zero)
	}
	return n
}

// hasItem reports whether one more was read for a list of n.
//
//go:noinline // as number
func (c *coder) hasItem(id byte, n, least, most int) bool {
	if c.mode == judging && n < least || c.reads(id, wire.Bytes) && n >= most {
		c.err = errBounds
	}
	return c.reads(id, wire.Bytes)
}

// inside is the coder of a message within the message, until leave.
//
//go:noinline // as number
func (c *coder) inside(id byte) coder {
	if !c.appends() {
		return coder{mode: unread, rest: c.f.Bytes}
	}
	c.tag(id, wire.Bytes)
	return coder{b: append(c.b, 0), at: len(c.b)}
}

// leave takes an inner message. Almost all lengths take the one byte that is there; the
// message moves for a longer one.
//
//go:noinline // as number
func (c *coder) leave(in *coder) {
	if !c.appends() {
		c.err = in.err
		c.cut()
		return
	}
	c.b = in.b
	n := len(c.b) - in.at - 1
	if n < 0x80 {
		c.b[in.at] = byte(n)
		return
	}
	var length [5]byte
	long := binary.AppendUvarint(length[:0], uint64(n))
	c.b = append(c.b, long[1:]...)
	copy(c.b[in.at+len(long):], c.b[in.at+1:in.at+1+n])
	copy(c.b[in.at:], long)
}
