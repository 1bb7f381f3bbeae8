package host

import "unsafe"

// chunkBytes is how much the arena holds before it needs another chunk: the
// buckets of a dozen rules and their headers.
const chunkBytes = 64 << 10

// arena is the memory for what the host returns to our own calls. It is emptied
// at the start of every callback, so that a request allocates nothing.
var arena bump

type bump struct {
	active bool // one of our own calls is running
	first  []byte
	chunk  []byte   // what is left of the chunk in use
	base   uintptr  // where chunk began
	whole  []byte   // all of the chunk in use
	full   [][]byte // chunks used up in this callback
}

// reset empties the arena. What was taken from it is invalid from now on.
func (a *bump) reset() {
	if a.first == nil {
		a.first = make([]byte, chunkBytes)
	}
	a.full = a.full[:0]
	a.use(a.first)
}

func (a *bump) use(chunk []byte) {
	a.whole, a.chunk = chunk, chunk
	a.base = uintptr(unsafe.Pointer(unsafe.SliceData(chunk)))
}

// take returns size bytes.
func (a *bump) take(size uint32) unsafe.Pointer {
	n := (int(size) + 7) &^ 7
	if n > len(a.chunk) {
		if a.first == nil {
			a.reset()
		}
		if n > len(a.chunk) {
			a.full = append(a.full, a.whole)
			a.use(make([]byte, max(n, chunkBytes)))
		}
	}
	p := unsafe.Pointer(unsafe.SliceData(a.chunk))
	a.chunk = a.chunk[n:]
	return p
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
