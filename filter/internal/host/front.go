package host

import "unsafe"

// front is memory that this package shares with the grafts in front of its
// exports; package build/graft draws the same layout. A changed layout gets
// another number in the export below.
var front struct {
	active  uint32 // a host call of this package is running, and takes memory from the arena
	created uint32 // the newest stream
	root    uint32 // its root context
	_       uint32
	next    uint64            // the arena: address of the rest of the current chunk
	end     uint64            // and of its end
	held    [heldSlots]uint32 // how many streams with fields for their response, and root contexts, by number
}

const heldSlots = 1024

//go:wasmexport sluice_front_1
func layout() unsafe.Pointer { return unsafe.Pointer(&front) }

// hold asks for the callbacks of a context's response and end; drop ends that.
func hold(context uint32) { front.held[context%heldSlots]++ }
func drop(context uint32) { front.held[context%heldSlots]-- }
