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

	"github.com/sluice-ratelimit/sluice/envoy/sim/testdata/raw"
)

func main() {}

//go:wasmimport env proxy_set_effective_context
func setEffectiveContext(id uint32) uint32

//go:wasmimport env proxy_continue_stream
func continueStream(kind uint32) uint32

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
	root    uint32
	names   = map[uint32]string{} // of requests
	ids     = map[string]uint32{}
	token   uint32 // of the stream opened last
	onTick  string
	onClose string
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
	name, _ := raw.Header(0, "x-name")
	names[id], ids[name] = name, id
	raw.Say("request_headers", name, end)
	do, _ := raw.Header(0, "x-do")
	return steps(do, "|")
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(id, _, end uint32) uint32 {
	status, _ := raw.Header(2, ":status")
	raw.Say("response_headers", names[id], status, end)
	return 0
}

//go:wasmexport proxy_on_log
func onLog(id uint32) {
	status, _ := raw.Header(2, ":status")
	raw.Say("log", name(id), status)
}

//go:wasmexport proxy_on_done
func onDone(id uint32) uint32 {
	raw.Say("done", name(id))
	return 1
}

//go:wasmexport proxy_on_delete
func onDelete(id uint32) {
	raw.Say("delete", name(id))
	delete(ids, names[id])
	delete(names, id)
}

//go:wasmexport proxy_on_tick
func onTicked(id uint32) {
	setTickPeriod(0)
	raw.Say("tick", name(id))
	steps(onTick, ";")
}

//go:wasmexport proxy_on_grpc_receive
func onReceive(id, token, size uint32) {
	text, status := raw.Buffer(5)
	raw.Say("grpc_receive", name(id), token, size, status)
	steps(text, ";")
}

//go:wasmexport proxy_on_grpc_close
func onClosed(id, token, code uint32) {
	raw.Say("grpc_close", name(id), token, code)
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
			raw.Say(s, open(rest), token)
		case "send":
			raw.Say(s, grpcSend(token, unsafe.StringData(rest), uint32(len(rest)), 0))
		case "last":
			raw.Say(s, grpcSend(token, unsafe.StringData(rest), uint32(len(rest)), 1))
		case "sendto":
			raw.Say(s, grpcSend(uint32(n), unsafe.StringData(second), uint32(len(second)), 0))
		case "half":
			raw.Say(s, grpcClose(token))
		case "halfof":
			raw.Say(s, grpcClose(uint32(n)))
		case "cancel":
			raw.Say(s, grpcCancel(token))
		case "cancelof":
			raw.Say(s, grpcCancel(uint32(n)))
		case "resume":
			raw.Say(s, as(first, func() uint32 { return continueStream(0) }))
		case "reply":
			code, _ := strconv.Atoi(second)
			body := "from the filter"
			raw.Say(s, as(first, func() uint32 {
				return localResponse(uint32(code), nil, 0, unsafe.StringData(body), uint32(len(body)), nil, 0, -1)
			}))
		case "all":
			for i := range n {
				steps(strings.ReplaceAll(strings.SplitN(s, " ", 3)[2], "R", "r"+strconv.Itoa(i)), ";")
			}
		case "path":
			var path string
			raw.Say(s, as(first, func() (status uint32) {
				path, status = raw.Header(0, ":path")
				return status
			}), path)
		case "effective":
			raw.Say(s, setEffectiveContext(uint32(n)))
		case "tick":
			onTick = strings.ReplaceAll(second, "+", ";")
			raw.Say("tick", n, setTickPeriod(uint32(n)))
		case "onclose":
			onClose = strings.ReplaceAll(rest, "+", ";")
		case "buffer":
			text, status := raw.Buffer(5)
			raw.Say(s, text, status)
		default:
			raw.Say("what is", s)
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

// open opens a stream to a cluster, named in a GrpcService.
func open(cluster string) uint32 {
	envoyGRPC := "\x0a" + string(rune(len(cluster))) + cluster
	target := "\x0a" + string(rune(len(envoyGRPC))) + envoyGRPC
	const service, method = "test.Commands", "Talk"
	return grpcStream(unsafe.StringData(target), uint32(len(target)), unsafe.StringData(service), uint32(len(service)),
		unsafe.StringData(method), uint32(len(method)), nil, 0, &token)
}
