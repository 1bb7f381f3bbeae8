// Package proxy is the data plane without Envoy: the compiled filter on
// wazero as an HTTP reverse proxy in front of one upstream, with its policy
// given by the caller or by a control plane.
//
// Its invariant: no request reaches the upstream but through the filter, which
// sees what Envoy would show it: the connection's address as the client's, one
// spelling for each path, headers in lower case.
//
// It is for a first try and for tests, not for an edge: HTTP is what net/http makes
// of it, over HTTP/1 and without upgrades. A policy is bytes to it.
package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

const (
	// Embedded is what a control plane reads as the name of a filter that is not
	// a file.
	Embedded = "embedded:sluice.wasm"

	defaultTimeout = 15 * time.Second // that of a route in Envoy
	pausedAtMost   = 5 * time.Minute  // stream_idle_timeout
)

// Options say what a Proxy is made of. Wasm and Upstream are required.
type Options struct {
	Wasm     []byte
	WasmName string                            // absolute path of the file Wasm came from; default Embedded
	ReadFile func(name string) ([]byte, error) // reads a filter that the control plane names; default os.ReadFile
	Workers  int                               // worker VMs; default 1
	Upstream *url.URL
	Timeout  time.Duration // until the upstream begins to answer; default 15 s

	// Cluster returns the service that the filter may open gRPC streams to, under any
	// name that a policy gives it; nil = there is none. The caller closes it after the
	// Proxy.
	Cluster func(name string) grpc.ClientConnInterface

	CacheDir string       // keeps compiled filters; empty = compile anew
	Log      *slog.Logger // default: nothing
}

// Proxy is one data plane. It lets every request through until the first
// policy is there.
type Proxy struct {
	options   Options
	log       *slog.Logger
	host      *sim.Host
	transport *http.Transport
	free      chan int // workers that are

	updates sync.Mutex
	running [sha256.Size]byte // digest of the filter that runs
	given   bool              // the policy in force is the control plane's

	readyOnce sync.Once
	ready     chan struct{}
	counts    counts
}

// New compiles the filter and starts its workers with a policy that limits
// nothing.
func New(ctx context.Context, o Options) (*Proxy, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	o.WasmName, o.Workers, o.Timeout = cmp.Or(o.WasmName, Embedded), max(o.Workers, 1), cmp.Or(o.Timeout, defaultTimeout)
	p := &Proxy{
		options: o, log: o.Log, free: make(chan int, o.Workers), ready: make(chan struct{}),
		running: sha256.Sum256(o.Wasm), transport: newTransport(o.Timeout),
	}
	host, err := sim.New(context.WithoutCancel(ctx), sim.Options{
		Wasm: o.Wasm, Workers: o.Workers, VMID: envoy.DefaultVMID, CacheDir: o.CacheDir,
		PluginName: envoy.ResourceName, RootID: envoy.ResourceName,
		LogLevel: sim.Info, Log: p.hear, Dial: p.dial, StreamIdle: pausedAtMost,
	})
	if err != nil {
		return nil, fmt.Errorf("load filter: %w", err)
	}
	p.host = host
	if err := host.Configure([]byte(envoy.EmptyPolicy)); err != nil {
		host.Close()
		return nil, fmt.Errorf("start filter: %w", err)
	}
	for worker := range o.Workers {
		p.free <- worker
	}
	return p, nil
}

// ParseUpstream reads the URL of an upstream.
func ParseUpstream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("upstream %q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("upstream %q is not an http or https URL with a host", u.Redacted())
	case u.User != nil:
		return nil, errors.New("upstream URL holds a user: credentials pass through from the client")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("upstream %q has more than scheme, host and port: paths pass through unchanged", u.Redacted())
	}
	return u, nil
}

// Configure enforces a policy, JSON, until a control plane has given one, and
// reports whether it is in force. The error of one that the filter refuses is a
// *sim.Refused, and the policy before stays.
func (p *Proxy) Configure(policy []byte) (inForce bool, err error) {
	p.updates.Lock()
	defer p.updates.Unlock()
	if p.given {
		return false, nil
	}
	err = p.apply(p.options.Wasm, policy)
	return err == nil, err
}

// adopt enforces the policy of the control plane with the filter it names.
func (p *Proxy) adopt(wasm, policy []byte) error {
	p.updates.Lock()
	defer p.updates.Unlock()
	err := p.apply(wasm, policy)
	p.given = p.given || err == nil
	return err
}

// apply enforces a policy with a filter, which may differ from the one that
// runs; counters survive.
func (p *Proxy) apply(wasm, policy []byte) error {
	digest := sha256.Sum256(wasm)
	enforce := p.host.Configure
	if digest != p.running {
		enforce = func(policy []byte) error { return p.host.Replace(wasm, policy) }
	}
	if err := enforce(policy); err != nil {
		return err
	}
	p.running = digest
	p.readyOnce.Do(func() { close(p.ready) })
	return nil
}

// Ready is closed once a policy has been taken.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Close ends the filter. Serve has to have returned.
func (p *Proxy) Close() {
	p.transport.CloseIdleConnections()
	p.host.Close()
}

// hear logs the lines of the filter and of its host.
func (p *Proxy) hear(level sim.Level, vm int, message string) {
	to := slog.LevelInfo
	switch {
	case level >= sim.Error:
		to = slog.LevelError
	case level == sim.Warn:
		to = slog.LevelWarn
	}
	name := fmt.Sprint("worker ", vm)
	switch vm {
	case sim.Canary:
		name = "canary"
	case sim.Main:
		name = "main"
	}
	p.log.Log(context.Background(), to, message, "vm", name)
}
