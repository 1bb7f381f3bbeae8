package sim_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// recordBootstrap is an Envoy with a listener for each of the recorded filters.
const recordBootstrap = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners: [%s]
  clusters: [{name: nowhere, type: STATIC}, %s]
`

const recordListener = `{name: %[1]s, address: {socket_address: {address: 127.0.0.1, port_value: 0}},
      filter_chains: [{filters: [{name: hcm, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: %[1]s, %[2]s,
      http_filters: [
        {name: before, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC,
          rules: {action: DENY, policies: {p: {
            permissions: [{header: {name: x-before, present_match: true}}], principals: [{any: true}]}}}}},
        {name: %[1]s, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm,
          config: {name: plugin, root_id: root, vm_config: {
            vm_id: %[1]s, runtime: envoy.wasm.runtime.v8, code: {local: {filename: %[3]s}}}}}},
        {name: after, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault,
          abort: {header_abort: {}, percentage: {numerator: 100}}}},
        {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [
        {match: {path: /timeout}, route: {cluster: upstream, timeout: 0.3s}},
        {match: {path: /retry}, route: {cluster: upstream, retry_policy: {retry_on: "5xx,reset", num_retries: 1}}},
        {match: {path: /redirect}, route: {cluster: upstream, internal_redirect_policy: {}}},
        {match: {prefix: /, headers: [{name: x-do, present_match: true}]}, route: {cluster: http1}},
        {match: {prefix: /}, route: {cluster: upstream}}]}]}}}]}]}`

const answerOptions = `http_protocol_options: {enable_trailers: true},
      access_log_options: {flush_access_log_on_new_request: true, access_log_flush_interval: 0.1s}`

const recordCluster = `{name: %[1]s, connect_timeout: 1s,
    load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [
      {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]s}}}}]}]}%[3]s},`

const http2 = `, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
      explicit_http_config: {http2_protocol_options: {}}}}`

// httpCourier sends requests over a network.
type httpCourier struct {
	t        *testing.T
	client   *http.Client
	url      string
	lines    func() []string // see courier
	dispatch *dispatch
}

var wasmLine = regexp.MustCompile(`(?m)\[info\]\[wasm\].* wasm log(?: plugin)? root (?:talks|answers): (.*)$`)

// linesOf reads the filter's lines from an Envoy's log.
func linesOf(p *proc.Process) func() []string {
	var lines []string
	read := 0
	return func() []string {
		log := p.Log()
		end := strings.LastIndexByte(log, '\n') + 1
		for _, m := range wasmLine.FindAllStringSubmatch(log[read:end], -1) {
			lines = append(lines, m[1])
		}
		read = end
		return lines
	}
}

// log has what both protocols show as HTTP/1.1 shows it: HTTP/2 says otherwise how a client leaves.
func (c *httpCourier) log() []string {
	lines := slices.Clone(c.lines())
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(line, "http2.remote_reset 268435456", "downstream_remote_disconnect 16384")
	}
	return lines
}

func (c *httpCourier) send(a asked, name string) conveyed {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	r, err := http.NewRequestWithContext(ctx, a.method, c.url+strings.TrimPrefix(a.path, "/"), strings.NewReader(a.body))
	require.NoError(c.t, err)
	r.Header.Set("x-name", name)
	for _, f := range a.headers {
		r.Header.Set(f[0], f[1])
	}
	x := &httpConveyed{c: c, name: name, cancel: cancel, begun: make(chan struct{}), answer: make(chan string, 1)}
	go func() { x.answer <- x.fetch(r) }()
	return x
}

type httpConveyed struct {
	c       *httpCourier
	name    string
	cancel  context.CancelFunc
	begun   chan struct{} // closed when the answer has begun here, or there is none
	arrived atomic.Int64  // bytes of its body
	answer  chan string

	answered bool  // by the upstream
	sent     int64 // bytes of the body, by the upstream
}

func (x *httpConveyed) fetch(r *http.Request) string {
	res, err := x.c.client.Do(r)
	close(x.begun)
	if err != nil {
		return "reset"
	}
	defer res.Body.Close()
	context.AfterFunc(r.Context(), func() { _ = res.Body.Close() }) // a websocket outlives its request
	text, err := io.ReadAll(io.TeeReader(res.Body, x))
	got := fmt.Sprintf("%d %s", res.StatusCode, text)
	if err != nil {
		return got + ", then reset"
	}
	for _, name := range slices.Sorted(maps.Keys(res.Trailer)) {
		got += " " + strings.ToLower(name) + "=" + res.Trailer.Get(name)
	}
	return got
}

// Write counts what arrives.
func (x *httpConveyed) Write(body []byte) (int, error) {
	x.arrived.Add(int64(len(body)))
	return len(body), nil
}

func (x *httpConveyed) got() string { defer x.cancel(); return <-x.answer }

func (x *httpConveyed) do(s step) {
	switch s.verb {
	case "leave":
		x.awaitSent()
		x.cancel()
	case "wait":
	default:
		x.answered = true
		if s.verb == "chunk" {
			x.sent += int64(len(s.words[0]))
		}
		x.c.dispatch.post(x.name) <- s
	}
}

// awaitSent waits for what Envoy has let through: it takes a moment to arrive.
func (x *httpConveyed) awaitSent() {
	if !x.answered {
		return
	}
	<-x.begun
	all := func() bool { return x.arrived.Load() >= x.sent }
	require.Eventually(x.c.t, all, time.Minute, time.Millisecond, "%s: the body's %d bytes", x.name, x.sent)
}

func startRecorder(t *testing.T, binary string) (*proc.Process, *dispatch) {
	t.Helper()
	clusters := ""
	d, addresses := serveAll(t)
	for name, address := range addresses {
		protocol := http2
		if name == "http1" {
			protocol = ""
		}
		clusters += fmt.Sprintf(recordCluster, name, address[strings.LastIndex(address, ":")+1:], protocol)
	}
	filter := filepath.Join(wasmDir, "guest.wasm")
	listeners := fmt.Sprintf(recordListener, "talks", "stream_idle_timeout: "+idle.String(), filter) + "," +
		fmt.Sprintf(recordListener, "answers", answerOptions, filter)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	p, err := proc.Start(ctx, proc.Options{
		Binary:    binary,
		Bootstrap: fmt.Appendf(nil, recordBootstrap, listeners, clusters),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	require.NoError(t, p.WaitReady(ctx))
	return p, d
}

// Real Envoys do what the simulator has to do.
func TestRecord(t *testing.T) {
	t.Parallel()
	binaries, err := proc.All()
	require.NoError(t, err)
	for i, binary := range binaries {
		version, err := proc.Version(t.Context(), binary)
		require.NoError(t, err)
		for _, protocol := range []string{"HTTP1", "HTTP2"} {
			write := *update && i == len(binaries)-1 && protocol == "HTTP1"
			if *update && !write {
				continue
			}
			t.Run(version+" "+protocol, func(t *testing.T) {
				t.Parallel() // they mostly wait
				p, d := startRecorder(t, binary)
				transport := &http.Transport{ // makes no request twice
					Protocols:          &http.Protocols{},
					DisableKeepAlives:  true,
					DisableCompression: true,
				}
				transport.Protocols.SetHTTP1(protocol == "HTTP1")
				transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP2")
				t.Cleanup(transport.CloseIdleConnections)
				client := &http.Client{
					Transport:     transport,
					CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				}
				to := func(listener string) *httpCourier {
					address, err := p.Listener(t.Context(), listener)
					require.NoError(t, err)
					return &httpCourier{t, client, "http://" + address + "/", linesOf(p), d}
				}
				requireConducted(t, to("talks"), anyTalk, write)
				requireConveyed(t, to("answers"), anyAnswer, write)
				require.Positive(t, d.canceled.Load(), "what the filter cancels is so at the server")
			})
		}
	}
}
