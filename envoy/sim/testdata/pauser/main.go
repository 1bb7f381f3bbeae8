// Command pauser is the filter whose callbacks are recorded on a real Envoy. It
// logs each callback, and each host call with its status. A request says in its header x-do
// what to do, in steps parted by "|"; a message on a gRPC stream says it in steps
// parted by ";". It is exported functions alone, without the SDK.
package main

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"
)

func main() {}

//go:wasmimport env proxy_log
func hostLog(level uint32, text *byte, size uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func headerValue(kind uint32, key *byte, keySize uint32, value unsafe.Pointer, size *uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func bufferBytes(kind, start, size uint32, data unsafe.Pointer, length *uint32) uint32

//go:wasmimport env proxy_get_status
func lastStatus(code *uint32, text unsafe.Pointer, size *uint32) uint32

//go:wasmimport env proxy_set_effective_context
func setEffectiveContext(id uint32) uint32

//go:wasmimport env proxy_continue_stream
func continueStream(kind uint32) uint32

//go:wasmimport env proxy_close_stream
func closeStream(kind uint32) uint32

//go:wasmimport env proxy_send_local_response
func localResponse(code uint32, details *byte, detailsSize uint32, body *byte, bodySize uint32, headers *byte, headersSize uint32, grpc int32) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func setTickPeriod(ms uint32) uint32

//go:wasmimport env proxy_grpc_stream
func grpcStream(target *byte, targetSize uint32, service *byte, serviceSize uint32, method *byte, methodSize uint32,
	metadata *byte, metadataSize uint32, token *uint32) uint32

//go:wasmimport env proxy_grpc_send
func grpcSend(token uint32, message *byte, size, end uint32) uint32

//go:wasmimport env proxy_grpc_close
func grpcClose(token uint32) uint32

//go:wasmimport env proxy_grpc_cancel
func grpcCancel(token uint32) uint32

var (
	given   = map[uint32][]byte{} // memory that the host fills, kept until it is read
	root    uint32
	names   = map[uint32]string{} // of requests
	ids     = map[string]uint32{}
	token   uint32 // of the stream opened last
	onTick  string
	onClose string
)

//go:wasmexport proxy_abi_version_0_2_0
func abiVersion() {}

//go:wasmexport malloc
func malloc(size uint32) unsafe.Pointer {
	b := make([]byte, size)
	at := unsafe.Pointer(unsafe.SliceData(b))
	given[uint32(uintptr(at))] = b
	return at
}

//go:wasmexport proxy_on_vm_start
func onVMStart(_, _ uint32) uint32 { return 1 }

//go:wasmexport proxy_on_configure
func onConfigure(id, _ uint32) uint32 {
	root = id
	return 1
}

//go:wasmexport proxy_on_context_create
func onContextCreate(_, _ uint32) {}

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(id, _, end uint32) uint32 {
	name, _ := header(0, "x-name")
	names[id], ids[name] = name, id
	say("request_headers", name, end)
	do, _ := header(0, "x-do")
	return steps(do, "|")
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(id, _, end uint32) uint32 {
	status, _ := header(2, ":status")
	say("response_headers", names[id], status, end)
	return 0
}

//go:wasmexport proxy_on_log
func onLog(id uint32) {
	status, _ := header(2, ":status")
	say("log", name(id), status)
}

//go:wasmexport proxy_on_done
func onDone(id uint32) uint32 {
	say("done", name(id))
	return 1
}

//go:wasmexport proxy_on_delete
func onDelete(id uint32) {
	say("delete", name(id))
	delete(ids, names[id])
	delete(names, id)
}

//go:wasmexport proxy_on_tick
func onTicked(id uint32) {
	setTickPeriod(0)
	say("tick", name(id))
	steps(onTick, ";")
}

//go:wasmexport proxy_on_grpc_receive_initial_metadata
func onInitialMetadata(id, token, n uint32) {
	kind, status := header(4, "content-type")
	say("grpc_initial_metadata", name(id), token, n > 0, kind, status)
}

//go:wasmexport proxy_on_grpc_receive
func onReceive(id, token, size uint32) {
	text, status := buffer()
	say("grpc_receive", name(id), token, size, status)
	steps(text, ";")
}

//go:wasmexport proxy_on_grpc_receive_trailing_metadata
func onTrailingMetadata(id, token, n uint32) {
	grpc, status := header(5, "grpc-status")
	say("grpc_trailing_metadata", name(id), token, n > 0, grpc, status)
}

//go:wasmexport proxy_on_grpc_close
func onClosed(id, token, code uint32) {
	say("grpc_close", name(id), token, code)
	do := onClose
	onClose = ""
	steps(do, ";")
}

func name(id uint32) string {
	if id == root {
		return "root"
	}
	return names[id]
}

func say(words ...any) {
	line := fmt.Sprintln(words...)
	hostLog(2, unsafe.StringData(line), uint32(len(line)-1))
}

func header(kind uint32, key string) (string, uint32) {
	var at uint32
	var size uint32
	status := headerValue(kind, unsafe.StringData(key), uint32(len(key)), unsafe.Pointer(&at), &size)
	return taken(at, size), status
}

func buffer() (string, uint32) {
	var at, size uint32
	status := bufferBytes(5, 0, 1<<20, unsafe.Pointer(&at), &size)
	return taken(at, size), status
}

func taken(at, size uint32) string {
	b := given[at]
	delete(given, at)
	return string(b[:min(int(size), len(b))])
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
		case "open", "raw":
			say(s, open(verb, rest), token)
		case "send":
			say(s, grpcSend(token, unsafe.StringData(rest), uint32(len(rest)), 0))
		case "last":
			say(s, grpcSend(token, unsafe.StringData(rest), uint32(len(rest)), 1))
		case "sendto":
			say(s, grpcSend(uint32(n), unsafe.StringData(second), uint32(len(second)), 0))
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
		case "reset":
			say(s, as(first, func() uint32 { return closeStream(0) }))
		case "reply":
			code, _ := strconv.Atoi(second)
			body := "from the filter"
			say(s, as(first, func() uint32 {
				return localResponse(uint32(code), nil, 0, unsafe.StringData(body), uint32(len(body)), nil, 0, -1)
			}))
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
			text, status := buffer()
			say(s, text, status)
		case "status":
			var code, at, size uint32
			status := lastStatus(&code, unsafe.Pointer(&at), &size)
			taken(at, size) // the text differs from version to version
			say(s, code, status)
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

// open opens a stream to a cluster, named in a GrpcService or by itself.
func open(how, cluster string) uint32 {
	target := cluster
	if how == "open" {
		envoyGRPC := "\x0a" + string(rune(len(cluster))) + cluster
		target = "\x0a" + string(rune(len(envoyGRPC))) + envoyGRPC
	}
	const service, method = "test.Commands", "Talk"
	return grpcStream(unsafe.StringData(target), uint32(len(target)), unsafe.StringData(service), uint32(len(service)),
		unsafe.StringData(method), uint32(len(method)), nil, 0, &token)
}
