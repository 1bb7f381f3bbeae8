//go:build !second

package main

import "unsafe"

const version = "1"

//go:wasmexport malloc
func malloc(size uint32) unsafe.Pointer { return allocate(size) }

// The host takes malloc where there is one.
//
//go:wasmexport proxy_on_memory_allocate
func memoryAllocate(uint32) unsafe.Pointer { panic("malloc goes before") }
