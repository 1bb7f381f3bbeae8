// Four is the floor in Go: on each request the four host calls that a rate limit
// needs, and nothing else. What it costs more than the floor is Go's; what the
// filter costs more than it is the filter's.
package main

import "unsafe"

func main() {}

//go:wasmimport env proxy_get_current_time_nanoseconds
func clock(ns unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_value
func header(kind uint32, name unsafe.Pointer, nameSize uint32, value, valueSize unsafe.Pointer) uint32

//go:wasmimport env proxy_get_shared_data
func get(key unsafe.Pointer, keySize uint32, value, valueSize, cas unsafe.Pointer) uint32

//go:wasmimport env proxy_set_shared_data
func set(key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize, cas uint32) uint32

var (
	name  = []byte("x-user-id")
	key   = []byte("four/user")
	value [40]byte // begins with the time

	address, size, cas uint32

	// buffer takes what the host hands over. A request begins at its start again.
	buffer [64 << 10]byte
	used   int32
)

//go:wasmexport proxy_abi_version_0_2_1
func version() {}

//go:wasmexport proxy_on_memory_allocate
func allocate(n int32) *byte {
	at := used
	if used += (n + 7) &^ 7; used > int32(len(buffer)) {
		at, used = 0, 0
	}
	return &buffer[at]
}

//go:wasmexport proxy_on_vm_start
func start(_, _ int32) int32 { return 1 }

//go:wasmexport proxy_on_configure
func configure(_, _ int32) int32 { return 1 }

//go:wasmexport proxy_on_context_create
func create(_, _ int32) {}

//go:wasmexport proxy_on_request_headers
func headers(_, _, _ int32) int32 {
	used = 0
	clock(unsafe.Pointer(&value))
	header(0, unsafe.Pointer(&name[0]), uint32(len(name)), unsafe.Pointer(&address), unsafe.Pointer(&size))
	get(unsafe.Pointer(&key[0]), uint32(len(key)), unsafe.Pointer(&address), unsafe.Pointer(&size), unsafe.Pointer(&cas))
	set(unsafe.Pointer(&key[0]), uint32(len(key)), unsafe.Pointer(&value), uint32(len(value)), cas)
	return 0
}
