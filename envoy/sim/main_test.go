package sim_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// guest is the test filter; second is another version of it, which allocates by
// proxy_on_memory_allocate alone.
var (
	guest, second []byte
	wasmDir       string
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	wasmDir = dir
	for name, wasm := range map[string]*[]byte{"guest": &guest, "second": &second} {
		out := filepath.Join(dir, name+".wasm")
		build := exec.Command("go", "build", "-tags", name, "-buildmode=c-shared", "-ldflags=-s -w", "-o", out,
			"./testdata/guest")
		build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
		if text, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build guest: %v\n%s", err, text)
			return 1
		}
		*wasm, err = os.ReadFile(out)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// bench is a host with the test filter, a clock and an ear.
type bench struct {
	*sim.Host
	t *testing.T

	mu    sync.Mutex
	ns    int64
	lines []string
	ends  []string // of gRPC streams
}

// setUp starts a host and configures it with "first". The name of a cluster says after how
// long it repeats what it is told.
func setUp(t *testing.T, change ...func(*sim.Options)) *bench {
	t.Helper()
	b := &bench{t: t}
	o := sim.Options{
		Wasm: guest, VMID: "vm", PluginName: "plugin", RootID: "root", CacheDir: buildtest.CacheDir(), Seed: 1,
		Now: b.now, LogLevel: sim.Info,
		Log: func(l sim.Level, vm int, m string) {
			b.note(&b.lines, strings.Replace(fmt.Sprintf("%d %v %s", vm, l, m), " info ", " ", 1))
		},
		Dial: func(c sim.Call, in *sim.Inbox) (sim.Peer, error) {
			after, err := time.ParseDuration(c.Cluster)
			return slowPeer{in, func(what string) { b.note(&b.ends, what) }, after}, err
		},
	}
	for _, f := range change {
		f(&o)
	}
	h, err := sim.New(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	b.Host = h
	require.NoError(t, h.Configure([]byte("first")))
	b.heard()
	return b
}

func (b *bench) now() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ns
}

func (b *bench) at(ns int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ns = ns
}

func (b *bench) note(list *[]string, line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*list = append(*list, line)
}

// heard returns the log lines since the last call. ended returns how streams have ended.
func (b *bench) heard() []string { return b.take(&b.lines) }
func (b *bench) ended() []string { return b.take(&b.ends) }

func (b *bench) take(list *[]string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := *list
	*list = nil
	return taken
}

// do has a worker do steps and returns a line for each.
func (b *bench) do(worker int, steps string, change ...func(*sim.Request)) []string {
	b.t.Helper()
	res := b.serve(worker, steps, change...)
	require.Equal(b.t, 200, res.Status, "%+v", res)
	return strings.Split(string(res.Body), "\n")
}

func (b *bench) serve(worker int, steps string, change ...func(*sim.Request)) *sim.Response {
	b.t.Helper()
	r := &sim.Request{Headers: [][2]string{{"x-ask", steps}}}
	for _, f := range change {
		f(r)
	}
	res, err := b.Serve(worker, r)
	require.NoError(b.t, err)
	return res
}

func workers(n int) func(*sim.Options) { return func(o *sim.Options) { o.Workers = n } }

// What is different about a request.

func header(name, value string) func(*sim.Request) {
	return func(r *sim.Request) { r.Headers = append(r.Headers, [2]string{name, value}) }
}

// upstream does something while the request is at its upstream, which answers 200.
func upstream(do func()) func(*sim.Request) {
	return func(r *sim.Request) {
		r.Upstream = func(*sim.Request) (*sim.Response, error) {
			do()
			return &sim.Response{Status: 200}, nil
		}
	}
}
