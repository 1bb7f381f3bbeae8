//go:build arena

package main

import "unsafe"

var (
	mallocs int
	arena   [1 << 16]byte
	used    uint32
)

//go:wasmexport malloc
func malloc(size uint32) unsafe.Pointer {
	mallocs++
	if wild {
		var ns int64
		currentTime(unsafe.Pointer(&ns))
	}
	if used+size > uint32(len(arena)) {
		used = 0
	}
	at := unsafe.Pointer(&arena[used])
	used += size
	return at
}

func version() string { return "2" }
