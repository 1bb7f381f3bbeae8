package host

import "unsafe"

const (
	// chunkBytes is how much a chunk of the arena holds: the pages of a dozen
	// rules and their headers, or one header as long as Envoy lets it be.
	chunkBytes = 64 << 10
	// keptChunks are kept from callback to callback, so that a client with long
	// headers does not keep the garbage collector busy.
	keptChunks = 3
)

// arena is the memory for what the host returns to our own calls. It is emptied
// at the start of every callback, so that a request allocates nothing.
var arena bump

// What is left of the chunk in use is in front.
type bump struct {
	chunks [][]byte // the first next of them are in use, the last of those for what comes
	next   int
	whole  []byte  // the chunk in use
	base   uintptr // where it begins
}

// reset empties the arena. What was taken from it is invalid from now on.
func (a *bump) reset() {
	kept := 0
	for kept < min(len(a.chunks), keptChunks) && len(a.chunks[kept]) == chunkBytes {
		kept++
	}
	clear(a.chunks[kept:])
	a.chunks, a.next = a.chunks[:kept], 0
	a.grow(0)
}

// grow goes on to the next chunk, one with room for n bytes.
func (a *bump) grow(n int) {
	if a.next == len(a.chunks) || n > chunkBytes {
		a.chunks = append(a.chunks[:a.next], make([]byte, max(n, chunkBytes)))
	}
	a.whole = a.chunks[a.next]
	a.base = uintptr(unsafe.Pointer(unsafe.SliceData(a.whole)))
	front.next, front.end = uint64(a.base), uint64(a.base)+uint64(len(a.whole))
	a.next++
}

// take returns size bytes.
func (a *bump) take(size uint32) unsafe.Pointer {
	n := (uint64(size) + 7) &^ 7
	if n > front.end-front.next {
		a.grow(int(n))
	}
	at := front.next - uint64(a.base)
	front.next += n
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(a.whole)), at)
}

// bytes returns the size bytes at the address that the host has reported: the
// ones it took last, which lie in the chunk in use.
func (a *bump) bytes(address, size uint32) []byte {
	if size == 0 {
		return nil
	}
	at := uintptr(address) - a.base
	return a.whole[at : at+uintptr(size) : at+uintptr(size)]
}
