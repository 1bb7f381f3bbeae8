package sim

import (
	"encoding/binary"
	"strings"
)

// headers is a header map: names in lower case, order kept, pseudo headers
// before all others.
type headers [][2]string

// folded are the headers with one value in Envoy: it joins repeated ones with a comma.
var folded = map[string]bool{
	"connection": true, "content-length": true, "content-type": true, "expect": true,
	"grpc-status": true, "grpc-timeout": true, "keep-alive": true,
	"te": true, "transfer-encoding": true, "upgrade": true, "user-agent": true, "via": true,
	"x-forwarded-client-cert": true, "x-forwarded-for": true, "x-forwarded-host": true,
	"x-forwarded-port": true, "x-forwarded-proto": true, "x-request-id": true,
}

func (h headers) get(name string) (string, bool) {
	for i := range h {
		if h[i][0] == name {
			return h[i][1], true
		}
	}
	return "", false
}

// all returns the values of name joined with a comma.
func (h headers) all(name string) (string, bool) {
	value, found := "", false
	for i := range h {
		switch {
		case h[i][0] != name:
		case !found:
			value, found = h[i][1], true
		default:
			value += "," + h[i][1]
		}
	}
	return value, found
}

// joined returns each name once, with all its values.
func (h headers) joined() headers {
	out := make(headers, 0, len(h))
	for i := range h {
		if _, seen := out.get(h[i][0]); !seen {
			value, _ := h.all(h[i][0])
			out = append(out, [2]string{h[i][0], value})
		}
	}
	return out
}

func (h *headers) add(name, value string) {
	if folded[name] || strings.HasPrefix(name, ":") {
		for i := range *h {
			if (*h)[i][0] == name {
				(*h)[i][1] += "," + value
				return
			}
		}
	}
	*h = append(*h, [2]string{name, value})
	if !strings.HasPrefix(name, ":") {
		return
	}
	for i := len(*h) - 1; i > 0 && !strings.HasPrefix((*h)[i-1][0], ":"); i-- {
		(*h)[i], (*h)[i-1] = (*h)[i-1], (*h)[i]
	}
}

func (h *headers) remove(name string) {
	kept := (*h)[:0]
	for _, f := range *h {
		if f[0] != name {
			kept = append(kept, f)
		}
	}
	*h = kept
}

// size is the length of all names and values together.
func (h headers) size() int {
	n := 0
	for i := range h {
		n += len(h[i][0]) + len(h[i][1])
	}
	return n
}

// Pairs on the wire: a count, the lengths of each name and value, then all of
// them, each ended by a zero byte. All numbers are 32 bits, little endian.
const (
	pairsMaxBytes = 1 << 20
	pairsMaxCount = 1024
)

func (h headers) marshal(buf []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(h)))
	for i := range h {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(len(h[i][0])))
		buf = binary.LittleEndian.AppendUint32(buf, uint32(len(h[i][1])))
	}
	for i := range h {
		buf = append(append(buf, h[i][0]...), 0)
		buf = append(append(buf, h[i][1]...), 0)
	}
	return buf
}

// unmarshalPairs reads pairs as the real host does: anything malformed or too
// large reads as no pairs at all.
func unmarshalPairs(b []byte) headers {
	if len(b) < 4 || len(b) > pairsMaxBytes {
		return nil
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > pairsMaxCount || len(b) < 4+8*n {
		return nil
	}
	sizes, data := b[4:4+8*n], b[4+8*n:]
	take := func(size uint32) (string, bool) {
		if uint64(size)+1 > uint64(len(data)) || data[size] != 0 {
			return "", false
		}
		text := string(data[:size])
		data = data[size+1:]
		return text, true
	}
	out := make(headers, 0, n)
	for i := range n {
		name, ok := take(binary.LittleEndian.Uint32(sizes[8*i:]))
		if !ok {
			return nil
		}
		value, ok := take(binary.LittleEndian.Uint32(sizes[8*i+4:]))
		if !ok {
			return nil
		}
		out = append(out, [2]string{name, value})
	}
	if len(data) != 0 {
		return nil
	}
	return out
}

const (
	mapRequestHeaders   = 0
	mapResponseHeaders  = 2
	mapResponseTrailers = 3
	mapLast             = 7
)

// headerMap returns the map of a type, or nil where the real host has none:
// request headers are gone once the request went on.
func (v *vm) headerMap(kind uint32) *headers {
	st := v.scope().stream
	if st == nil {
		return nil
	}
	switch {
	case kind == mapRequestHeaders && (st.showRequest || st.logging):
		return &st.request
	case kind == mapResponseHeaders && (st.showResponse || st.logging):
		return &st.response
	case kind == mapResponseTrailers && st.logging:
		return &st.trailers
	}
	return nil
}

// changeableMap is headerMap, but nil in the logging phase, when it is too late
// for changes.
func (v *vm) changeableMap(kind uint32) *headers {
	if st := v.scope().stream; st != nil && st.logging {
		return nil
	}
	return v.headerMap(kind)
}

func (v *vm) getHeader(a args) status {
	h := v.headerMap(uint32(a.n[0]))
	if h == nil {
		if st := v.scope().stream; st != nil && st.logging && uint32(a.n[0]) <= mapLast {
			return notFound
		}
		return badArgument
	}
	for i := range *h {
		if equalFold((*h)[i][0], a.b[0]) {
			return v.giveString((*h)[i][1], a.n[1], a.n[2])
		}
	}
	return notFound
}

func (v *vm) getHeaders(a args) status {
	kind := uint32(a.n[0])
	if kind > mapLast {
		return badArgument
	}
	h := v.headerMap(kind)
	if h == nil || len(*h) == 0 {
		return v.give(nil, a.n[1], a.n[2])
	}
	v.scratch = h.marshal(v.scratch[:0])
	return v.give(v.scratch, a.n[1], a.n[2])
}

func (v *vm) addHeader(a args) status {
	h := v.changeableMap(uint32(a.n[0]))
	if h == nil {
		return badArgument
	}
	h.add(strings.ToLower(string(a.b[0])), string(a.b[1]))
	return statusOK
}

func (v *vm) removeHeader(a args) status {
	h := v.changeableMap(uint32(a.n[0]))
	if h == nil {
		return badArgument
	}
	h.remove(strings.ToLower(string(a.b[0])))
	return statusOK
}

// equalFold compares a lower-case name with one of the guest's.
func equalFold(name string, key []byte) bool {
	if len(name) != len(key) {
		return false
	}
	for i, c := range key {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if name[i] != c {
			return false
		}
	}
	return true
}
