// Package sim runs the compiled filter without Envoy: a proxy-wasm host on
// wazero with a number of worker VMs and one store of shared data.
//
// Its invariant: to the filter it looks like Envoy 1.36, the oldest one
// supported. It offers no more, returns the same status numbers, and keeps the order of
// callbacks; where it cannot, it says so and does not guess. The filter sees the bodies of
// responses but not those of requests, trailers when it logs, and dynamic metadata only as a
// whole. Its only calls to clusters are gRPC streams, to whatever Options.Dial reaches.
//
// A thread runs one callback at a time. A request that the filter has paused leaves the thread
// to others. The filter may resume a request, or answer it, in a callback of another one. The
// host does so when that callback has returned. If this calls the filter again, a callback runs
// inside the first, as in Envoy.
//
// A message for a gRPC stream of the filter waits until it is due. With real time,
// Inbox.Deliver then delivers it. A caller that sets the time calls Host.TickDue instead: it
// starts requests with Start, and while one is paused it sets the time to Next and calls
// TickDue. From one goroutine, the same requests give the same order.
//
// testdata/guest/talks.txt, and for answers answers.txt beside it, hold what
// Envoys 1.36 and 1.40 did, over HTTP/1.1 and HTTP/2. The simulator differs from them in this:
//   - A client that disconnects is reported as over HTTP/1.1.
//   - Within one HTTP/2 connection, where one request's callback denies another, Envoy
//     logs and deletes the denied one after it has answered the other.
//   - A stream ends with its VM; in Envoy, with the last request of that VM.
//   - A VM that has trapped is made anew by the first request that comes a second after
//     its last start; Envoy, with FAIL_RELOAD, adds up to half a second at random.
//   - A call on a stream that the other end has closed answers OK, and does nothing. By
//     its source, Envoy then reads memory that it has freed, and so it does when a
//     configuration goes that has such a stream. A filter therefore closes its own end
//     in proxy_on_grpc_close, and never uses the token again.
//
// It must never import the filter, the engine or a policy: it knows nothing of
// rate limits.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"
)

// Level is the level of a log line, numbered as in the proxy-wasm ABI.
type Level uint32

// The levels, the least urgent first.
const (
	Trace Level = iota
	Debug
	Info
	Warn
	Error
	Critical
)

func (l Level) String() string {
	names := [...]string{"trace", "debug", "info", "warn", "error", "critical"}
	if int(l) < len(names) {
		return names[l]
	}
	return fmt.Sprintf("level %d", uint32(l))
}

// VMs that are not workers, as Log and OnCall name them. Workers count from 0.
const (
	Main  = -1 // the VM of Envoy's main thread: it serves nothing, but ticks
	Trial = -2 // the VM that tries a configuration, and is thrown away
)

// Options say what a Host is made of. Only Wasm is needed.
type Options struct {
	Wasm            []byte
	Workers         int    // worker VMs, 1 if 0
	VMID            string // namespace of the shared data
	VMConfiguration []byte
	PluginName      string // properties plugin_name and
	RootID          string // plugin_root_id

	// Properties are known to every context, also those of the plugin: node.*,
	// for one. Paths are joined with dots or zero bytes.
	Properties map[string][]byte

	// Store is shared with other hosts; nil = one of its own.
	Store *Store

	// Now is all the time the guest sees, in ns since the epoch, by
	// proxy_get_current_time_nanoseconds and by WASI. It may step back; the
	// monotonic clock of WASI and the ticks then stand still. Nil = real time.
	Now func() int64

	// Log gets the guest's lines of LogLevel and above, and those of the host
	// about a VM. It may be called by several VMs at a time, and must not call
	// the host.
	Log      func(level Level, vm int, message string)
	LogLevel Level

	// Withheld are callbacks that the filter does not get, although it exports them: a list of
	// capabilities leaves them out.
	Withheld []string

	// OnCall is called before each call of the guest to the host, by its
	// import name, on the goroutine of the VM: it may block. Those that do not
	// begin with proxy_ are WASI's and come at any time: the Go runtime reads
	// clocks when it collects garbage.
	OnCall func(vm int, call string)

	// OnShared is called before each read and write of shared data, on the goroutine of the
	// VM. It may block; what others write to the store meanwhile comes first.
	OnShared func(vm int, a Access)

	// Dial opens the gRPC streams of the filter. An error says that there is no
	// such cluster; one that cannot be reached is a stream that closes. It is called
	// on the thread of the VM: it must not wait, and must not call the host. Nil = there are
	// no clusters.
	Dial func(c Call, in *Inbox) (Peer, error)

	// StreamIdle is how long a request stays paused before it is answered with an
	// error, as by Envoy's stream_idle_timeout. 0 = for ever.
	StreamIdle time.Duration

	// Seed makes the random numbers of each VM repeat. 0 = true random.
	Seed uint64

	// CacheDir keeps compiled modules on disk. Empty = compile anew in each process.
	CacheDir string
}

// Host is one simulated Envoy with the filter in each of its threads. Its
// methods may be used by several goroutines; one thread serves one at a time.
type Host struct {
	compiler *compiler
	ctx      context.Context

	o       Options
	shared  *Namespace
	metrics metrics
	reloads reloads
	changed chan struct{}

	clock struct {
		sync.Mutex
		last, elapsed int64
	}

	updates    sync.Mutex // one configuration at a time
	closed     bool
	filter     *filter
	configured []byte    // what runs, nil before the first
	threads    []*thread // the workers, then the main thread
}

// thread is one of Envoy's threads. It runs one call at a time.
type thread struct {
	sync.Mutex
	id      int
	root    *scope // context of the running configuration, nil if it has none
	started bool   // a configuration has reached it
	loaded  int64  // when root was started or, where it has failed, last tried again
	running []*vm  // see vms
	host    *Host
	paused  []*Exchange // the longest first
	mail    mail
}

// New compiles a filter and refuses one that Envoy could not load. It starts
// no VM: the first Configure does.
func New(ctx context.Context, o Options) (*Host, error) {
	h := &Host{ctx: ctx, o: o, changed: make(chan struct{}, 1)}
	if o.Workers < 0 {
		return nil, fmt.Errorf("start simulator: %d workers, want at least 1", o.Workers)
	}
	if h.o.Now == nil {
		h.o.Now = func() int64 { return time.Now().UnixNano() }
	}
	var err error
	h.compiler, err = compilerOf(o.CacheDir)
	if err != nil {
		return nil, err
	}
	h.filter, err = h.compiler.compile(o.Wasm)
	if err != nil {
		return nil, err
	}
	h.shared = cmp.Or(o.Store, NewStore()).Namespace(o.VMID)
	h.shared.hold()
	h.clock.last, h.clock.elapsed = h.o.Now(), int64(time.Second)
	for id := range max(o.Workers, 1) {
		h.threads = append(h.threads, &thread{id: id, host: h})
	}
	h.threads = append(h.threads, &thread{id: Main, host: h})
	return h, nil
}

// Workers returns the number of worker VMs.
func (h *Host) Workers() int { return len(h.threads) - 1 }

// Failed returns why a worker has no filter to serve with, nil if it has one. A VM that
// trapped is made anew at a later request.
func (h *Host) Failed(worker int) error {
	t, err := h.worker(worker)
	if err != nil {
		return err
	}
	t.Lock()
	defer t.Unlock()
	if t.root == nil {
		return fmt.Errorf("worker %d: no configuration runs", worker)
	}
	return t.root.vm.failed
}

// Memory returns the bytes of a worker's VM, 0 where none runs. It never shrinks.
func (h *Host) Memory(worker int) uint64 {
	t, err := h.worker(worker)
	if err != nil {
		return 0
	}
	t.Lock()
	defer t.Unlock()
	if t.root == nil {
		return 0
	}
	return uint64(t.root.vm.mem.Size())
}

// Ask calls an export that is not part of the ABI, takes no arguments and returns
// a number. A filter that was built for a test may have one.
func (h *Host) Ask(worker int, export string) (uint64, error) {
	t, err := h.worker(worker)
	if err != nil {
		return 0, err
	}
	t.Lock()
	defer t.Unlock()
	if t.root == nil || t.root.vm.failed != nil {
		return 0, fmt.Errorf("ask worker %d: no configuration runs", worker)
	}
	f := t.root.vm.module.ExportedFunction(export)
	if f == nil {
		return 0, fmt.Errorf("ask worker %d: the filter exports no %s", worker, export)
	}
	answer, err := f.Call(t.root.vm.ctx)
	if err != nil {
		return 0, fmt.Errorf("ask worker %d: %w", worker, err)
	}
	return answer[0], nil
}

// Shared returns the shared data the filter sees.
func (h *Host) Shared() *Namespace { return h.shared }

// Metrics returns the counters and gauges the filter defined, by the names it
// gave them. Envoy puts wasmcustom. before each.
func (h *Host) Metrics() map[string]uint64 { return h.metrics.snapshot() }

// Close ends all VMs without calling them, as a stopped Envoy does, and
// deletes the shared data if no other host of the same vm_id is left.
func (h *Host) Close() {
	h.updates.Lock()
	defer h.updates.Unlock()
	for _, t := range h.threads {
		t.close()
	}
	if !h.closed {
		h.closed = true
		h.shared.release()
	}
}

// close ends a thread and the requests that it has paused.
func (t *thread) close() {
	t.Lock()
	defer t.Unlock()
	t.root = nil
	for _, v := range t.running {
		v.close()
	}
	t.running = nil
	for len(t.paused) > 0 {
		x := t.paused[0]
		x.response = closed("host_closed")
		x.move(ended)
	}
}

// elapsed is the monotonic clock: it follows Now, but not backwards.
func (h *Host) elapsed() int64 {
	now := h.o.Now()
	h.clock.Lock()
	defer h.clock.Unlock()
	if now > h.clock.last {
		h.clock.elapsed += now - h.clock.last
	}
	h.clock.last = now
	return h.clock.elapsed
}

func (h *Host) log(level Level, vm int, message string) {
	if h.o.Log != nil && level >= h.o.LogLevel {
		h.o.Log(level, vm, message)
	}
}

func (h *Host) worker(i int) (*thread, error) {
	if i < 0 || i >= h.Workers() {
		return nil, fmt.Errorf("find worker %d: there are workers 0 to %d", i, h.Workers()-1)
	}
	return h.threads[i], nil
}
