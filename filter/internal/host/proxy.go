package host

import (
	"encoding/binary"
	"unsafe"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	statusOK          = 0
	statusNotFound    = 1
	statusCASMismatch = 8

	mapRequestHeaders  = 0
	mapResponseHeaders = 2
)

// proxy implements engine.Host by host calls. What it returns is in the arena.
type proxy struct {
	// The host writes its answers here. They are fields, because a local variable
	// whose address goes to an import would be allocated.
	ns      uint64
	address uint32
	size    uint32
	cas     uint32
	path    []byte

	hasBody bool // the request under decision may have one
}

// theProxy is the one proxy a VM runs in.
var theProxy proxy

func (p *proxy) Now() int64 {
	if importNow(unsafe.Pointer(&p.ns)) != statusOK {
		panic("the proxy has no clock")
	}
	return int64(p.ns)
}

// Monotonic reads the clock that nobody sets.
func (p *proxy) Monotonic() int64 {
	const monotonic = 1
	if importClock(monotonic, 1, unsafe.Pointer(&p.ns)) != statusOK {
		panic("the proxy has no monotonic clock")
	}
	return int64(p.ns)
}

func (p *proxy) Header(name string) (string, bool) { return p.header(mapRequestHeaders, name) }

func (p *proxy) header(of uint32, name string) (string, bool) {
	arena.active = true
	status := importHeader(of, unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)),
		unsafe.Pointer(&p.address), unsafe.Pointer(&p.size))
	arena.active = false
	return p.text(status)
}

func (p *proxy) JoinedHeader(name string) (string, bool) {
	return p.joinedHeader("request\x00headers\x00", name)
}

// joinedHeader returns all values of a header, joined with ",".
func (p *proxy) joinedHeader(of, name string) (string, bool) {
	p.path = append(append(p.path[:0], of...), name...)
	return p.Attribute(unsafe.String(unsafe.SliceData(p.path), len(p.path)))
}

func (p *proxy) AppendHeader(values []string, name string) []string {
	return p.headerValues(values, mapRequestHeaders, name)
}

// headerValues reads all headers: the proxy has no call for the values of one.
func (p *proxy) headerValues(values []string, of uint32, name string) []string {
	return appendValues(values, p.pairs(of), name)
}

// pairs are all headers or trailers, in the ABI's form.
func (p *proxy) pairs(of uint32) string {
	arena.active = true
	status := importHeaders(of, unsafe.Pointer(&p.address), unsafe.Pointer(&p.size))
	arena.active = false
	pairs, _ := p.text(status)
	return pairs
}

// AddResponseHeader reports whether the proxy took the header.
func (p *proxy) AddResponseHeader(name, value string) bool {
	return importAddHeader(mapResponseHeaders, unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)),
		unsafe.Pointer(unsafe.StringData(value)), uint32(len(value))) == statusOK
}

func (p *proxy) HasBody() bool { return p.hasBody }

func (p *proxy) ClientAddress() (string, bool) { return p.Attribute("source\x00address") }

func (p *proxy) Attribute(path string) (string, bool) {
	arena.active = true
	status := importProperty(unsafe.Pointer(unsafe.StringData(path)), uint32(len(path)),
		unsafe.Pointer(&p.address), unsafe.Pointer(&p.size))
	arena.active = false
	return p.text(status)
}

// Status is the status of the response, 0 if there is none.
func (p *proxy) Status() uint16 { return uint16(p.amount("response\x00code")) }

// amount is a number of the request, 0 if the proxy does not know it.
func (p *proxy) amount(path string) int64 {
	n, _ := p.number(path)
	return n
}

// number is a number of the request, if the proxy knows it.
func (p *proxy) number(path string) (int64, bool) {
	text, ok := p.Attribute(path)
	if !ok || len(text) != 8 {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64([]byte(text))), true
}

// SetState stores a value as the request's filter state "wasm."+name. It reports
// whether the proxy took it.
func (p *proxy) SetState(name string, value []byte) bool {
	return importSetProperty(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)),
		unsafe.Pointer(unsafe.SliceData(value)), uint32(len(value))) == statusOK
}

func (p *proxy) text(status uint32) (string, bool) {
	if status != statusOK {
		return "", false
	}
	b := arena.bytes(p.address, p.size)
	return unsafe.String(unsafe.SliceData(b), len(b)), true
}

func (p *proxy) Get(key []byte) ([]byte, uint32, state.Status) {
	if planted("reads-fail", key) {
		return nil, 0, state.Failed
	}
	arena.active = true
	status := importGetShared(unsafe.Pointer(unsafe.SliceData(key)), uint32(len(key)),
		unsafe.Pointer(&p.address), unsafe.Pointer(&p.size), unsafe.Pointer(&p.cas))
	arena.active = false
	switch status {
	case statusOK:
		return arena.bytes(p.address, p.size), p.cas, state.OK
	case statusNotFound:
		return nil, 0, state.NotFound
	default:
		return nil, 0, state.Failed
	}
}

func (p *proxy) Set(key, value []byte, cas uint32) state.Status {
	if planted("writes-lose", key) {
		return state.Mismatch
	}
	switch importSetShared(unsafe.Pointer(unsafe.SliceData(key)), uint32(len(key)),
		unsafe.Pointer(unsafe.SliceData(value)), uint32(len(value)), cas) {
	case statusOK:
		return state.OK
	case statusCASMismatch:
		return state.Mismatch
	default:
		return state.Failed
	}
}

func fillRandom(b []byte) {
	if importRandom(unsafe.Pointer(unsafe.SliceData(b)), uint32(len(b))) != statusOK {
		panic("the proxy gives no random bytes")
	}
}

// chunk is a part of what a body has at this call, in the arena.
func (p *proxy) chunk(from, size uint32) []byte {
	arena.active = true
	status := importBuffer(bufferResponseBody, from, size, unsafe.Pointer(&p.address), unsafe.Pointer(&p.size))
	arena.active = false
	if status != statusOK {
		return nil
	}
	return arena.bytes(p.address, p.size)
}

// buffer copies a buffer of the proxy into b.
func (p *proxy) buffer(kind, size uint32, b *[]byte) bool {
	arena.active = true
	status := importBuffer(kind, 0, size, unsafe.Pointer(&p.address), unsafe.Pointer(&p.size))
	arena.active = false
	if status != statusOK {
		return false
	}
	*b = append((*b)[:0], arena.bytes(p.address, p.size)...)
	return true
}

// grpcFromStatus leaves the gRPC status of a reply to the proxy.
const grpcFromStatus = -1

// reply is one local reply.
type reply struct {
	status  uint32
	details []byte
	body    []byte
	headers []byte // as appendHeader writes them behind a count
	grpc    int32  // or grpcFromStatus
}

func (p *proxy) send(r *reply) {
	importSendLocalResponse(r.status, unsafe.Pointer(unsafe.SliceData(r.details)), uint32(len(r.details)),
		unsafe.Pointer(unsafe.SliceData(r.body)), uint32(len(r.body)),
		unsafe.Pointer(unsafe.SliceData(r.headers)), uint32(len(r.headers)), r.grpc)
}

// appendValues appends the values of a name in headers of the ABI's form: a count,
// the sizes of names and values, then names and values, each followed by a zero
// byte. Numbers take four bytes. Broken headers have no values.
func appendValues(values []string, pairs, name string) []string {
	count, rest := number(pairs)
	if count > uint32(len(rest)/8) {
		return values
	}
	sizes, rest := rest[:8*count], rest[8*count:]
	for sizes != "" {
		var field [2]string
		for i := range field {
			var size uint32
			size, sizes = number(sizes)
			if size >= uint32(len(rest)) {
				return values
			}
			field[i], rest = rest[:size], rest[size+1:]
		}
		if field[0] == name {
			values = append(values, field[1])
		}
	}
	return values
}

// sizeOfPairs returns how many bytes the names and values have.
func sizeOfPairs(pairs string) int64 {
	count, rest := number(pairs)
	return max(int64(len(rest))-int64(count)*10, 0) // two numbers and two zero bytes each
}

// number cuts off a number.
func number(s string) (n uint32, rest string) {
	if len(s) < 4 {
		return 0, ""
	}
	return binary.LittleEndian.Uint32([]byte(s[:4])), s[4:]
}
