// Command witness is the filter that says what Envoy shows of an answer: it logs each
// callback with its arguments, and with what the attributes read in it. A request has a
// name in its header x-name; if that has "deny" in it, the filter answers. It is exported
// functions alone, without the SDK.
package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unsafe"

	"github.com/sluice-ratelimit/sluice/envoy/sim/testdata/raw"
)

func main() {}

//go:wasmimport env proxy_get_property
func getProperty(path *byte, size uint32, value unsafe.Pointer, valueSize *uint32) uint32

//go:wasmimport env proxy_send_local_response
func localResponse(code uint32, details *byte, detailsSize uint32, body *byte, bodySize uint32, headers *byte, headersSize uint32, grpc int32) uint32

var (
	names = map[uint32]string{} // of requests
	root  uint32
)

//go:wasmexport proxy_on_configure
func onConfigure(id, _ uint32) uint32 {
	root = id
	return 1
}

//go:wasmexport proxy_on_context_create
func onContextCreate(_, _ uint32) {}

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(id, _, end uint32) uint32 {
	names[id], _ = raw.Header(0, "x-name")
	raw.Say("request_headers", names[id], end, attributes())
	if strings.Contains(names[id], "deny") {
		body := "from the filter"
		localResponse(429, nil, 0, unsafe.StringData(body), uint32(len(body)), nil, 0, -1)
	}
	return 0
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(id, _, end uint32) uint32 {
	raw.Say("response_headers", names[id], end, maps(), attributes())
	return 0
}

//go:wasmexport proxy_on_response_body
func onResponseBody(id, size, end uint32) uint32 {
	text, status := raw.Buffer(1)
	raw.Say("response_body", names[id], size, end, fmt.Sprintf("%q", text), status, maps(), attributes())
	if text == "trap" {
		panic("asked to")
	}
	return 0
}

//go:wasmexport proxy_on_log
func onLog(id uint32) {
	if id != root {
		raw.Say("log", names[id], maps(), attributes())
	}
}

//go:wasmexport proxy_on_delete
func onDelete(id uint32) {
	if id != root {
		raw.Say("delete", names[id], maps(), attributes())
		delete(names, id)
	}
}

// maps says what the header maps have: of the request its name, of the response its
// status, of its trailers one.
func maps() string {
	var b strings.Builder
	for _, f := range []struct {
		kind uint32
		name string
	}{{0, "x-name"}, {2, ":status"}, {3, "x-trailer"}, {3, "grpc-status"}} {
		value, status := raw.Header(f.kind, f.name)
		if status != 0 {
			value = fmt.Sprintf("!%d", status)
		}
		b.WriteString(value + " ")
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

// attributes says what can be read of the exchange. Sizes of headers and times differ from
// run to run: that there is one shows as +.
func attributes() string {
	var b strings.Builder
	for _, path := range []string{
		"response.code", "response.code_details", "response.flags", "response.grpc_status", "response.size", "response.total_size",
		"request.size", "request.total_size", "request.duration", "request.time",
	} {
		var at, size uint32
		key := strings.ReplaceAll(path, ".", "\x00")
		status := getProperty(unsafe.StringData(key), uint32(len(key)), unsafe.Pointer(&at), &size)
		value := raw.Taken(at, size)
		switch {
		case status != 0:
			value = fmt.Sprintf("!%d", status)
		case path == "response.code_details":
		case size != 8:
			value = fmt.Sprintf("%q", value)
		default:
			n := int64(binary.LittleEndian.Uint64([]byte(value)))
			value = fmt.Sprint(n)
			if n > 0 && strings.Contains("response.total_size request.total_size request.duration request.time", path) {
				value = "+"
			}
		}
		b.WriteString(value + " ")
	}
	return "(" + strings.TrimSpace(b.String()) + ")"
}
