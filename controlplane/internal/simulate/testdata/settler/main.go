// Command settler is a filter that allows all and says of each answer what it has seen: as the
// cost the bytes of its body, and as what told it the status, a trailer, the ticks since
// the request and how many requests are under way. A request names in x-rule the rule that
// holds for it. It is exported functions alone, without the SDK.
package main

import (
	"fmt"
	"unsafe"

	"github.com/sluice-ratelimit/sluice/envoy/sim/testdata/raw"
)

func main() {}

//go:wasmimport env proxy_set_property
func setProperty(path *byte, size uint32, value *byte, valueSize uint32) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func setTickPeriod(ms uint32) uint32

var (
	ticks int
	began = map[uint32]int{}
	bytes = map[uint32]uint32{}
)

func say(name, value string) {
	setProperty(unsafe.StringData(name), uint32(len(name)), unsafe.StringData(value), uint32(len(value)))
}

//go:wasmexport proxy_on_configure
func onConfigure(_, _ uint32) uint32 {
	setTickPeriod(1000)
	return 1
}

//go:wasmexport proxy_on_context_create
func onContextCreate(_, _ uint32) {}

//go:wasmexport proxy_on_tick
func onTick(uint32) { ticks++ }

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(id, _, _ uint32) uint32 {
	began[id] = ticks
	rules := ""
	if name, _ := raw.Header(0, "x-rule"); name != "" {
		rules = `{"rule":"` + name + `","key":[],"mode":"enforced","allowed":true,"windows":[]}`
	}
	say("sluice.report", `{"allowed":true,"rules":[`+rules+`]}`)
	return 0
}

//go:wasmexport proxy_on_response_body
func onResponseBody(id, size, _ uint32) uint32 {
	bytes[id] += size
	return 0
}

//go:wasmexport proxy_on_log
func onLog(id uint32) {
	status, _ := raw.Header(2, ":status")
	trailer, _ := raw.Header(3, "x-cost")
	say("sluice.settled", fmt.Sprintf(`[{"rule":"r","held":1,"cost":%d,"by":"%s,%s,%d,%d"}]`, bytes[id], status, trailer, ticks-began[id], len(began)))
	delete(began, id)
}
