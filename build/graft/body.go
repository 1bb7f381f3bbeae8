package graft

import "encoding/binary"

// The instructions that grafts are written in.
const (
	opIf        = 0x04
	opEnd       = 0x0b
	opReturn    = 0x0f
	opCall      = 0x10
	opDrop      = 0x1a
	opLocal     = 0x20
	opSetLocal  = 0x21
	opTee       = 0x22
	opGlobal    = 0x23
	opSetGlobal = 0x24
	opLoad      = 0x28
	opStore     = 0x36
	opI32Const  = 0x41
	opI32LeU    = 0x4d
	opI32GeU    = 0x4f
	opI32Add    = 0x6a
	opI32And    = 0x71
	opI32Shl    = 0x74
)

// body is the code of a function, all of whose values are i32. Its methods
// append an instruction each.
type body struct{ code []byte }

func (b *body) op(op byte) *body {
	b.code = append(b.code, op)
	return b
}

func (b *body) numbered(op byte, n uint32) *body {
	b.code = binary.AppendUvarint(append(b.code, op), uint64(n))
	return b
}

func (b *body) local(n uint32) *body     { return b.numbered(opLocal, n) }
func (b *body) tee(n uint32)             { b.numbered(opTee, n) }
func (b *body) global(n uint32) *body    { return b.numbered(opGlobal, n) }
func (b *body) setGlobal(n uint32) *body { return b.numbered(opSetGlobal, n) }
func (b *body) call(n uint32) *body      { return b.numbered(opCall, n) }

// load and store are of the address on the stack and an offset; 2 says that the
// address is a multiple of 4.
func (b *body) load(offset uint32) *body { return b.numbered(opLoad, 2).offset(offset) }
func (b *body) store(offset uint32)      { b.numbered(opStore, 2).offset(offset) }

func (b *body) offset(n uint32) *body {
	b.code = binary.AppendUvarint(b.code, uint64(n))
	return b
}

// i32 is a constant, in signed LEB128.
func (b *body) i32(v int32) *body {
	b.code = append(b.code, opI32Const)
	for {
		low := byte(v & 0x7f)
		v >>= 7
		if v == 0 && low&0x40 == 0 || v == -1 && low&0x40 != 0 {
			b.code = append(b.code, low)
			return b
		}
		b.code = append(b.code, low|0x80)
	}
}

// when writes what is done if the value on the stack is not 0.
func (b *body) when(then func()) {
	const noResult = 0x40
	b.code = append(b.code, opIf, noResult)
	then()
	b.code = append(b.code, opEnd)
}
