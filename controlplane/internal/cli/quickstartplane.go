package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/console"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// dataPlane is one proxy with the filter in front of the upstream, in either host.
type dataPlane struct {
	node  string
	what  string
	url   string
	admin string
	ready func(context.Context) error
	stop  func()
}

// get sends a request and returns the response's status and headers.
func (p *dataPlane) get(ctx context.Context, path string, header http.Header) (int, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}
	r.Header = header
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("send request: %w", err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return 0, nil, fmt.Errorf("read response: %w", err)
	}
	return response.StatusCode, response.Header, nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// listenNear opens a listener at an address, or at another port if that is
// taken.
func listenNear(address string) (net.Listener, error) {
	if l, err := net.Listen("tcp", address); err == nil {
		return l, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

func (d *demo) startControlPlane(data string) (stop func(), failed <-chan error, err error) {
	kept, err := openStore(data)
	if err != nil {
		return nil, nil, err
	}
	token := rand.Text()
	policies := managedStore{kept, manageSection(token)}
	web, err := listenNear(defaultHTTP)
	if err != nil {
		return nil, nil, errors.Join(err, policies.Close())
	}
	stream, err := listenNear(defaultXDS)
	if err != nil {
		return nil, nil, errors.Join(err, web.Close(), policies.Close())
	}
	push, err := xds.New(d.cmd.Context(), xds.Options{Store: policies, Log: d.log})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start xDS server: %w", err), stream.Close(), web.Close(), policies.Close())
	}
	q, err := (&quotaOptions{store: quotaMemory}).open(d.cmd.Context(), d.log, nil, nil)
	if err != nil {
		return nil, nil, errors.Join(err, stream.Close(), web.Close(), policies.Close())
	}
	d.server, d.xds = "http://"+web.Addr().String(), stream.Addr().String()
	// It outlives the command's context: the data plane goes first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.cmd.Context()))
	pages := console.New(console.Options{Log: d.log, API: api.New(ctx, api.Options{
		Store: policies, XDS: push, Fleet: quickstartFleet(token, web.Addr(), stream.Addr()),
		Quota: api.Quota{Service: q.service, Private: true}, Log: d.log, Collectors: q.collectors(),
	})})
	s := servers{log: d.log, push: push, quotas: q, proxies: "xds", httpListener: web, xdsListener: stream, handler: pages}
	ended := make(chan error, 1)
	gone := make(chan struct{})
	go func() { defer close(gone); ended <- s.run(ctx) }()
	d.client, err = (&clientOptions{server: d.server}).client()
	return func() {
		cancel()
		<-gone
		if err := policies.Close(); err != nil {
			d.log.Error("close the control plane", "error", err)
		}
	}, ended, err
}

func (d *demo) startUpstream() (stop func(), err error) {
	l, err := listenNear("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.echo = "http://" + l.Addr().String()
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(echo)}
	go func() { _ = s.Serve(l) }() // ends with Close below
	return func() { _ = s.Close() }, nil
}

// echo answers with the request it got.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	fmt.Fprintf(w, "%s %s %s\nHost: %s\n", r.Method, r.RequestURI, r.Proto, r.Host)
	_ = r.Header.Write(w) // the caller has gone if this fails
	_, _ = io.Copy(w, io.LimitReader(r.Body, 64<<10))
}

// startPlanes starts the proxies. Those that it could start are to be stopped also
// after an error.
func (d *demo) startPlanes(o quickstartOptions) error {
	for i := range quickstartProxies {
		node := fmt.Sprint("proxy-", i+1)
		listen, admin := loopback(quickstartPort+i), loopback(quickstartAdmin+i)
		var p *dataPlane
		var err error
		if o.envoy != "" {
			p, err = d.startEnvoy(o.envoy, o.wasm, node, listen, admin)
		} else {
			p, err = d.startProxy(o.wasm, node, listen, admin)
		}
		if err != nil {
			return err
		}
		p.node = node
		d.planes = append(d.planes, p)
	}
	return nil
}

func (d *demo) stopPlanes() {
	for _, p := range d.planes {
		p.stop()
	}
}

func (d *demo) startProxy(filter, node, listen, adminListen string) (*dataPlane, error) {
	wasm, err := readFilter(filter)
	if err != nil {
		return nil, err
	}
	upstream, err := proxy.ParseUpstream(d.echo)
	if err != nil {
		return nil, err
	}
	requests, err := listenNear(listen)
	if err != nil {
		return nil, err
	}
	admin, err := listenNear(adminListen)
	if err != nil {
		return nil, errors.Join(err, requests.Close())
	}
	quota, err := (&serviceOptions{xds: []string{d.xds}}).connect()
	if err != nil {
		return nil, errors.Join(err, requests.Close(), admin.Close())
	}
	p, err := proxy.New(d.cmd.Context(), proxy.Options{
		Wasm: wasm, ReadFile: readFilterFile, Workers: quickstartWorkers, Upstream: upstream, CacheDir: compiledFilters(), Log: d.log,
		Cluster: func(string) grpc.ClientConnInterface { return quota },
	})
	if err != nil {
		return nil, errors.Join(err, quota.Close(), requests.Close(), admin.Close())
	}
	ctx, cancel := context.WithCancel(d.cmd.Context())
	ended := make(chan error, 2)
	go func() {
		ended <- p.Subscribe(ctx, proxy.Subscription{Addresses: []string{d.xds}, Node: node, Manage: requests.Addr().String()})
	}()
	go func() { ended <- p.Serve(ctx, requests, admin) }()
	return &dataPlane{
		what: fmt.Sprintf("the filter on wazero, %d workers", quickstartWorkers),
		url:  "http://" + requests.Addr().String(), admin: "http://" + admin.Addr().String(),
		ready: func(ctx context.Context) error {
			select {
			case <-p.Ready():
				return nil
			case <-ctx.Done():
				return fmt.Errorf("wait for the policy: %w", ctx.Err())
			}
		},
		stop: func() {
			cancel()
			if err := errors.Join(<-ended, <-ended); err != nil {
				d.log.Error("stop the proxy", "error", err)
			}
			p.Close()
			_ = quota.Close()
		},
	}, nil
}

func (d *demo) startEnvoy(binary, filter, node, listen, admin string) (*dataPlane, error) {
	wasm, err := filterFile(filter, d.cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	version, err := proc.Version(d.cmd.Context(), binary)
	if err != nil {
		return nil, withHint(err, "--envoy names an Envoy binary; make run ENVOY=1 brings one")
	}
	free, err := listenNear("127.0.0.1:0") // the bootstrap names the port
	if err != nil {
		return nil, err
	}
	manage := free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: wasm, Envoy: version}, Node: node, XDS: []string{d.xds}, Upstream: strings.TrimPrefix(d.echo, "http://"),
		Listen: freeNear(listen), Admin: freeNear(admin), Manage: manage,
	})
	if err != nil {
		return nil, err
	}
	child, err := proc.Start(d.cmd.Context(), proc.Options{
		Binary: binary, Bootstrap: bootstrap, Concurrency: quickstartWorkers, LogLevel: "error", LogTo: d.cmd.ErrOrStderr(),
	})
	if err != nil {
		return nil, err
	}
	plane := &dataPlane{what: fmt.Sprintf("Envoy %s, %d workers", version, quickstartWorkers)}
	plane.ready = func(ctx context.Context) error {
		if err := child.WaitReady(ctx); err != nil {
			return err
		}
		address, err := child.Listener(ctx, envoy.ListenerName)
		plane.url, plane.admin = "http://"+address, child.Admin()
		return err
	}
	plane.stop = func() {
		if err := child.Stop(); err != nil {
			d.log.Error("stop Envoy", "error", err)
		}
	}
	return plane, nil
}

// freeNear returns an address that can be bound, or one with a port of the
// system's choice.
func freeNear(address string) string {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = l.Close()
	return address
}
