package host

import "unsafe"

// front is what this package shares with the grafts in front of its exports; see
// package build/graft, which draws the same layout. A changed one gets another
// number in the name of layout below.
var front struct {
	active  uint32 // a host call of this package's own is running, and takes from the arena
	created uint32 // the stream made last …
	root    uint32 // … and its root context
	_       uint32
	next    uint64            // the arena: address of what is left of the chunk in use
	end     uint64            // and its end
	held    [heldSlots]uint32 // streams with response fields to come and root contexts, by their number
}

const heldSlots = 1024

//go:wasmexport sluice_front_1
func layout() unsafe.Pointer { return unsafe.Pointer(&front) }

// hold asks for the callbacks of a context's response and end; drop ends that.
func hold(context uint32) { front.held[context%heldSlots]++ }
func drop(context uint32) { front.held[context%heldSlots]-- }
