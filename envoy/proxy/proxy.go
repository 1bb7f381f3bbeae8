// Package proxy is the data plane without Envoy: an HTTP reverse proxy in front of one
// upstream, with the compiled filter on wazero. The caller or a control plane gives the
// policy.
//
// Its invariant: every request to the upstream has passed the filter, which sees what Envoy
// would show it: the connection's address as the client's, one spelling for each path,
// header names in lower case.
//
// It is for first steps and for tests, not for the edge of a network: it speaks HTTP/1 as
// net/http does, without upgrades. It never looks into a policy: to it, a policy is bytes.
//
// trip.go takes a request through the filter, subscribe.go gets policies from a control
// plane, stream.go connects the filter to the quota service.
package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

const (
	// Embedded is the name that a control plane gets of a filter that is not a file.
	Embedded = "embedded:sluice.wasm"

	defaultTimeout = 15 * time.Second // as a route of Envoy has
	maxPause       = 5 * time.Minute  // as Envoy's stream_idle_timeout
	shutdownGrace  = 10 * time.Second

	maxConnections = 4096     // one more waits until another one ends
	maxHeaderBytes = 60 << 10 // as in Envoy
	// slop is how much longer than http.Server.MaxHeaderBytes net/http lets a request's headers
	// be. It lets some be longer by twice that.
	slop = 4 << 10
)

// Options say what a Proxy is made of. Wasm and Upstream are required.
type Options struct {
	Wasm     []byte
	WasmName string                            // absolute path of the file Wasm came from; default Embedded
	ReadFile func(name string) ([]byte, error) // reads a filter that the control plane names; default os.ReadFile
	Workers  int                               // worker VMs; default 1
	Upstream *url.URL
	Timeout  time.Duration // until the upstream begins to answer; default 15 s

	// Cluster returns the connection for the filter's gRPC streams to a cluster, which has
	// the name that a policy gives it; nil = there is none. The caller closes the connection
	// after the Proxy.
	Cluster func(name string) grpc.ClientConnInterface

	CacheDir string       // keeps compiled filters; empty = compile anew
	Log      *slog.Logger // default: nothing
}

// Proxy is one data plane. It lets every request through until it has its first policy.
type Proxy struct {
	options   Options
	log       *slog.Logger
	host      *sim.Host
	transport *http.Transport
	idle      chan int // the workers that serve no request

	updates sync.Mutex
	running [sha256.Size]byte // digest of the filter that runs
	managed bool              // a control plane has given a policy

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
	o.WasmName = cmp.Or(o.WasmName, Embedded)
	o.Workers = max(o.Workers, 1)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	p := &Proxy{
		options:   o,
		log:       o.Log,
		transport: newTransport(o.Timeout),
		idle:      make(chan int, o.Workers),
		running:   sha256.Sum256(o.Wasm),
		ready:     make(chan struct{}),
	}
	host, err := sim.New(context.WithoutCancel(ctx), sim.Options{
		Wasm:       o.Wasm,
		Workers:    o.Workers,
		VMID:       envoy.DefaultVMID,
		PluginName: envoy.ResourceName,
		RootID:     envoy.ResourceName,
		CacheDir:   o.CacheDir,
		LogLevel:   sim.Info,
		Log:        p.logLine,
		Dial:       p.openStream,
		StreamIdle: maxPause,
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
		p.idle <- worker
	}
	return p, nil
}

// Configure enforces a policy, JSON, and reports whether it is in force: it is not if a
// control plane has given one already. If the filter refuses the policy, the error is a
// *sim.Refused, and the policy before stays in force.
func (p *Proxy) Configure(policy []byte) (inForce bool, err error) {
	p.updates.Lock()
	defer p.updates.Unlock()
	if p.managed {
		return false, nil
	}
	err = p.apply(p.options.Wasm, policy)
	return err == nil, err
}

// adopt enforces a policy of the control plane with the filter it names.
func (p *Proxy) adopt(wasm, policy []byte) error {
	p.updates.Lock()
	defer p.updates.Unlock()
	err := p.apply(wasm, policy)
	if err == nil {
		p.managed = true
	}
	return err
}

// apply enforces a policy with a filter, which need not be the one that runs. The counters
// stay.
func (p *Proxy) apply(wasm, policy []byte) error {
	digest := sha256.Sum256(wasm)
	var err error
	if digest == p.running {
		err = p.host.Configure(policy)
	} else {
		err = p.host.Replace(wasm, policy)
	}
	if err != nil {
		return err
	}
	p.running = digest
	p.readyOnce.Do(func() { close(p.ready) })
	return nil
}

// Serve answers requests on a listener, and admin requests on another one unless that is
// nil. When ctx ends, it lets the requests under way end before it returns.
func (p *Proxy) Serve(ctx context.Context, listener, admin net.Listener) error {
	// Requests under way may wait for a tick, so the ticks end after them.
	ticking, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ticks sync.WaitGroup
	ticks.Go(func() { p.tick(ticking) })
	defer ticks.Wait()
	defer stop()
	all, ctx := errgroup.WithContext(ctx)
	p.start(ctx, all, listener, p)
	if admin != nil {
		p.start(ctx, all, admin, p.Admin())
	}
	return all.Wait()
}

// start serves a listener, and shuts it down when ctx ends.
func (p *Proxy) start(ctx context.Context, all *errgroup.Group, listener net.Listener, handler http.Handler) {
	s := &http.Server{
		Handler:                      handler,
		ReadHeaderTimeout:            10 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               maxHeaderBytes - slop,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is refused, as it has no path
		ErrorLog:                     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	all.Go(func() error {
		err := s.Serve(netutil.LimitListener(listener, maxConnections))
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	all.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if s.Shutdown(grace) != nil {
			return s.Close() // cuts off the requests still under way
		}
		return nil
	})
}

// tick gives the VMs their ticks when they are due.
func (p *Proxy) tick(ctx context.Context) {
	for {
		wait := time.Second
		due, ok := p.host.Next()
		if ok {
			wait = time.Until(time.Unix(0, due))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.host.Changed():
		case <-time.After(wait):
		}
		p.host.TickDue()
	}
}

// Ready is closed once a policy is in force.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Close ends the filter. Call it after Serve has returned.
func (p *Proxy) Close() {
	p.transport.CloseIdleConnections()
	p.host.Close()
}

// logLine logs a line of the filter or of its host.
func (p *Proxy) logLine(level sim.Level, vm int, message string) {
	to := slog.LevelInfo
	switch {
	case level >= sim.Error:
		to = slog.LevelError
	case level == sim.Warn:
		to = slog.LevelWarn
	}
	p.log.Log(context.Background(), to, message, "vm", vmName(vm))
}

func vmName(vm int) string {
	switch vm {
	case sim.Trial:
		return "trial"
	case sim.Main:
		return "main"
	}
	return fmt.Sprint("worker ", vm)
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
		return nil, fmt.Errorf("upstream %q has more than scheme, host and port: paths pass through unchanged",
			u.Redacted())
	}
	return u, nil
}
