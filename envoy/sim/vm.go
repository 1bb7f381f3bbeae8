package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// The guest's callbacks, in the order of callbackNames.
const (
	callContextCreate = iota
	callVMStart
	callConfigure
	callTick
	callRequestHeaders
	callResponseHeaders
	callResponseBody
	callLog
	callDone
	callDelete
	callGRPCReceive
	callGRPCClose
	callbacks
)

var callbackNames = [callbacks]string{
	"proxy_on_context_create", "proxy_on_vm_start", "proxy_on_configure", "proxy_on_tick",
	"proxy_on_request_headers", "proxy_on_response_headers", "proxy_on_response_body", "proxy_on_log", "proxy_on_done",
	"proxy_on_delete", "proxy_on_grpc_receive", "proxy_on_grpc_close",
}

// vm is one instance of the filter. Its thread's lock guards it.
type vm struct {
	host   *Host
	id     int
	thread *thread // nil of a trial
	filter *filter
	ctx    context.Context
	module api.Module
	mem    api.Memory
	on     [callbacks]api.Function
	alloc  api.Function
	dice   *rand.ChaCha8 // nil = true random
	failed error         // set for good when a call into the VM trapped

	scopes     map[uint32]*scope // all contexts by id
	roots      []*scope          // those of configurations
	nextID     uint32
	current    *scope   // of the callback that runs
	effective  uint32   // the context the guest chose to act for, 0 = current
	afterwards []func() // what host calls have put off until the callback returns
	nested     int      // callbacks that run inside others
	nextToken  uint32

	metrics       metricIDs
	restricted    uint8 // why most host calls are forbidden now
	stopIteration bool  // the callback sent a reply: its action counts no more

	stack      [8]uint64
	allocStack [2]uint64
	scratch    []byte
	spare      []*scope // contexts of past requests to use again

	heard    *[]string // collects log lines while set
	printing Level     // of what follows
	printed  []byte    // a line on standard output or error, not ended yet
}

// instantiate starts a VM as far as its _initialize.
func (h *Host) instantiate(id int, f *filter, heard *[]string) (*vm, error) {
	v := &vm{host: h, id: id, filter: f, scopes: map[uint32]*scope{}, nextID: 1, nextToken: tokenFirst, heard: heard}
	v.ctx = context.WithValue(h.ctx, vmKey{}, v)
	if h.o.Seed != 0 {
		var seed [32]byte
		for i := range 8 {
			seed[i] = byte(h.o.Seed >> (8 * i))
			seed[8+i] = byte(uint64(id) >> (8 * i))
		}
		v.dice = rand.NewChaCha8(seed)
	}
	v.scopes[0] = &scope{vm: v}
	v.scopes[0].root = v.scopes[0]
	v.current = v.scopes[0]
	m, err := f.runtime.InstantiateModule(v.ctx, f.module, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return v, fmt.Errorf("instantiate module: %w", err)
	}
	v.module, v.mem = m, m.Memory()
	if v.mem == nil {
		return v, errors.New("instantiate module: it has no memory")
	}
	for i, name := range callbackNames {
		if !slices.Contains(h.o.Withheld, name) {
			v.on[i] = m.ExportedFunction(name)
		}
	}
	v.alloc = m.ExportedFunction("malloc")
	if v.alloc == nil {
		v.alloc = m.ExportedFunction("proxy_on_memory_allocate")
	}
	return v, v.initialize()
}

func (v *vm) initialize() error {
	v.restricted = inStart
	defer func() { v.restricted = 0 }()
	if _, err := v.module.ExportedFunction("_initialize").Call(v.ctx); err != nil {
		v.fail("_initialize", err)
	}
	return v.failed
}

// maxNested is how many callbacks fit into each other before Envoy's stack is full
// and the VM traps. Envoys 1.36 and 1.40 managed a message with 304 local replies.
const maxNested = 305

// enter calls into the guest for a context. It returns 0 for a callback the
// guest does not export and in a VM that failed. What the guest put off is done
// before it returns, and may enter again.
func (v *vm) enter(sc *scope, callback int, args ...uint64) uint64 {
	f := v.on[callback]
	if f == nil || v.failed != nil {
		v.stopIteration = false
		return 0
	}
	current, effective := v.current, v.effective
	v.current, v.effective = sc, 0
	v.stopIteration = false
	copy(v.stack[:], args)
	v.nested++
	var err error
	if v.nested > maxNested {
		err = errors.New("stack overflow: too many callbacks inside others")
	} else {
		err = f.CallWithStack(v.ctx, v.stack[:])
	}
	v.current, v.effective = current, effective
	v.flush()
	if err != nil {
		v.fail(callbackNames[callback], err)
		if sc.stream != nil {
			sc.stream.trapped = true
		}
	}
	// What was put off may enter the guest again, and such a callback overwrites both.
	result, stopped := v.stack[0], v.stopIteration
	for len(v.afterwards) > 0 {
		do := v.afterwards[0]
		v.afterwards = v.afterwards[1:]
		do()
	}
	v.nested--
	v.stopIteration = stopped
	if err != nil {
		return 0
	}
	return uint64(uint32(result))
}

// later puts something off until the guest has returned.
func (v *vm) later(do func()) { v.afterwards = append(v.afterwards, do) }

// dead reports whether the VM has failed.
func (v *vm) dead() bool { return v.failed != nil }

// fail ends the VM: nothing calls into it again.
func (v *vm) fail(call string, err error) {
	v.flush()
	reason, trace, _ := strings.Cut(err.Error(), "\n")
	v.failed = fmt.Errorf("vm failed in %s: %s", call, reason)
	v.restricted = 0
	v.host.log(Critical, v.id, v.failed.Error())
	v.host.log(Debug, v.id, trace)
	v.close()
}

func (v *vm) close() {
	for _, root := range v.roots {
		root.hangUp()
	}
	if v.module != nil {
		_ = v.module.Close(v.ctx)
	}
}

func (v *vm) say(level Level, message string) {
	if v.heard != nil && level >= Info {
		*v.heard = append(*v.heard, message)
	}
	v.host.log(level, v.id, message)
}

func (v *vm) restriction() string {
	if v.restricted&inAlloc != 0 {
		return "allocates memory"
	}
	return "starts"
}

// scope is the context that host calls act for.
func (v *vm) scope() *scope {
	if v.effective != 0 {
		if sc := v.scopes[v.effective]; sc != nil {
			return sc
		}
	}
	return v.current
}

// newID returns a context id that is not in use.
func (v *vm) newID() uint32 {
	for {
		id := v.nextID
		v.nextID++
		if v.scopes[id] == nil {
			return id
		}
	}
}

// read returns guest memory. It is valid until the guest next runs.
func (v *vm) read(pointer, size uint64) ([]byte, bool) {
	return v.mem.Read(uint32(pointer), uint32(size))
}

func (v *vm) writeU32(pointer uint64, value uint32) status {
	if !v.mem.WriteUint32Le(uint32(pointer), value) {
		return invalidMemory
	}
	return statusOK
}

func (v *vm) writeU64(pointer uint64, value uint64) status {
	if !v.mem.WriteUint64Le(uint32(pointer), value) {
		return invalidMemory
	}
	return statusOK
}

// allocate has the guest allocate memory, as for every value it is given. A
// trap in there ends the VM and unwinds the callback that made the call.
func (v *vm) allocate(size int) (uint32, bool) {
	v.restricted |= inAlloc
	v.allocStack[0] = uint64(size)
	err := v.alloc.CallWithStack(v.ctx, v.allocStack[:])
	v.restricted &^= inAlloc
	if err != nil {
		panic(fmt.Errorf("allocate %d bytes: %w", size, err))
	}
	pointer := uint32(v.allocStack[0])
	return pointer, pointer != 0
}

// give hands a value to the guest: memory of its own, and where it is. An empty
// value is a null pointer and costs no call.
func (v *vm) give(value []byte, toPointer, toSize uint64) status {
	var at uint32
	if len(value) > 0 {
		pointer, ok := v.allocate(len(value))
		if !ok || !v.mem.Write(pointer, value) {
			return invalidMemory
		}
		at = pointer
	}
	return v.point(at, len(value), toPointer, toSize)
}

func (v *vm) giveString(value string, toPointer, toSize uint64) status {
	var at uint32
	if len(value) > 0 {
		pointer, ok := v.allocate(len(value))
		if !ok || !v.mem.WriteString(pointer, value) {
			return invalidMemory
		}
		at = pointer
	}
	return v.point(at, len(value), toPointer, toSize)
}

func (v *vm) point(at uint32, length int, toPointer, toSize uint64) status {
	if written := v.writeU32(toPointer, at); written != statusOK {
		return written
	}
	return v.writeU32(toSize, uint32(length))
}

// filter is a compiled filter and its hash.
type filter struct {
	*compiler
	module wazero.CompiledModule
	sum    [sha256.Size]byte
}

// compiler compiles filters, each once for all Hosts of this process that keep what is
// compiled in the same directory. It and they stay for the life of the process.
type compiler struct {
	mu      sync.Mutex
	runtime wazero.Runtime
	filters map[[sha256.Size]byte]*filter
}

var compilers = struct {
	sync.Mutex
	of map[string]*compiler // by directory
}{of: map[string]*compiler{}}

// compilerOf returns the compiler of a directory; without one, what is compiled is kept
// in memory alone.
func compilerOf(dir string) (*compiler, error) {
	compilers.Lock()
	defer compilers.Unlock()
	if c := compilers.of[dir]; c != nil {
		return c, nil
	}
	ctx, config := context.Background(), wazero.NewRuntimeConfig()
	if dir != "" {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, fmt.Errorf("open compilation cache: %w", err)
		}
		config = config.WithCompilationCache(cache)
	}
	c := &compiler{runtime: wazero.NewRuntimeWithConfig(ctx, config), filters: map[[sha256.Size]byte]*filter{}}
	if err := register(ctx, c.runtime); err != nil {
		_ = c.runtime.Close(ctx)
		return nil, err
	}
	compilers.of[dir] = c
	return c, nil
}

// compile returns a filter that Envoy could load.
func (c *compiler) compile(wasm []byte) (*filter, error) {
	sum := sha256.Sum256(wasm)
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.filters[sum]; f != nil {
		return f, nil
	}
	m, err := c.runtime.CompileModule(context.Background(), wasm)
	if err != nil {
		return nil, fmt.Errorf("compile module: %w", err)
	}
	if err := check(m); err != nil {
		_ = m.Close(context.Background())
		return nil, err
	}
	f := &filter{compiler: c, module: m, sum: sum}
	c.filters[sum] = f
	return f, nil
}
