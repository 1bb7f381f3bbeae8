package sim

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// A property path is segments with zero bytes between them.

func (v *vm) getProperty(a args) status {
	path, sc := a.b[0], v.scope()
	if value, ok := v.given(sc, path); ok {
		return v.give(value, a.n[0], a.n[1])
	}
	value, found := v.property(sc, path)
	if found != statusOK {
		return found
	}
	return v.giveString(value, a.n[0], a.n[1])
}

// given looks a path up in the properties of the request and of the options.
func (v *vm) given(sc *scope, path []byte) ([]byte, bool) {
	if sc.stream != nil {
		if value, ok := lookup(sc.stream.in.Properties, path); ok {
			return value, true
		}
	}
	return lookup(v.host.o.Properties, path)
}

func lookup(properties map[string][]byte, path []byte) ([]byte, bool) {
	if len(properties) == 0 {
		return nil, false
	}
	if value, ok := properties[string(path)]; ok {
		return value, true
	}
	var buf [64]byte
	dotted := append(buf[:0], path...)
	for i, c := range dotted {
		if c == 0 {
			dotted[i] = '.'
		}
	}
	value, ok := properties[string(dotted)]
	return value, ok
}

// property returns what Envoy knows of every request.
func (v *vm) property(sc *scope, path []byte) (string, status) {
	if len(path) == 0 {
		return "", serializationFailed
	}
	name, rest, more := bytes.Cut(path, []byte{0})
	st := sc.stream
	switch string(name) {
	case "plugin_name":
		return whole(v.host.o.PluginName, more)
	case "plugin_root_id":
		return whole(v.host.o.RootID, more)
	case "plugin_vm_id":
		return whole(v.host.o.VMID, more)
	}
	if st == nil {
		return "", notFound
	}
	switch string(name) {
	case "request", "response", "source", "filter_state", "xds":
		if !more {
			return "", serializationFailed // its members have many types
		}
	}
	switch string(name) {
	case "request":
		return v.requestProperty(st, rest)
	case "response":
		return responseProperty(st, rest)
	case "source":
		return sourceProperty(st.in, rest)
	case "metadata":
		if more {
			return "", unimplemented // a part of it is bytes without a type
		}
		return metadata(st.in.Metadata)
	case "route_name":
		return whole("", more) // the router names it, after the filter
	case "xds":
		if string(rest) == "route_name" {
			return st.in.Route, statusOK
		}
		return "", notFound
	case "filter_state":
		if key, ok := bytes.CutPrefix(rest, []byte("wasm.")); ok {
			value, ok := st.state[string(key)]
			return found(value, ok)
		}
		return "", notFound
	}
	value, ok := st.state[string(name)]
	if !ok {
		return "", notFound
	}
	return whole(value, more)
}

// metadata is all of it, as the message envoy.config.core.v3.Metadata.
func metadata(all map[string]*structpb.Struct) (string, status) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&corev3.Metadata{FilterMetadata: all})
	if err != nil {
		return "", serializationFailed
	}
	return string(b), statusOK
}

func whole(value string, more bool) (string, status) {
	if more {
		return "", notFound // a text has no members
	}
	return value, statusOK
}

func found(value string, ok bool) (string, status) {
	if !ok {
		return "", notFound
	}
	return value, statusOK
}

func number(n int64) (string, status) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return string(b[:]), statusOK
}

func header(h headers, rest []byte, more bool) (string, status) {
	if !more {
		return string(h.joined().marshal(nil)), statusOK
	}
	if bytes.IndexByte(rest, 0) >= 0 {
		return "", notFound
	}
	for i := range h {
		if equalFold(h[i][0], rest) {
			return found(h[i:].all(h[i][0]))
		}
	}
	return "", notFound
}

func (v *vm) requestProperty(st *stream, path []byte) (string, status) {
	field, rest, more := bytes.Cut(path, []byte{0})
	var h headers
	if st.showRequest || st.logging {
		h = st.request
	}
	if string(field) == "headers" {
		return header(h, rest, more)
	}
	if more {
		return "", notFound
	}
	switch string(field) {
	case "time", "duration", "size", "total_size":
		return st.measured(string(field), h)
	case "protocol":
		return "HTTP/1.1", statusOK
	case "url_path", "query":
		path, ok := h.get(":path")
		before, query, _ := strings.Cut(path, "?")
		if string(field) == "url_path" {
			return found(before, ok)
		}
		query, _, _ = strings.Cut(query, "#")
		return found(query, ok)
	}
	return found(h.get(ofHeader[string(field)]))
}

// ofHeader are the members of the request that are headers.
var ofHeader = map[string]string{
	"path": ":path", "host": ":authority", "scheme": ":scheme", "method": ":method", "referer": "referer",
	"useragent": "user-agent", "id": "x-request-id",
}

// measured is a number about the request. The duration is known at its end.
func (st *stream) measured(field string, h headers) (string, status) {
	switch field {
	case "time":
		return number(st.start)
	case "duration":
		if !st.ended {
			return "", notFound
		}
		return number(st.took)
	case "size":
		if size, ok := h.get("content-length"); ok {
			n, _ := strconv.ParseInt(size, 10, 64)
			return number(n)
		}
		return number(st.received())
	}
	return number(st.received() + int64(h.size()))
}

func responseProperty(st *stream, path []byte) (string, status) {
	field, rest, more := bytes.Cut(path, []byte{0})
	var h, trailers headers
	if st.showResponse || st.logging {
		h = st.response
	}
	if st.logging {
		trailers = st.trailers
	}
	if string(field) == "headers" {
		return header(h, rest, more)
	}
	if more {
		return "", notFound
	}
	switch string(field) {
	case "code":
		if st.status != 0 {
			return number(int64(st.status))
		}
	case "code_details":
		return found(st.details, st.told)
	case "flags":
		return number(int64(st.flags))
	case "size":
		return number(int64(st.sent))
	case "total_size":
		return number(int64(st.sent + h.size() + trailers.size()))
	case "grpc_status":
		return grpcStatusProperty(st, h, trailers)
	}
	return "", notFound
}

// grpcStatusProperty is of trailers or headers that can be read, else made of the status.
func grpcStatusProperty(st *stream, h, trailers headers) (string, status) {
	for _, from := range []headers{trailers, h} {
		if text, ok := from.get("grpc-status"); ok {
			code, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				code = -1
			}
			return number(code)
		}
	}
	if st.status == 0 {
		return "", notFound
	}
	return number(int64(grpcStatusOf(st.status)))
}

// received is how much of the request's body has come.
func (st *stream) received() int64 {
	if st.in.Received != nil {
		return st.in.Received()
	}
	if !st.told { // nothing is known before the request has gone on
		return 0
	}
	length, _ := st.request.get("content-length")
	n, _ := strconv.ParseInt(length, 10, 64)
	return n
}

func sourceProperty(r *Request, path []byte) (string, status) {
	switch string(path) {
	case "address":
		ip := r.ClientIP
		if ip == "" {
			ip = "127.0.0.1"
		}
		return net.JoinHostPort(ip, strconv.Itoa(int(r.ClientPort))), statusOK
	case "port":
		return number(int64(r.ClientPort))
	}
	return "", notFound
}

// setProperty keeps a value as filter state of the request. Only a path of one
// segment reads it back.
func (v *vm) setProperty(a args) status {
	st := v.scope().stream
	if st == nil {
		return notFound
	}
	if st.state == nil {
		st.state = map[string]string{}
	}
	st.state[string(a.b[0])] = string(a.b[1])
	return statusOK
}
