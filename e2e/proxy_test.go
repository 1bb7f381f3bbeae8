package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// proxy is a running proxy with the filter.
type proxy struct {
	address string
	admin   string        // URL
	envoy   *proc.Process // nil: the simulator
	log     func() string
	kill    func()
	domain  string // of its policy, where that has one
}

// proxyOptions are for driver.start. Without xds the policy is static.
type proxyOptions struct {
	node     string
	xds      string
	quota    string   // Envoy only: address of the quota service; default: the control plane
	policy   string   // YAML; with xds, until the control plane sends one
	wasm     string   // default: the filter under test
	upstream string   // URL; default: upstream
	workers  int      // default: workers
	manage   string   // Envoy only: address of a listener for management requests
	flags    []string // Envoy only: more of `render envoy`
	edit     func(bootstrap []byte) []byte
}

// replacing replaces a text of a bootstrap where it comes first. There must be one, or the test
// would be of an Envoy as all others are.
func replacing(old, text string) func(bootstrap []byte) []byte {
	return func(bootstrap []byte) []byte {
		before, after, found := strings.Cut(string(bootstrap), old)
		if !found {
			panic("the bootstrap has no " + old)
		}
		return []byte(before + text + after)
	}
}

// start starts a proxy for this test alone and waits until it serves.
func (d driver) start(t *testing.T, o proxyOptions) *proxy {
	p := d.launch(t.Context(), t, o)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", d.name, p.log())
		}
	})
	return p
}

// launch starts a proxy that runs until it is killed or ctx ends.
func (d driver) launch(ctx context.Context, t *testing.T, o proxyOptions) *proxy {
	if o.wasm == "" {
		o.wasm = built.filter
	}
	if o.upstream == "" {
		o.upstream = upstream().URL
	}
	if o.workers == 0 {
		o.workers = workers
	}
	if d.envoy == "" {
		return startSim(t, o)
	}
	return d.startEnvoy(ctx, t, o)
}

func startSim(t *testing.T, o proxyOptions) *proxy {
	admin := freeAddress(t)
	p := &proxy{address: freeAddress(t), admin: "http://" + admin}
	args := []string{"run", "--listen", p.address, "--admin", admin, "--upstream", o.upstream, "--workers",
		strconv.Itoa(o.workers), "--wasm", o.wasm}
	if o.xds != "" {
		args = append(args, "--xds", o.xds, "--node", o.node)
	} else {
		args = append(args, "-f", file(t, "policy.yaml", o.policy))
	}
	c, err := child.Start(exec.Command(built.sluice, args...))
	require.NoError(t, err)
	p.log, p.kill = c.Log, func() { _ = c.Kill() }
	p.await(t)
	return p
}

func (d driver) startEnvoy(ctx context.Context, t *testing.T, o proxyOptions) *proxy {
	args := []string{
		"render", "envoy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", o.upstream[len("http://"):], "--wasm", o.wasm,
		"--envoy-version", d.version(), "--access-log", "",
	}
	if o.xds != "" {
		args = append(args, "--xds", o.xds, "--node", o.node)
	}
	if o.policy != "" {
		args = append(args, "-f", file(t, "policy.yaml", o.policy))
	}
	if o.quota != "" {
		args = append(args, "--quota", o.quota)
	}
	if o.manage != "" {
		args = append(args, "--manage", o.manage)
	}
	bootstrap := sluiceOK(t, append(args, o.flags...)...)
	if o.edit != nil {
		bootstrap = string(o.edit([]byte(bootstrap)))
	}
	e, err := proc.Start(ctx, proc.Options{
		Binary: d.envoy, Bootstrap: []byte(bootstrap), Concurrency: o.workers, LogLevel: "info",
	})
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(t.Context()))
	address, err := e.Listener(t.Context(), envoy.ListenerName)
	require.NoError(t, err)
	p := &proxy{address: address, admin: e.Admin(), envoy: e, log: e.Log, kill: func() { _ = e.Kill() }}
	p.await(t)
	return p
}

// await waits until the proxy answers requests.
func (p *proxy) await(t *testing.T) {
	eventually(t, time.Minute, "the proxy to serve", func() bool { _, _, err := p.try("/ready"); return err == nil })
}

// load returns a load on the proxy.
func (p *proxy) load(connections int) load { return load{p.address, connections} }

// get sends one request with these headers, given as names and values in turn. ":host"
// and ":method" set the host and the method, ":from" is the client's address, ":proxy"
// what a line of the PROXY protocol says, ":version" HTTP/1 or HTTP/2.
func (p *proxy) get(t *testing.T, path string, headers ...string) (*http.Response, string) {
	res, body, err := p.try(path, headers...)
	require.NoError(t, err)
	return res, body
}

// try is get for requests that may fail.
func (p *proxy) try(path string, headers ...string) (res *http.Response, body string, err error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+p.address+path, http.NoBody)
	if err != nil {
		return nil, "", err
	}
	transport, own := http.DefaultTransport, &http.Transport{Protocols: new(http.Protocols)}
	own.Protocols.SetHTTP1(true)
	defer own.CloseIdleConnections()
	for i := 0; i < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; name {
		case ":host":
			r.Host = value
		case ":method":
			r.Method = value
		case ":body": // of so many bytes
			r.ContentLength, err = strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, "", err
			}
			r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", int(r.ContentLength))))
		case ":from":
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(value)}}
			transport, own.DialContext = own, from.DialContext
		case ":proxy": // what a balancer says of the client
			transport, own.DialContext = own, func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				if err == nil {
					_, err = fmt.Fprintf(c, "PROXY %s\r\n", value)
				}
				return c, err
			}
		case ":version":
			transport = own
			own.Protocols.SetHTTP1(value == "HTTP/1")
			own.Protocols.SetUnencryptedHTTP2(value == "HTTP/2")
		default:
			r.Header.Add(name, value)
		}
	}
	res, err = transport.RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// noTraps fails where the filter has trapped.
func (p *proxy) noTraps(t *testing.T) { noTrapsIn(t, p.log()) }

// noTrapsIn fails where a part of an Envoy's log says that a filter has trapped.
func noTrapsIn(t *testing.T, log string) {
	for line := range strings.Lines(log) {
		for _, trap := range []string{"Uncaught", "panic", "[critical]", "Function: proxy_"} {
			if strings.Contains(line, trap) {
				t.Error(line)
			}
		}
	}
}

// versions are those of HTTP that the driver's proxy speaks.
func (d driver) versions() []string {
	if d.envoy == "" {
		return []string{"HTTP/1"}
	}
	return []string{"HTTP/1", "HTTP/2"}
}

// status sends one request and returns its status.
func (p *proxy) status(t *testing.T, path string, headers ...string) int {
	res, _ := p.get(t, path, headers...)
	return res.StatusCode
}

// metric returns a sample of /stats/prometheus, and whether there is one.
func (p *proxy) metric(t *testing.T, name, rule string) (uint64, bool) {
	text := p.prometheus(t)
	sample := name + p.labels(rule) + " "
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, sample); found {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			require.NoError(t, err, line)
			return n, true
		}
	}
	return 0, false
}

// labels are those of a rule's metrics.
func (p *proxy) labels(rule string) string {
	if p.domain == "" {
		return `{rule="` + rule + `"}`
	}
	return `{domain="` + p.domain + `",rule="` + rule + `"}`
}

// prometheus returns all metrics as text.
func (p *proxy) prometheus(t *testing.T) string {
	return body(t, p.admin+"/stats/prometheus")
}

// allocated returns the bytes that Envoy has allocated.
func (p *proxy) allocated(t *testing.T) int64 {
	bytes, err := p.envoy.Memory(t.Context())
	require.NoError(t, err)
	return int64(bytes)
}

// resident returns the bytes of Envoy's resident memory.
func (p *proxy) resident(t *testing.T) int64 {
	bytes, err := p.envoy.RSS()
	require.NoError(t, err)
	return int64(bytes)
}
