// Command guest is the filter of the simulator's tests. A request says in its
// header x-do what to do, in steps parted by ";"; the answer is a local reply
// with a line for each step, or, after the step "on", the upstream's. Steps in
// x-then are done on the response and answered in headers x-then.
package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

//go:wasmimport env proxy_get_current_time_nanoseconds
func currentTime(ns unsafe.Pointer) uint32

//go:wasmimport env proxy_set_effective_context
func setEffectiveContext(id uint32) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func random(buf unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 poll_oneoff
func poll(in, out unsafe.Pointer, n uint32, events unsafe.Pointer) uint32

//go:wasmimport env proxy_get_buffer_bytes
func bufferBytes(kind, start, size uint32, data, length unsafe.Pointer) uint32

//go:wasmimport env proxy_send_local_response
func localResponse(code uint32, details unsafe.Pointer, detailsSize uint32, body unsafe.Pointer, bodySize uint32,
	headers unsafe.Pointer, headersSize uint32, grpc int32) uint32

// wild makes the allocator of the arena call the host.
var wild bool

var metrics = map[string]uint32{}

func main() {}

func init() {
	proxywasm.SetVMContext(&vm{})
}

type vm struct{ types.DefaultVMContext }

func (*vm) OnVMStart(size int) types.OnVMStartStatus {
	if b, err := proxywasm.GetVMConfiguration(); err == nil && string(b) == "refuse" {
		return false
	}
	return true
}

func (*vm) NewPluginContext(id uint32) types.PluginContext { return &plugin{id: id} }

type plugin struct {
	types.DefaultPluginContext
	id     uint32
	config string
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	b, err := proxywasm.GetPluginConfiguration()
	if err != nil && err != types.ErrorStatusNotFound {
		panic(err)
	}
	p.config = string(b)
	proxywasm.LogInfof("configure %s", p.config)
	for _, word := range strings.Fields(p.config) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "refuse":
			proxywasm.LogErrorf("refused: %s", value)
			return false
		case "panic":
			panic(value)
		case "tick":
			ms, _ := strconv.Atoi(value)
			_ = proxywasm.SetTickPeriodMilliSeconds(uint32(ms))
		case "set":
			_ = proxywasm.SetSharedData(value, []byte("configured"), 0)
		case "once":
			if proxywasm.SetSharedData("once", nil, 0xFFFFFFFE) != nil {
				return false
			}
		case "veto":
			if b, _, _ := proxywasm.GetSharedData(value); string(b) == "no" {
				return false
			}
		}
	}
	return true
}

func (p *plugin) OnTick() {
	proxywasm.LogInfof("tick %s", p.config)
}

func (p *plugin) OnPluginDone() bool {
	proxywasm.LogInfof("done %s", p.config)
	return true
}

func (p *plugin) NewHttpContext(id uint32) types.HttpContext { return &request{plugin: p, id: id} }

type request struct {
	types.DefaultHttpContext
	plugin *plugin
	id     uint32
	then   string
	log    bool
	action types.Action
	on     bool
}

func (r *request) OnHttpRequestHeaders(n int, end bool) types.Action {
	r.action = types.ActionContinue
	do, err := proxywasm.GetHttpRequestHeader("x-do")
	if err != nil {
		return types.ActionContinue
	}
	r.then, _ = proxywasm.GetHttpRequestHeader("x-then")
	lines := r.steps(do, n, end)
	if !r.on {
		_ = proxywasm.SendHttpResponse(200, [][2]string{{"x-from", "guest"}}, []byte(strings.Join(lines, "\n")), -1)
		return types.ActionContinue
	}
	for _, line := range lines {
		_ = proxywasm.AddHttpRequestHeader("x-did", line)
	}
	return r.action
}

func (r *request) OnHttpResponseHeaders(n int, end bool) types.Action {
	r.action = types.ActionContinue
	if r.then != "" {
		for _, line := range r.steps(r.then, n, end) {
			_ = proxywasm.AddHttpResponseHeader("x-then", line)
		}
	}
	return r.action
}

func (r *request) OnHttpStreamDone() {
	if r.log {
		path, err := proxywasm.GetHttpRequestHeader(":path")
		status, err2 := proxywasm.GetHttpResponseHeader(":status")
		code, err3 := proxywasm.GetProperty([]string{"response", "code"})
		proxywasm.LogInfof("log %s %v %s %v %v %v", path, err, status, err2, code, err3)
	}
}

func (r *request) steps(do string, n int, end bool) (lines []string) {
	for _, step := range strings.Split(do, ";") {
		lines = append(lines, r.step(n, end, strings.Fields(step)))
	}
	return lines
}

func answer(value any, err error) string {
	if err != nil {
		return strings.TrimPrefix(err.Error(), "error status returned by host: ")
	}
	return fmt.Sprint(value)
}

func (r *request) step(n int, end bool, w []string) string {
	w = append(w, "", "", "", "")
	switch w[0] {
	case "on":
		r.on = true
	case "pause":
		r.action = types.ActionPause
	case "resume":
		return answer("ok", proxywasm.ResumeHttpRequest())
	case "log":
		r.log = true
	case "say":
		fmt.Println("said", w[1])
	case "config":
		return r.plugin.config
	case "version":
		return version()
	case "panic":
		panic("asked to")
	case "info":
		return fmt.Sprint(n, " ", end)
	case "get":
		b, cas, err := proxywasm.GetSharedData(w[1])
		return answer(fmt.Sprintf("%s %d", b, cas), err)
	case "set":
		cas, _ := strconv.ParseUint(w[3], 10, 32)
		return answer("ok", proxywasm.SetSharedData(w[1], []byte(w[2]), uint32(cas)))
	case "header":
		return answer(proxywasm.GetHttpRequestHeader(w[1]))
	case "headers":
		return answer(proxywasm.GetHttpRequestHeaders())
	case "add":
		return answer("ok", proxywasm.AddHttpRequestHeader(w[1], w[2]))
	case "remove":
		return answer("ok", proxywasm.RemoveHttpRequestHeader(w[1]))
	case "response":
		return answer(proxywasm.GetHttpResponseHeader(w[1]))
	case "prop":
		b, err := proxywasm.GetProperty(strings.Split(w[1], "|"))
		return answer(fmt.Sprintf("%q", b), err)
	case "setprop":
		return answer("ok", proxywasm.SetProperty(strings.Split(w[1], "|"), []byte(w[2])))
	case "now":
		var ns int64
		currentTime(unsafe.Pointer(&ns))
		return fmt.Sprint(ns, " ", time.Now().UnixNano())
	case "counter", "gauge", "record", "metric", "again":
		return metric(w)
	case "random":
		var b [4]byte
		random(unsafe.Pointer(&b), 4)
		return fmt.Sprintf("%x", b)
	case "poll":
		var b [64]byte
		return fmt.Sprint(poll(unsafe.Pointer(&b), unsafe.Pointer(&b), 1, unsafe.Pointer(&b)))
	case "effective":
		id, _ := strconv.Atoi(w[1])
		return fmt.Sprint(setEffectiveContext(uint32(id)))
	case "buffer":
		kind, _ := strconv.Atoi(w[1])
		var data, length uint32
		return fmt.Sprint(bufferBytes(uint32(kind), 0, 10, unsafe.Pointer(&data), unsafe.Pointer(&length)), " ", length)
	case "call":
		_, err := proxywasm.DispatchHttpCall("c", [][2]string{{":path", "/"}, {":method", "GET"}, {":authority", "o"}}, nil, nil, 1, func(_, _, _ int) {})
		return answer("ok", err)
	case "foreign":
		_, err := proxywasm.CallForeignFunction("f", []byte("x"))
		return answer("ok", err)
	case "wild":
		wild = true
	case "mallocs":
		return fmt.Sprint(mallocs)
	case "reply":
		code, _ := strconv.Atoi(w[1])
		grpc, _ := strconv.Atoi(w[4])
		details, body := []byte(strings.ReplaceAll(w[3], "_", " ")), []byte(strings.ReplaceAll(w[2], "_", " "))
		var b, d unsafe.Pointer
		if len(body) > 0 {
			b = unsafe.Pointer(&body[0])
		}
		if len(details) > 0 {
			d = unsafe.Pointer(&details[0])
		}
		return fmt.Sprint(localResponse(uint32(code), d, uint32(len(details)), b, uint32(len(body)), nil, 0, int32(grpc)))
	default:
		return "what is " + w[0]
	}
	return "ok"
}

func metric(w []string) string {
	n, _ := strconv.ParseInt(w[2], 10, 64)
	id, known := metrics[w[1]]
	if !known || w[0] == "again" {
		switch w[0] {
		case "counter", "again":
			id = uint32(proxywasm.DefineCounterMetric(w[1]))
		default:
			id = uint32(proxywasm.DefineGaugeMetric(w[1]))
		}
		metrics[w[1]] = id
	}
	switch w[0] {
	case "counter":
		proxywasm.MetricCounter(id).Increment(uint64(n))
	case "gauge":
		proxywasm.MetricGauge(id).Add(n)
	}
	return fmt.Sprint(id, " ", proxywasm.MetricGauge(id).Value())
}
