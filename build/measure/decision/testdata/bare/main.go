// Bare is a module with nothing in it but Go's runtime and what a host asks of
// any module: what every filter built with this compiler costs at least.
package main

func main() {}

//go:wasmexport proxy_abi_version_0_2_1
func version() {}

// buffer takes what the host hands over, which nobody reads.
var buffer [64 << 10]byte

//go:wasmexport proxy_on_memory_allocate
func allocate(int32) *byte { return &buffer[0] }

//go:wasmexport proxy_on_vm_start
func start(_, _ int32) int32 { return 1 }

//go:wasmexport proxy_on_configure
func configure(_, _ int32) int32 { return 1 }

//go:wasmexport proxy_on_context_create
func create(_, _ int32) {}

//go:wasmexport proxy_on_request_headers
func headers(_, _, _ int32) int32 { return 0 }
