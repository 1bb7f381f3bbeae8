package host

import "unsafe"

// The calls of the hot path, declared here rather than taken from the SDK,
// which copies every answer into fresh memory and lacks the clock. Numbers are
// the ABI's: 0 ok, 1 not found, 8 compare-and-swap mismatch.

//go:wasmimport env proxy_get_current_time_nanoseconds
func importNow(ns unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_value
func importHeader(mapType uint32, name unsafe.Pointer, nameSize uint32, value, valueSize unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_pairs
func importHeaders(mapType uint32, pairs, size unsafe.Pointer) uint32

//go:wasmimport env proxy_add_header_map_value
func importAddHeader(mapType uint32, name unsafe.Pointer, nameSize uint32,
	value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport env proxy_get_property
func importProperty(path unsafe.Pointer, pathSize uint32, value, valueSize unsafe.Pointer) uint32

//go:wasmimport env proxy_set_property
func importSetProperty(path unsafe.Pointer, pathSize uint32, value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport env proxy_get_shared_data
func importGetShared(key unsafe.Pointer, keySize uint32, value, valueSize, cas unsafe.Pointer) uint32

//go:wasmimport env proxy_set_shared_data
func importSetShared(key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize, cas uint32) uint32

//go:wasmimport env proxy_send_local_response
func importSendLocalResponse(status uint32, details unsafe.Pointer, detailsSize uint32,
	body unsafe.Pointer, bodySize uint32, headers unsafe.Pointer, headersSize uint32, grpcStatus int32) uint32

// The SDK's own calls for metrics link package fmt, a twelfth of the module, for
// their panics.
//
//go:wasmimport env proxy_define_metric
func importDefineMetric(kind uint32, name unsafe.Pointer, nameSize uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_get_metric
func importGetMetric(id uint32, value unsafe.Pointer) uint32

//go:wasmimport env proxy_increment_metric
func importIncrementMetric(id uint32, by int64) uint32

//go:wasmimport env proxy_record_metric
func importRecordMetric(id uint32, value uint64) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func importRandom(buf unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 clock_time_get
func importClock(id uint32, precision uint64, ns unsafe.Pointer) uint32

//go:wasmimport env proxy_grpc_stream
func importGRPCStream(service unsafe.Pointer, serviceSize uint32, name unsafe.Pointer, nameSize uint32,
	method unsafe.Pointer, methodSize uint32, metadata unsafe.Pointer, metadataSize uint32, token unsafe.Pointer) uint32

//go:wasmimport env proxy_grpc_send
func importGRPCSend(token uint32, message unsafe.Pointer, size, end uint32) uint32

//go:wasmimport env proxy_grpc_close
func importGRPCClose(token uint32) uint32

//go:wasmimport env proxy_grpc_cancel
func importGRPCCancel(token uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func importBuffer(kind, start, size uint32, data, dataSize unsafe.Pointer) uint32

//go:wasmimport env proxy_set_effective_context
func importActFor(context uint32) uint32

//go:wasmimport env proxy_continue_stream
func importContinue(stream uint32) uint32

// The SDK's entries for the contexts of configurations; those of streams never reach
// the SDK.

//go:linkname sdkContextCreate github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/internal.proxyOnContextCreate
func sdkContextCreate(context, root uint32)

//go:linkname sdkDone github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/internal.proxyOnDone
func sdkDone(context uint32) bool

//go:linkname sdkDelete github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/internal.proxyOnDelete
func sdkDelete(context uint32)

const (
	// chunkBytes is the size of a chunk: enough for the pages of a dozen rules and
	// their headers, or for one header of the length that Envoy allows.
	chunkBytes = 64 << 10
	// maxIdleChunks stay from callback to callback, so that a client with long
	// headers does not keep the garbage collector busy.
	maxIdleChunks = 3
)

// arena is the memory into which the host writes what our own calls return. Every callback
// empties it first, so that a request allocates nothing. So does each turn of a loop that reads
// pages or chunks.
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

// malloc returns memory for what the host returns; the host prefers this export to
// the SDK's. While one of our own calls runs, the memory is the arena's. At any
// other time the SDK is the caller and keeps the memory.
//
//go:wasmexport malloc
func malloc(size uint32) unsafe.Pointer {
	if arena.active {
		return arena.take(size)
	}
	return unsafe.Pointer(unsafe.SliceData(make([]byte, max(size, 1))))
}

// What TinyGo's runtime would take from a C library, which is not linked.

//export arc4random
func arc4random() (n uint32) {
	importRandom(unsafe.Pointer(&n), 4)
	return n
}

//export strlen
func strlen(text unsafe.Pointer) (n uintptr) {
	for *(*byte)(unsafe.Add(text, n)) != 0 {
		n++
	}
	return n
}
