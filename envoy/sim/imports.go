package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// status is the result of a host call, numbered as in the proxy-wasm ABI.
type status uint32

const (
	statusOK            status = 0
	notFound            status = 1
	badArgument         status = 2
	serializationFailed status = 3
	invalidMemory       status = 6
	casMismatch         status = 8
	internalFailure     status = 10
	unimplemented       status = 12
)

// The times at which most host calls trap: while the VM starts, and while it allocates memory
// for the host. A call says when it is allowed nevertheless.
const (
	inStart uint8 = 1 << iota
	inAlloc
)

// hostCall is one function the host offers: i is a 32 bit and I a 64 bit parameter, b a
// pointer and a size, whose bytes the function is given. Exactly one of the functions is
// set; its result decides which.
type hostCall struct {
	name    string
	params  string
	allowed uint8
	proxy   func(*vm, args) status    // a proxy-wasm status
	wasi    func(*vm, []uint64) errno // a WASI errno
	other   func(*vm, []uint64)       // nothing, or puts its own result
	result  bool                      // other puts a 32 bit result
}

// args are the parameters of a call: n has those of kinds i and I, b the bytes of those of
// kind b, each in order. The bytes are valid until the guest next runs.
type args struct {
	n [maxNumbers]uint64
	b [maxBytes][]byte
}

// The most parameters of a kind that a call has.
const (
	maxNumbers = 12
	maxBytes   = 4
)

// envCalls is what the oldest supported Envoy (1.36) registers for modules of
// ABI 0.2.0, which all of our filters speak.
var envCalls = []hostCall{
	{name: "proxy_log", params: "ib", proxy: (*vm).log, allowed: inStart | inAlloc},
	{name: "proxy_get_status", params: "iii", proxy: notOffered},
	{name: "proxy_set_property", params: "bb", proxy: (*vm).setProperty},
	{name: "proxy_get_property", params: "bii", proxy: (*vm).getProperty},
	{name: "proxy_send_local_response", params: "ibbbi", proxy: (*vm).sendLocalResponse},
	{name: "proxy_get_shared_data", params: "biii", proxy: (*vm).getSharedData},
	{name: "proxy_set_shared_data", params: "bbi", proxy: (*vm).setSharedData},
	{name: "proxy_register_shared_queue", params: "iii", proxy: notOffered},
	{name: "proxy_resolve_shared_queue", params: "iiiii", proxy: notOffered},
	{name: "proxy_dequeue_shared_queue", params: "iii", proxy: notOffered},
	{name: "proxy_enqueue_shared_queue", params: "iii", proxy: notOffered},
	{name: "proxy_get_header_map_value", params: "ibii", proxy: (*vm).getHeader},
	{name: "proxy_add_header_map_value", params: "ibb", proxy: (*vm).addHeader},
	{name: "proxy_replace_header_map_value", params: "iiiii", proxy: notOffered},
	{name: "proxy_remove_header_map_value", params: "ib", proxy: (*vm).removeHeader},
	{name: "proxy_get_header_map_pairs", params: "iii", proxy: (*vm).getHeaders},
	{name: "proxy_set_header_map_pairs", params: "iii", proxy: notOffered},
	{name: "proxy_get_header_map_size", params: "ii", proxy: notOffered},
	{name: "proxy_get_buffer_status", params: "iii", proxy: notOffered},
	{name: "proxy_get_buffer_bytes", params: "iiiii", proxy: (*vm).getBuffer},
	{name: "proxy_set_buffer_bytes", params: "iiiii", proxy: notOffered},
	{name: "proxy_http_call", params: "iiiiiiiiii", proxy: notOffered},
	{name: "proxy_grpc_call", params: "iiiiiiiiiiii", proxy: notOffered},
	{name: "proxy_grpc_stream", params: "bbbbi", proxy: (*vm).grpcStream},
	{name: "proxy_grpc_close", params: "i", proxy: (*vm).grpcClose},
	{name: "proxy_grpc_cancel", params: "i", proxy: (*vm).grpcCancel},
	{name: "proxy_grpc_send", params: "ibi", proxy: (*vm).grpcSend},
	{name: "proxy_set_tick_period_milliseconds", params: "i", proxy: (*vm).setTickPeriod},
	{name: "proxy_get_current_time_nanoseconds", params: "i", proxy: (*vm).currentTime},
	{name: "proxy_define_metric", params: "ibi", proxy: (*vm).defineMetric},
	{name: "proxy_increment_metric", params: "iI", proxy: (*vm).incrementMetric},
	{name: "proxy_record_metric", params: "iI", proxy: (*vm).recordMetric},
	{name: "proxy_get_metric", params: "ii", proxy: (*vm).getMetric},
	{name: "proxy_set_effective_context", params: "i", proxy: (*vm).setEffectiveContext},
	{name: "proxy_done", params: "", proxy: notOffered},
	{name: "proxy_call_foreign_function", params: "iiiiii", proxy: foreignFunction},
	{name: "proxy_continue_stream", params: "i", proxy: (*vm).continueStream},
	{name: "proxy_close_stream", params: "i", proxy: notOffered},
	{name: "envoy_resolve_dns", params: "iii", proxy: notOffered},
	{name: "pthread_equal", params: "ii", other: pthreadEqual, result: true},
	{name: "emscripten_notify_memory_growth", params: "i", other: func(*vm, []uint64) {}, allowed: inStart},
}

// HostFunctions names the functions that the oldest supported Envoy offers a
// module of ABI 0.2.0, as far as a list of capabilities can forbid them.
func HostFunctions() []string {
	var names []string
	for _, c := range slices.Concat(envCalls, wasiCalls) {
		switch c.name {
		case "envoy_resolve_dns", "pthread_equal", "emscripten_notify_memory_growth": // every module has them
		default:
			names = append(names, c.name)
		}
	}
	return names
}

// notOffered answers the calls that no filter of ours makes.
func notOffered(*vm, args) status { return unimplemented }

func foreignFunction(*vm, args) status { return notFound }

func pthreadEqual(_ *vm, s []uint64) { s[0] = boolean(uint32(s[0]) == uint32(s[1])) }

// modules is what each import module offers to a guest.
var modules = map[string][]hostCall{"env": envCalls, "wasi_snapshot_preview1": wasiCalls, "wasi_unstable": wasiCalls}

func (c *hostCall) types() (params, results []api.ValueType) {
	for _, p := range c.params {
		switch p {
		case 'I':
			params = append(params, api.ValueTypeI64)
		case 'b':
			params = append(params, api.ValueTypeI32, api.ValueTypeI32)
		default:
			params = append(params, api.ValueTypeI32)
		}
	}
	if c.other == nil || c.result {
		results = []api.ValueType{api.ValueTypeI32}
	}
	return params, results
}

// check refuses a module that the oldest supported Envoy could not link or
// start, and says what is wrong with it.
func check(m wazero.CompiledModule) error {
	exports := m.ExportedFunctions()
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return exports[n] != nil })
	}
	switch {
	case !has("proxy_abi_version_0_2_0"):
		return errors.New("check module: it does not export proxy_abi_version_0_2_0")
	case !has("malloc", "proxy_on_memory_allocate"):
		return errors.New("check module: it exports neither malloc nor proxy_on_memory_allocate")
	case !has("_initialize"):
		return errors.New("check module: it does not export _initialize")
	}
	if len(m.ImportedMemories()) > 0 {
		return errors.New("check module: it imports a memory, Envoy offers none")
	}
	for _, f := range m.ImportedFunctions() {
		module, name, _ := f.Import()
		i := slices.IndexFunc(modules[module], func(c hostCall) bool { return c.name == name })
		if i < 0 {
			return fmt.Errorf("check module: it imports %s.%s, which the oldest supported Envoy (1.36) does not offer",
				module, name)
		}
		params, results := modules[module][i].types()
		if !slices.Equal(params, f.ParamTypes()) || !slices.Equal(results, f.ResultTypes()) {
			return fmt.Errorf("check module: it imports %s.%s with parameters (%s), Envoy offers (%s)",
				module, name, typeNames(f.ParamTypes()), typeNames(params))
		}
	}
	return nil
}

func typeNames(types []api.ValueType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = api.ValueTypeName(t)
	}
	return strings.Join(names, " ")
}

// vmKey finds the VM of a call in its context.
type vmKey struct{}

// register offers the host calls to all modules of a runtime.
func register(ctx context.Context, r wazero.Runtime) error {
	for module, calls := range modules {
		b := r.NewHostModuleBuilder(module)
		for i := range calls {
			c := &calls[i]
			params, results := c.types()
			b.NewFunctionBuilder().WithGoModuleFunction(c.function(), params, results).Export(c.name)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("register host calls of %s: %w", module, err)
		}
	}
	return nil
}

func (c *hostCall) function() api.GoModuleFunc {
	return func(ctx context.Context, _ api.Module, stack []uint64) {
		v := ctx.Value(vmKey{}).(*vm)
		if v.host.o.OnCall != nil {
			v.host.o.OnCall(v.id, c.name)
		}
		if v.restricted&^c.allowed != 0 {
			panic(fmt.Errorf("restricted_callback: %s is not allowed while the VM %s", c.name, v.restriction()))
		}
		switch {
		case c.proxy != nil:
			stack[0] = uint64(c.call(v, stack))
		case c.wasi != nil:
			stack[0] = uint64(c.wasi(v, stack))
		default:
			c.other(v, stack)
		}
	}
}

// call reads the bytes that the guest names, and does what it asks for.
func (c *hostCall) call(v *vm, stack []uint64) status {
	var a args
	numbers := a.n[:0]
	bytes := a.b[:0]
	for _, p := range c.params {
		if p != 'b' {
			numbers = append(numbers, stack[0])
			stack = stack[1:]
			continue
		}
		b, ok := v.read(stack[0], stack[1])
		if !ok {
			return invalidMemory
		}
		bytes = append(bytes, b)
		stack = stack[2:]
	}
	return c.proxy(v, a)
}
