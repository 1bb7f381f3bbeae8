//go:build second

package main

import "unsafe"

const version = "2"

//go:wasmexport proxy_on_memory_allocate
func memoryAllocate(size uint32) unsafe.Pointer { return allocate(size) }
