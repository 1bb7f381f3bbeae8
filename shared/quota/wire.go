package quota

import (
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// Why the fields are not a message.
var (
	errType   = errors.New("a field has another wire type than its message says")
	errRange  = errors.New("a number does not fit its field")
	errSize   = errors.New("a key or counter has not 16 bytes, or a text is too long or not UTF-8")
	errBounds = errors.New("a list is too long")
	errNeeds  = errors.New("a key, a counter, or all windows of a definition or parts of an ask are missing")
	errLong   = errors.New("the message is longer than 64 KiB")
)

const (
	max32 = 1<<32 - 1
	max64 = 1<<64 - 1
)

// coder goes over the fields of a message, so that each message says once which fields it has:
// it appends them all, of a message that others may read meanwhile, or it has each take what was
// read for it. The first time it goes over a message that is read, fields that take nothing
// forget what they held.
type coder struct {
	frame
	outer [3]frame // that it is within
	depth int
	err   error
	b     []byte // what was appended
	f     wire.Field[[]byte]
	took  bool // a field was taken since next
}

// frame is a message that is gone over.
type frame struct {
	mode  mode
	fresh bool   // it has not been gone over yet
	rest  []byte // what is to be read
	at    int    // in b: where its length belongs
	item  int    // of a list in it, that is gone over or was last
	seen  uint16 // numbers of fields that were read, a bit each
	needs uint16 // of those that must be there
}

type mode uint8

const (
	appending mode = iota
	first
	reading
)

func reader(b []byte) coder {
	c := coder{frame: frame{mode: first, fresh: true, rest: b}}
	if len(b) > MaxMessageBytes {
		c.err = errLong
	}
	return c
}

// next reports whether the fields of a message are to be gone over, once more. Fields that
// were written in their order are read in one go.
//
//go:noinline // as number
func (c *coder) next() bool {
	switch {
	case c.fresh && c.mode == appending:
		c.fresh = false
		return true
	case c.mode == appending:
		c.close()
		return false
	case c.fresh:
		c.fresh = false
		c.cut()
	default:
		c.mode = reading
		if !c.took { // a field of a later release
			c.cut()
		}
		if c.f.ID == 0 {
			c.leave()
			return false
		}
	}
	c.took = false
	return c.err == nil
}

// cut cuts off the next field; its ID is 0 where there is none.
func (c *coder) cut() {
	c.took, c.f.ID = true, 0
	if c.err == nil && len(c.rest) > 0 {
		c.f, c.err = wire.Cut(&c.rest)
	}
}

// reads reports whether the field was read, which must be written so.
func (c *coder) reads(id, kind byte) bool {
	if c.mode == appending || c.f.ID != uint64(id) || c.err != nil {
		return false
	}
	if c.f.Wire != kind {
		c.err = errType
	}
	c.seen |= 1 << id
	return c.err == nil
}

// The numbers of all fields are below 16, so a tag is one byte.
func (c *coder) tag(id, kind byte) { c.b = append(c.b, id<<3|kind) }

// number leaves 0 out, as proto3 does.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](c *coder, id byte, n *T, bound uint64) {
	if *n == 0 && c.mode == appending {
		return
	}
	if v := c.number(id, uint64(*n), bound); c.mode != appending {
		*n = T(v)
	}
}

//go:noinline // the filter would hold it sixty times
func (c *coder) number(id byte, n, bound uint64) uint64 {
	switch {
	case c.mode == appending:
		c.tag(id, wire.Varint)
		c.b = binary.AppendUvarint(c.b, n)
	case !c.reads(id, wire.Varint):
		if c.mode == first {
			return 0
		}
	case c.f.Number > bound:
		c.err = errRange
	default:
		n = c.f.Number
		c.cut()
	}
	return n
}

func (c *coder) u32(id byte, n *uint32) {
	if *n != 0 || c.mode != appending {
		c.any32(id, n)
	}
}

//go:noinline // as number
func (c *coder) any32(id byte, n *uint32) {
	if v := c.number(id, uint64(*n), max32); c.mode != appending {
		*n = uint32(v)
	}
}

func (c *coder) flag(id byte, set *bool) {
	if *set || c.mode != appending {
		c.anyFlag(id, set)
	}
}

//go:noinline // as number
func (c *coder) anyFlag(id byte, set *bool) {
	n := uint64(0)
	if *set {
		n = 1
	}
	if n = c.number(id, n, max64); c.mode != appending {
		*set = n != 0
	}
}

//go:noinline // as number
func (c *coder) fixed64(id byte, n *uint64) {
	switch {
	case c.mode == appending && *n != 0:
		c.tag(id, wire.Fixed64)
		c.b = binary.LittleEndian.AppendUint64(c.b, *n)
	case c.reads(id, wire.Fixed64):
		*n = binary.LittleEndian.Uint64(c.f.Bytes)
		c.cut()
	case c.mode == first:
		*n = 0
	}
}

func (c *coder) text(id byte, s *string, maxBytes int) {
	switch {
	case c.mode == appending && *s != "":
		c.tag(id, wire.Bytes)
		c.b = append(binary.AppendUvarint(c.b, uint64(len(*s))), *s...)
	case !c.reads(id, wire.Bytes):
		if c.mode == first {
			*s = ""
		}
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
	case c.mode == appending:
		c.tag(id, wire.Bytes)
		c.b = append(append(c.b, 16), key[:]...)
	case !c.reads(id, wire.Bytes):
		if c.mode == first {
			*key = [16]byte{}
		}
	case len(c.f.Bytes) != len(key):
		c.err = errSize
	default:
		copy(key[:], c.f.Bytes)
		c.cut()
	}
}

// list begins a list of messages, which item goes over.
func (c *coder) list() { c.item = -1 }

// index is that of the message in its list.
func (c *coder) index() int { return c.outer[c.depth-1].item }

// item goes to the next message of a list, until next is over. It has made room for one that is
// read, which may hold what it held before: its slices are used again.
func item[T any](c *coder, id byte, list *[]T, most int, needs uint16) bool {
	if c.mode == first && c.item < 0 {
		*list = (*list)[:0]
	}
	more := c.enter(id, len(*list), most, needs)
	if more && c.mode != appending {
		*list = slices.Grow(*list, 1)[:c.index()+1]
	}
	return more
}

// enter is item for a list of n.
//
//go:noinline // as number
func (c *coder) enter(id byte, n, most int, needs uint16) bool {
	inner := frame{fresh: true}
	switch {
	case c.mode == appending:
		if c.item++; c.item == n {
			return false
		}
		c.tag(id, wire.Bytes)
		inner.at = len(c.b)
		c.b = append(c.b, 0)
	case !c.reads(id, wire.Bytes):
		return false
	case n >= most:
		c.err = errBounds
		return false
	default:
		c.item = n
		inner.mode, inner.rest, inner.needs = first, c.f.Bytes, needs
	}
	c.outer[c.depth], c.frame = c.frame, inner
	c.depth++
	return true
}

// leave goes back to the message around one that was read.
func (c *coder) leave() {
	if c.err == nil && c.seen&c.needs != c.needs {
		c.err = errNeeds
	}
	if c.depth > 0 {
		c.depth--
		c.frame = c.outer[c.depth]
		c.cut()
	}
}

// close goes back to the message around one that was appended. Almost all lengths take the one
// byte that is there; the message moves for a longer one.
func (c *coder) close() {
	at := c.at
	c.depth--
	c.frame = c.outer[c.depth]
	n := len(c.b) - at - 1
	if n < 0x80 {
		c.b[at] = byte(n)
		return
	}
	var length [5]byte
	long := binary.AppendUvarint(length[:0], uint64(n))
	c.b = append(c.b, long[1:]...)
	copy(c.b[at+len(long):], c.b[at+1:at+1+n])
	copy(c.b[at:], long)
}
