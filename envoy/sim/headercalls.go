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

func (v *vm) getHeader(a args) status {
	h := v.headerMap(uint32(a.s[0]))
	if h == nil {
		if st := v.scope().stream; st != nil && st.logging && uint32(a.s[0]) <= mapLast {
			return notFound
		}
		return badArgument
	}
	for i := range *h {
		if equalFold((*h)[i][0], a.b[0]) {
			return v.giveString((*h)[i][1], a.s[3], a.s[4])
		}
	}
	return notFound
}

func (v *vm) getHeaders(a args) status {
	kind := uint32(a.s[0])
	if kind > mapLast {
		return badArgument
	}
	h := v.headerMap(kind)
	if h == nil || len(*h) == 0 {
		return v.give(nil, a.s[1], a.s[2])
	}
	v.scratch = h.marshal(v.scratch[:0])
	return v.give(v.scratch, a.s[1], a.s[2])
}

func (v *vm) addHeader(a args) status {
	h := v.changeableMap(uint32(a.s[0]))
	if h == nil {
		return badArgument
	}
	h.add(strings.ToLower(string(a.b[0])), string(a.b[1]))
	return statusOK
}

func (v *vm) removeHeader(a args) status {
	h := v.changeableMap(uint32(a.s[0]))
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
