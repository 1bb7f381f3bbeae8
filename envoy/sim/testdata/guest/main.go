// Command guest is the filter of the simulator's tests, and that whose callbacks are recorded
// on a real Envoy. It is exported functions alone, without the SDK.
//
// A request with a header x-ask says there what to do, in steps parted by ";". The answer is a
// local reply with a line for each step, or, after the step "on", the upstream's. Steps in
// x-then are done on the response and answered in headers x-then.
//
// Of any other request, which has a name in its header x-name, callbacks are logged. One with
// a header x-do has a talk: that says what to do, in steps parted by "|"; a message
// on a gRPC stream says it in steps parted by ";". Each host call is logged with its status.
// Without a talk it is logged what Envoy shows of its answer: the arguments of callbacks, and
// what the attributes read in them. If the name has "deny" in it, the filter answers.
package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

func main() {}

//go:wasmimport env proxy_log
func hostLog(level uint32, text string) uint32

//go:wasmimport env proxy_get_header_map_value
func headerValue(kind uint32, key string, at, size *uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func bufferBytes(kind, start, most uint32, at, size *uint32) uint32

//go:wasmimport env proxy_get_property
func getProperty(path string, at, size *uint32) uint32

//go:wasmimport env proxy_set_effective_context
func setEffectiveContext(id uint32) uint32

//go:wasmimport env proxy_continue_stream
func continueStream(kind uint32) uint32

//go:wasmimport env proxy_send_local_response
func localResponse(code uint32, details, body, headers string, grpc int32) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func setTickPeriod(ms uint32) uint32

//go:wasmimport env proxy_grpc_stream
func grpcStream(target, service, method, metadata string, token *uint32) uint32

//go:wasmimport env proxy_grpc_send
func grpcSend(token uint32, message string, end uint32) uint32

//go:wasmimport env proxy_grpc_close
func grpcClose(token uint32) uint32

//go:wasmimport env proxy_grpc_cancel
func grpcCancel(token uint32) uint32

var (
	root    uint32
	names   = map[uint32]string{} // of requests
	ids     = map[string]uint32{}
	talking []uint32 // requests that have a talk
	token   uint32   // of the stream opened last
	onTick  string
	onClose string
)

// given is memory that the host fills, kept until it is read.
var given = map[uint32][]byte{}

//go:wasmexport proxy_abi_version_0_2_0
func abiVersion() {}

func allocate(size uint32) unsafe.Pointer {
	if wild {
		currentTime(new(uint64))
	}
	b := make([]byte, size)
	at := unsafe.Pointer(unsafe.SliceData(b))
	given[uint32(uintptr(at))] = b
	return at
}

// say logs words with blanks between them.
func say(words ...any) {
	line := fmt.Sprintln(words...)
	hostLog(2, line[:len(line)-1])
}

// got returns what a call puts into memory that it asks for, and the host's status.
func got(call func(at, size *uint32) uint32) (string, uint32) {
	var at, size uint32
	status := call(&at, &size)
	b := given[at]
	delete(given, at)
	return string(b[:min(int(size), len(b))]), status
}

func header(kind uint32, key string) (string, uint32) {
	return got(func(at, size *uint32) uint32 { return headerValue(kind, key, at, size) })
}

func buffer(kind uint32) (string, uint32) {
	return got(func(at, size *uint32) uint32 { return bufferBytes(kind, 0, 1<<20, at, size) })
}

func property(path string) (string, uint32) {
	return got(func(at, size *uint32) uint32 { return getProperty(path, at, size) })
}

//go:wasmexport proxy_on_vm_start
func onVMStart(_, _ uint32) uint32 {
	if text, _ := buffer(6); text == "refuse" {
		return 0
	}
	return 1
}

//go:wasmexport proxy_on_configure
func onConfigure(id, _ uint32) uint32 {
	root = id
	configs[id], _ = buffer(7)
	return configured(configs[id])
}

//go:wasmexport proxy_on_context_create
func onContextCreate(id, parent uint32) { parents[id] = parent }

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(id, n, end uint32) uint32 {
	if do, status := header(0, "x-ask"); status == 0 {
		asked[id] = &asking{config: configs[parents[id]], n: n, end: end}
		return asked[id].requestHeaders(do)
	}
	name, _ := header(0, "x-name")
	names[id], ids[name] = name, id
	if do, status := header(0, "x-do"); status == 0 {
		talking = append(talking, id)
		say("request_headers", name, end)
		return steps(do, "|")
	}
	say("request_headers", name, end, attributes())
	if strings.Contains(name, "deny") {
		reply(429)
	}
	return 0
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(id, n, end uint32) uint32 {
	if r := asked[id]; r != nil {
		r.n, r.end = n, end
		return r.responseHeaders()
	}
	if slices.Contains(talking, id) {
		status, _ := header(2, ":status")
		say("response_headers", names[id], status, end)
	} else {
		say("response_headers", names[id], end, maps(), attributes())
	}
	return 0
}

//go:wasmexport proxy_on_response_body
func onResponseBody(id, size, end uint32) uint32 {
	if asked[id] != nil || slices.Contains(talking, id) {
		return 0
	}
	text, status := buffer(1)
	say("response_body", names[id], size, end, fmt.Sprintf("%q", text), status, maps(), attributes())
	if text == "trap" {
		panic("asked to")
	}
	return 0
}

//go:wasmexport proxy_on_log
func onLog(id uint32) {
	if r := asked[id]; r != nil {
		r.logs()
	} else if slices.Contains(talking, id) {
		status, _ := header(2, ":status")
		say("log", names[id], status)
	} else if parents[id] != 0 {
		say("log", names[id], maps(), attributes())
	}
}

//go:wasmexport proxy_on_done
func onDone(id uint32) uint32 {
	if slices.Contains(talking, id) {
		say("done", names[id])
	} else if parents[id] == 0 {
		say("done", configs[id])
	}
	return 1
}

//go:wasmexport proxy_on_delete
func onDelete(id uint32) {
	if slices.Contains(talking, id) {
		say("delete", names[id])
	} else if parents[id] != 0 && asked[id] == nil {
		say("delete", names[id], maps(), attributes())
	}
	talking = slices.DeleteFunc(talking, func(other uint32) bool { return other == id })
	delete(ids, names[id])
	delete(names, id)
	delete(asked, id)
	delete(configs, id)
	delete(parents, id)
}

//go:wasmexport proxy_on_tick
func onTicked(id uint32) {
	if onTick == "" {
		say("tick", configs[id])
		return
	}
	setTickPeriod(0)
	say("tick", "root")
	steps(onTick, ";")
}

//go:wasmexport proxy_on_grpc_receive
func onReceive(_, token, size uint32) {
	text, status := buffer(5)
	say("grpc_receive", "root", token, size, status)
	steps(text, ";")
}

//go:wasmexport proxy_on_grpc_close
func onClosed(_, token, code uint32) {
	say("grpc_close", "root", token, code)
	do := onClose
	onClose = ""
	steps(do, ";")
}

func steps(do, parting string) (action uint32) {
	for _, s := range strings.Split(do, parting) {
		verb, rest, _ := strings.Cut(s, " ")
		first, second, _ := strings.Cut(rest, " ")
		n, _ := strconv.Atoi(first)
		switch verb {
		case "":
		case "pause":
			action = 1
		case "trap":
			panic("asked to")
		case "open":
			say(s, open(rest), token)
		case "send":
			say(s, grpcSend(token, rest, 0))
		case "last":
			say(s, grpcSend(token, rest, 1))
		case "sendto":
			say(s, grpcSend(uint32(n), second, 0))
		case "half":
			say(s, grpcClose(token))
		case "halfof":
			say(s, grpcClose(uint32(n)))
		case "cancel":
			say(s, grpcCancel(token))
		case "cancelof":
			say(s, grpcCancel(uint32(n)))
		case "resume":
			say(s, as(first, func() uint32 { return continueStream(0) }))
		case "reply":
			code, _ := strconv.Atoi(second)
			say(s, as(first, func() uint32 { return reply(code) }))
		case "all":
			for i := range n {
				steps(strings.ReplaceAll(strings.SplitN(s, " ", 3)[2], "R", "r"+strconv.Itoa(i)), ";")
			}
		case "path":
			var path string
			say(s, as(first, func() (status uint32) {
				path, status = header(0, ":path")
				return status
			}), path)
		case "effective":
			say(s, setEffectiveContext(uint32(n)))
		case "tick":
			onTick = strings.ReplaceAll(second, "+", ";")
			say("tick", n, setTickPeriod(uint32(n)))
		case "onclose":
			onClose = strings.ReplaceAll(rest, "+", ";")
		case "buffer":
			text, status := buffer(5)
			say(s, text, status)
		default:
			say("what is", s)
		}
	}
	return action
}

// as acts for another request.
func as(who string, do func() uint32) string {
	effective := setEffectiveContext(ids[who])
	status := do()
	setEffectiveContext(root)
	return fmt.Sprint(effective, status)
}

func reply(code int) uint32 { return localResponse(uint32(code), "", "from the filter", "", -1) }

// open opens a stream to a cluster, named in a GrpcService.
func open(cluster string) uint32 {
	envoyGRPC := "\x0a" + string(rune(len(cluster))) + cluster
	target := "\x0a" + string(rune(len(envoyGRPC))) + envoyGRPC
	return grpcStream(target, "test.Commands", "Talk", "", &token)
}

// maps says what the header maps have: of the request its name, of the response its
// status, of its trailers one.
func maps() string {
	var b strings.Builder
	for _, f := range []struct {
		kind uint32
		name string
	}{{0, "x-name"}, {2, ":status"}, {3, "x-trailer"}, {3, "grpc-status"}} {
		b.WriteString(value(header(f.kind, f.name)) + " ")
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

// attributes says what can be read of the exchange. Sizes of headers and times differ from
// run to run: that there is one shows as +.
func attributes() string {
	var b strings.Builder
	for _, path := range []string{
		"response.code", "response.code_details", "response.flags", "response.grpc_status",
		"response.size", "response.total_size", "request.size", "request.total_size", "request.duration", "request.time",
	} {
		text, status := property(strings.ReplaceAll(path, ".", "\x00"))
		switch {
		case status != 0 || path == "response.code_details":
		case len(text) != 8:
			text = fmt.Sprintf("%q", text)
		default:
			n := int64(binary.LittleEndian.Uint64([]byte(text)))
			text = fmt.Sprint(n)
			if n > 0 && strings.Contains("response.total_size request.total_size request.duration request.time", path) {
				text = "+"
			}
		}
		b.WriteString(value(text, status) + " ")
	}
	return "(" + strings.TrimSpace(b.String()) + ")"
}
