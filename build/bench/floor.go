package main

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// floor is the least module that does what a rate limit has to do on the host's
// side: on each request it reads the clock and a header, reads a shared value
// and sets it by compare-and-swap. Nothing is computed in between, so that what
// it costs is the ABI's price for those four calls.
//
// It is put together here, instruction by instruction: no compiler for it, and
// no runtime in it.
func floor() []byte {
	const (
		header, headerLen = 0, len(keyHeader)
		key, keyLen       = 32, len(floorKey)
		now               = 64 // and the record, which begins with it
		recordLen         = 40
		answers           = 128 // header: address, size; value: address, size, cas
		arena             = 4096
	)
	// Types: by their numbers below.
	const (
		oneToOne = iota
		twoToOne
		twoToNone
		threeToOne
		fiveToOne
		none
	)
	functionType := func(params, results int) []byte {
		return slices.Concat([]byte{0x60}, vector(slices.Repeat([]byte{i32}, params)), vector(slices.Repeat([]byte{i32}, results)))
	}
	imported := func(name string, typ byte) []byte {
		return slices.Concat(text("env"), text(name), []byte{0x00, typ})
	}
	const clock, getHeader, getShared, setShared, defined = 0, 1, 2, 3, 4

	callback := slices.Concat(
		constant(arena), []byte{globalSet, 0},
		constant(now), []byte{call, clock, drop},
		constant(0), constant(header), constant(headerLen), constant(answers), constant(answers+4), []byte{call, getHeader, drop},
		constant(key), constant(keyLen), constant(answers+8), constant(answers+12), constant(answers+16), []byte{call, getShared, drop},
		constant(key), constant(keyLen), constant(now), constant(recordLen), constant(answers+16), []byte{i32Load, 2, 0}, []byte{call, setShared, drop},
		constant(0))
	// The host asks for memory for each value that it returns; the arena is
	// empty again with the next request.
	allocate := slices.Concat(
		[]byte{globalGet, 0},
		[]byte{globalGet, 0, localGet, 0}, constant(7), []byte{i32Add}, constant(-8), []byte{i32And, i32Add, globalSet, 0})
	functions := []struct {
		name string
		typ  byte
		body []byte
	}{
		{"proxy_abi_version_0_2_1", none, nil},
		{"proxy_on_memory_allocate", oneToOne, allocate},
		{"proxy_on_vm_start", twoToOne, constant(1)},
		{"proxy_on_configure", twoToOne, constant(1)},
		{"proxy_on_context_create", twoToNone, nil},
		{"proxy_on_request_headers", threeToOne, callback},
	}
	var types, exports, bodies [][]byte
	exports = append(exports, append(text("memory"), 0x02, 0))
	for i, f := range functions {
		types = append(types, []byte{f.typ})
		exports = append(exports, append(text(f.name), 0x00, byte(defined+i)))
		bodies = append(bodies, vector(slices.Concat([]byte{0}, f.body, []byte{end})))
	}
	data := func(at int, value string) []byte {
		return slices.Concat([]byte{0}, constant(at), []byte{end}, text(value))
	}
	return slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, functionType(1, 1), functionType(2, 1), functionType(2, 0), functionType(3, 1), functionType(5, 1), functionType(0, 0)),
		section(2,
			imported("proxy_get_current_time_nanoseconds", oneToOne),
			imported("proxy_get_header_map_value", fiveToOne),
			imported("proxy_get_shared_data", fiveToOne),
			imported("proxy_set_shared_data", fiveToOne)),
		section(3, types...),
		section(5, []byte{0, 2}), // two pages of memory
		section(6, slices.Concat([]byte{i32, 1}, constant(arena), []byte{end})), // the arena's end, mutable
		section(7, exports...),
		section(10, bodies...),
		section(11, data(header, keyHeader), data(key, floorKey)))
}

const floorKey = "floor/user"

// Of the binary format, as much as the floor needs.
const (
	i32       = 0x7f
	end       = 0x0b
	call      = 0x10
	drop      = 0x1a
	localGet  = 0x20
	globalGet = 0x23
	globalSet = 0x24
	i32Load   = 0x28
	i32Const  = 0x41
	i32Add    = 0x6a
	i32And    = 0x71
)

func constant(n int) []byte {
	out := []byte{i32Const}
	for {
		low := byte(n & 0x7f)
		n >>= 7
		if n == 0 && low&0x40 == 0 || n == -1 && low&0x40 != 0 {
			return append(out, low)
		}
		out = append(out, low|0x80)
	}
}

func vector(items []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(items))), items...)
}

func text(s string) []byte { return vector([]byte(s)) }

func section(id byte, items ...[]byte) []byte {
	content := append(binary.AppendUvarint(nil, uint64(len(items))), bytes.Join(items, nil)...)
	return append([]byte{id}, vector(content)...)
}
