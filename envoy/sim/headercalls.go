package sim

import "strings"

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

func (v *vm) getHeader(s []uint64) status {
	kind := uint32(s[0])
	if kind > mapLast {
		return badArgument
	}
	key, ok := v.read(s[1], s[2])
	if !ok {
		return invalidMemory
	}
	h := v.headerMap(kind)
	if h == nil {
		if st := v.scope().stream; st != nil && st.logging {
			return notFound
		}
		return badArgument
	}
	for i := range *h {
		if equalFold((*h)[i][0], key) {
			return v.giveString((*h)[i][1], s[3], s[4])
		}
	}
	return notFound
}

func (v *vm) getHeaders(s []uint64) status {
	kind := uint32(s[0])
	if kind > mapLast {
		return badArgument
	}
	h := v.headerMap(kind)
	if h == nil || len(*h) == 0 {
		return v.give(nil, s[1], s[2])
	}
	v.scratch = h.marshal(v.scratch[:0])
	return v.give(v.scratch, s[1], s[2])
}

func (v *vm) addHeader(s []uint64) status {
	kind := uint32(s[0])
	if kind > mapLast {
		return badArgument
	}
	key, ok := v.read(s[1], s[2])
	value, ok2 := v.read(s[3], s[4])
	if !ok || !ok2 {
		return invalidMemory
	}
	h := v.changeableMap(kind)
	if h == nil {
		return badArgument
	}
	h.add(strings.ToLower(string(key)), string(value))
	return statusOK
}

func (v *vm) removeHeader(s []uint64) status {
	kind := uint32(s[0])
	if kind > mapLast {
		return badArgument
	}
	key, ok := v.read(s[1], s[2])
	if !ok {
		return invalidMemory
	}
	h := v.changeableMap(kind)
	if h == nil {
		return badArgument
	}
	h.remove(strings.ToLower(string(key)))
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
