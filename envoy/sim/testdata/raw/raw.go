// Package raw is what the recorded filters call of the host, without the SDK.
package raw

import (
	"fmt"
	"unsafe"
)

//go:wasmimport env proxy_log
func hostLog(level uint32, text *byte, size uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func headerValue(kind uint32, key *byte, keySize uint32, value unsafe.Pointer, size *uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func bufferBytes(kind, start, size uint32, data unsafe.Pointer, length *uint32) uint32

// given is memory that the host fills, kept until it is read.
var given = map[uint32][]byte{}

//go:wasmexport proxy_abi_version_0_2_0
func abiVersion() {}

//go:wasmexport malloc
func malloc(size uint32) unsafe.Pointer {
	b := make([]byte, size)
	at := unsafe.Pointer(unsafe.SliceData(b))
	given[uint32(uintptr(at))] = b
	return at
}

//go:wasmexport proxy_on_vm_start
func onVMStart(_, _ uint32) uint32 { return 1 }

// Taken returns what the host has put into memory that it asked for.
func Taken(at, size uint32) string {
	b := given[at]
	delete(given, at)
	return string(b[:min(int(size), len(b))])
}

// Say logs words with blanks between them.
func Say(words ...any) {
	line := fmt.Sprintln(words...)
	hostLog(2, unsafe.StringData(line), uint32(len(line)-1))
}

// Header returns a value of a header map, and the host's status.
func Header(kind uint32, key string) (string, uint32) {
	var at, size uint32
	status := headerValue(kind, unsafe.StringData(key), uint32(len(key)), unsafe.Pointer(&at), &size)
	return Taken(at, size), status
}

// Buffer returns all of a buffer, and the host's status.
func Buffer(kind uint32) (string, uint32) {
	var at, size uint32
	status := bufferBytes(kind, 0, 1<<20, unsafe.Pointer(&at), &size)
	return Taken(at, size), status
}
