package host

import "unsafe"

const (
	// chunkBytes is the size of a chunk: enough for the pages of a dozen rules and
	// their headers, or for one header of the length that Envoy allows.
	chunkBytes = 64 << 10
	// maxIdleChunks stay from callback to callback, so that a client with long
	// headers does not keep the garbage collector busy.
	maxIdleChunks = 3
)

// arena is the memory into which the host writes what our own calls return. Every
// callback empties it first, so that a request allocates nothing.
var arena bump

// bump hands out memory in order.
type bump struct {
	active bool     // a host call of this package is running
	chunks [][]byte // chunks[next-1] is the current one, those after it are free
	next   int
	whole  []byte // the current chunk
	used   int    // of it
}

// reset empties the arena. Memory taken from it is invalid from now on.
func (a *bump) reset() {
	if a.next == 1 && len(a.chunks) == 1 { // as nearly always
		a.used = 0
		return
	}
	a.trim()
}

// trim drops the chunks that are too many or too large to keep.
func (a *bump) trim() {
	n := 0
	for n < min(len(a.chunks), maxIdleChunks) && len(a.chunks[n]) == chunkBytes {
		n++
	}
	clear(a.chunks[n:])
	a.chunks, a.next = a.chunks[:n], 0
	a.grow(0)
}

// grow goes on to the next chunk, which has room for n bytes.
func (a *bump) grow(n uint64) {
	if a.next == len(a.chunks) || n > chunkBytes {
		a.chunks = append(a.chunks[:a.next], make([]byte, max(n, chunkBytes)))
	}
	a.whole, a.used = a.chunks[a.next], 0
	a.next++
}

// take returns size bytes.
func (a *bump) take(size uint32) unsafe.Pointer {
	n := (uint64(size) + 7) &^ 7
	if n > uint64(len(a.whole)-a.used) {
		a.grow(n)
	}
	at := a.used
	a.used += int(n) // fits: it is no more than the chunk
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(a.whole)), at)
}

// bytes returns the size bytes at an address that the host has returned. It took
// them last, so they are in the current chunk.
func (a *bump) bytes(address, size uint32) []byte {
	if size == 0 {
		return nil
	}
	at := uintptr(address) - uintptr(unsafe.Pointer(unsafe.SliceData(a.whole)))
	return a.whole[at : at+uintptr(size) : at+uintptr(size)]
}
