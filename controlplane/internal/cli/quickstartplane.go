package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// dataPlane is one proxy with the filter in front of the upstream, in either host.
type dataPlane struct {
	node  string
	what  string
	url   string
	admin string
	ready func(context.Context) error
}

// get sends a request with a header and returns the response's status and headers.
func (p *dataPlane) get(ctx context.Context, path, name, value string) (int, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set(name, value)
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("send request: %w", err)
	}
	_ = response.Body.Close() // the status and headers are all that is shown
	return response.StatusCode, response.Header, nil
}

// free returns the address if it can be bound now, and else another on loopback.
func free(address string) string {
	l, err := net.Listen("tcp", address)
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return address // the error of listening there will say why
	}
	_ = l.Close()
	return l.Addr().String()
}

func (d *demo) startControlPlane() error {
	kept, err := openStore(d.cmd.Context(), d.data, nil)
	if err != nil {
		return err
	}
	d.later(kept.Close)
	listeners, err := (&listenOptions{words: serveWords, http: free(defaultHTTP), proxies: free(defaultXDS)}).listen()
	if err != nil {
		return err
	}
	s := serving.New(serving.Options{Log: d.log, Name: serveWords.name})
	d.later(func() error { s.Close(); listeners.Close(); return nil })
	token := rand.Text() // lives as long as the process, and is for proxies on loopback only
	allow, _ := manage.ParseAllow(manage.DefaultAllow)
	fleet := newFleet(listeners, allow, func() manage.Credentials { return manage.Credentials{Token: token} })
	section := fmt.Appendf(nil, `"manage":{"path":"/.sluice/","token_sha256":"%x"}`, sha256.Sum256([]byte(token)))
	// It outlives the command's context: the data plane goes first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.cmd.Context()))
	gone := make(chan struct{})
	d.later(func() error { cancel(); <-gone; return nil })
	o := serveOptions{quotas: quotaOptions{store: quotaMemory}}
	handler, err := o.addParts(ctx, s, managedStore{kept, section}, fleet, nil)
	if err != nil {
		close(gone)
		return err
	}
	go func() { defer close(gone); d.failed <- s.Run(ctx, listeners, handler) }()
	d.server, d.xds = "http://"+listeners.HTTP.Addr().String(), listeners.Proxies.Addr().String()
	d.client, err = (&clientOptions{server: d.server}).client()
	return err
}

func (d *demo) startUpstream() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	d.echo = "http://" + l.Addr().String()
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(echo)}
	go func() { _ = s.Serve(l) }() // ends with Close below
	d.later(s.Close)
	return nil
}

// echo answers with the request it got.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	fmt.Fprintf(w, "%s %s %s\nHost: %s\n", r.Method, r.RequestURI, r.Proto, r.Host)
	_ = r.Header.Write(w) // the caller has gone if this fails
	_, _ = io.Copy(w, io.LimitReader(r.Body, 64<<10))
}

// startPlanes starts the proxies.
func (d *demo) startPlanes() error {
	for i := range quickstartProxies {
		listen, admin := free(fmt.Sprint("127.0.0.1:", quickstartPort+i)), free(fmt.Sprint("127.0.0.1:", quickstartAdmin+i))
		p := &dataPlane{
			node: fmt.Sprint("proxy-", i+1), url: "http://" + listen, admin: "http://" + admin,
			what:  fmt.Sprintf("the filter on wazero, %d workers", quickstartWorkers),
			ready: func(context.Context) error { return nil },
		}
		d.planes = append(d.planes, p)
		start := d.startProxy
		if d.envoy != "" {
			start = d.startEnvoy
		}
		if err := start(p, listen, admin); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startProxy(plane *dataPlane, listen, admin string) error {
	r, err := (&runOptions{
		services: serviceOptions{xds: []string{d.xds}, node: plane.node}, upstream: d.echo,
		listen: listen, admin: admin, wasm: d.wasm, workers: quickstartWorkers,
	}).start(d.cmd, d.log)
	if err != nil {
		return err
	}
	r.from.Manage = listen
	ctx, cancel := context.WithCancel(d.cmd.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	d.later(func() error {
		defer r.close()
		cancel()
		return <-ended
	})
	return nil
}

func (d *demo) startEnvoy(plane *dataPlane, listen, admin string) error {
	wasm, err := filterFile(d.wasm, d.cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	version, err := proc.Version(d.cmd.Context(), d.envoy)
	if err != nil {
		return withHint(err, "--envoy names an Envoy binary; make run ENVOY=1 brings one")
	}
	bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: wasm, Envoy: version}, Node: plane.node, XDS: []string{d.xds},
		Upstream: strings.TrimPrefix(d.echo, "http://"), Listen: listen, Admin: admin, Manage: free("127.0.0.1:0"),
	})
	if err != nil {
		return err
	}
	child, err := proc.Start(d.cmd.Context(), proc.Options{
		Binary: d.envoy, Bootstrap: bootstrap, Concurrency: quickstartWorkers,
		LogLevel: "error", LogTo: d.cmd.ErrOrStderr(),
	})
	if err != nil {
		return err
	}
	d.later(child.Stop)
	plane.what = fmt.Sprintf("Envoy %s, %d workers", version, quickstartWorkers)
	plane.ready = child.WaitReady
	return nil
}

// managedStore gives policies without manage one, so that the console of quickstart has
// figures whatever is applied. What is stored stays as it was written.
type managedStore struct {
	store.Store

	section []byte // a member of the policy's JSON
}

// Get returns a revision as proxies get it.
func (s managedStore) Get(ctx context.Context, number uint64) (store.Revision, error) {
	r, err := s.Store.Get(ctx, number)
	if err != nil {
		return r, err
	}
	var written struct{ Manage json.RawMessage }
	if err := json.Unmarshal(r.JSON, &written); err != nil {
		return r, fmt.Errorf("read revision %d: %w", number, err)
	}
	if rest, ok := bytes.CutPrefix(r.JSON, []byte("{")); ok && written.Manage == nil {
		r.JSON = slices.Concat([]byte("{"), s.section, []byte(","), rest)
	}
	return r, nil
}
