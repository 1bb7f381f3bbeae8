package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// bytesCodec passes messages through as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string                  { return "proto" }
func (bytesCodec) Marshal(m any) ([]byte, error) { return *m.(*[]byte), nil }
func (bytesCodec) Unmarshal(b []byte, m any) error {
	*m.(*[]byte) = append([]byte(nil), b...)
	return nil
}

var _ encoding.Codec = bytesCodec{}

// serveCommands is the server of the scenarios, for a real Envoy.
func serveCommands(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var server *grpc.Server
	handler := func(_ any, stream grpc.ServerStream) error {
		for {
			var b []byte
			if err := stream.RecvMsg(&b); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			word, rest, _ := strings.Cut(string(b), " ")
			for word == "later" {
				time.Sleep(pause)
				word, rest, _ = strings.Cut(rest, " ")
			}
			answer := []byte(rest)
			switch word {
			case "echo":
				_ = stream.SendMsg(&answer)
			case "both":
				first, second, _ := bytes.Cut(answer, []byte("/"))
				_ = stream.SendMsg(&first)
				_ = stream.SendMsg(&second)
			case "close":
				code, _ := strconv.Atoi(rest)
				return status.Error(codes.Code(code), "asked to")
			case "die":
				go server.Stop()
				<-stream.Context().Done()
				return nil
			}
		}
	}
	server = grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(handler))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// recordBootstrap is an Envoy with a listener for each of the recorded filters.
const recordBootstrap = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners: [%s]
  clusters: [{name: nowhere, type: STATIC}, %s]
`

const recordListener = `{name: %[1]s, address: {socket_address: {address: 127.0.0.1, port_value: 0}}, filter_chains: [{filters: [{name: hcm, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: %[1]s, %[2]s,
      http_filters: [
        {name: before, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC,
          rules: {action: DENY, policies: {p: {permissions: [{header: {name: x-before, present_match: true}}], principals: [{any: true}]}}}}},
        {name: %[1]s, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {name: plugin, root_id: root,
          vm_config: {vm_id: %[1]s, runtime: envoy.wasm.runtime.v8, code: {local: {filename: %[3]s}}}}}},
        {name: after, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault,
          abort: {header_abort: {}, percentage: {numerator: 100}}}},
        {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [
        {match: {path: /timeout}, route: {cluster: upstream, timeout: 0.3s}},
        {match: {path: /idle}, route: {cluster: upstream, idle_timeout: 0.3s}},
        {match: {path: /longest}, route: {cluster: upstream, max_stream_duration: {max_stream_duration: 0.3s}}},
        {match: {path: /retry}, route: {cluster: upstream, retry_policy: {retry_on: "5xx,reset", num_retries: 1}}},
        {match: {path: /redirect}, route: {cluster: upstream, internal_redirect_policy: {}}},
        {match: {path: /nowhere}, route: {cluster: nowhere}},
        {match: {path: /direct}, direct_response: {status: 404, body: {inline_string: "no such thing"}}},
        {match: {path: /elsewhere}, redirect: {path_redirect: /}},
        {match: {path: /http1}, route: {cluster: http1}},
        {match: {prefix: /, headers: [{name: x-do, present_match: true}]}, route: {cluster: http1}},
        {match: {prefix: /}, route: {cluster: upstream}}]}]}}}]}]}`

const answerOptions = `http_protocol_options: {enable_trailers: true}, upgrade_configs: [{upgrade_type: websocket}],
      access_log_options: {flush_access_log_on_new_request: true, access_log_flush_interval: 0.1s}`

const recordCluster = `{name: %[1]s, connect_timeout: 1s, load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [
    {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]s}}}}]}]}%[3]s},`

const http2 = `, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}}`

// dispatch is a server that does what is posted, by the name of the request.
type dispatch struct {
	mu    sync.Mutex
	posts map[string]chan step
}

func (d *dispatch) post(name string) chan step {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.posts[name] == nil {
		d.posts[name] = make(chan step, 10)
	}
	return d.posts[name]
}

func (d *dispatch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Header.Get("X-Do") != "" { // of a scenario
		_, _ = w.Write([]byte("from the upstream"))
		return
	}
	post := d.post(r.Header.Get("X-Name"))
	for {
		select {
		case s := <-post:
			if s.verb == "answer" && s.words[0] == "101" {
				d.upgrade(w, post)
				return
			}
			d.do(w, s)
			if s.end {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (d *dispatch) do(w http.ResponseWriter, s step) {
	switch s.verb {
	case "answer":
		for _, f := range s.fields() {
			w.Header().Set(f[0], f[1])
		}
		code, _ := strconv.Atoi(s.words[0])
		w.WriteHeader(code)
	case "chunk":
		_, _ = w.Write([]byte(s.words[0]))
	case "trailers":
		for _, f := range s.fields() {
			w.Header().Set(http.TrailerPrefix+f[0], f[1])
		}
	case "reset":
		panic(http.ErrAbortHandler)
	}
	if !s.end {
		w.(http.Flusher).Flush()
	}
}

// upgrade goes on as a websocket that ends with its client at the latest.
func (d *dispatch) upgrade(w http.ResponseWriter, post chan step) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	gone := make(chan struct{})
	go func() { defer close(gone); _, _ = io.Copy(io.Discard, c) }()
	_, _ = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"))
	for {
		select {
		case s := <-post:
			if s.end {
				return
			}
			_, _ = c.Write([]byte(s.words[0]))
		case <-gone:
			return
		}
	}
}

type envoyLab struct {
	t      *testing.T
	p      *proc.Process
	client *http.Client
	url    string
	lines  []string
	read   int // of the log
}

var wasmLine = regexp.MustCompile(`(?m)\[info\]\[wasm\].* wasm log(?: plugin)? root (?:talks|answers): (.*)$`)

func (l *envoyLab) log() []string {
	log := l.p.Log()
	end := strings.LastIndexByte(log, '\n') + 1
	for _, m := range wasmLine.FindAllStringSubmatch(log[l.read:end], -1) {
		l.lines = append(l.lines, m[1])
	}
	l.read = end
	return l.lines
}

func (l *envoyLab) request(ctx context.Context, tk talk) string {
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if tk.body {
		method, body = http.MethodPost, strings.NewReader("body")
	}
	r, err := http.NewRequestWithContext(ctx, method, l.url, body)
	require.NoError(l.t, err)
	r.Header.Set("x-name", tk.name)
	r.Header.Set("x-do", tk.do)
	res, err := l.client.Do(r)
	if err != nil {
		return "reset"
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Sprintf("%d %s, then %v", res.StatusCode, text, err)
	}
	return fmt.Sprintf("%d %s", res.StatusCode, text)
}

type envoyCourier struct {
	*envoyLab
	dispatch *dispatch
}

// log has what both protocols show as HTTP/1.1 shows it: HTTP/2 says otherwise how a client leaves.
func (c *envoyCourier) log() []string {
	lines := slices.Clone(c.envoyLab.log())
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(line, "http2.remote_reset 268435456", "downstream_remote_disconnect 16384")
	}
	return lines
}

func (c *envoyCourier) send(a asked, name string) conveyed {
	ctx, cancel := context.WithCancel(c.t.Context())
	r, err := http.NewRequestWithContext(ctx, a.method, c.url+strings.TrimPrefix(a.path, "/"), strings.NewReader(a.body))
	require.NoError(c.t, err)
	r.Header.Set("x-name", name)
	for _, f := range a.headers {
		r.Header.Set(f[0], f[1])
	}
	x := &envoyConveyed{c: c, name: name, cancel: cancel, begun: make(chan struct{}), answer: make(chan string, 1)}
	go func() { x.answer <- c.fetch(r, x.begun) }()
	return x
}

func (c *envoyCourier) fetch(r *http.Request, begun chan<- struct{}) string {
	res, err := c.client.Do(r)
	close(begun)
	if err != nil {
		return "reset"
	}
	defer res.Body.Close()
	context.AfterFunc(r.Context(), func() { _ = res.Body.Close() }) // a websocket outlives its request
	text, err := io.ReadAll(res.Body)
	got := fmt.Sprintf("%d %s", res.StatusCode, text)
	if err != nil {
		return got + ", then reset"
	}
	for _, name := range slices.Sorted(maps.Keys(res.Trailer)) {
		got += " " + strings.ToLower(name) + "=" + res.Trailer.Get(name)
	}
	return got
}

type envoyConveyed struct {
	c      *envoyCourier
	name   string
	cancel context.CancelFunc
	begun  chan struct{} // closed when the answer has begun here, or there is none
	answer chan string
	amid   bool // the upstream has begun it
}

func (x *envoyConveyed) got() string { defer x.cancel(); return <-x.answer }

func (x *envoyConveyed) do(s step) {
	switch s.verb {
	case "leave":
		if x.amid {
			<-x.begun // Envoy has sent it, which takes a moment to arrive
		}
		x.cancel()
	case "wait":
	default:
		x.amid = true
		x.c.dispatch.post(x.name) <- s
	}
}

func startRecorder(t *testing.T, binary string) (*proc.Process, *dispatch) {
	t.Helper()
	d := &dispatch{posts: map[string]chan step{}}
	server := httptest.NewUnstartedServer(d)
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of each upgrade
	server.Start()
	t.Cleanup(server.Close)
	clusters := ""
	for name, address := range map[string]string{
		"http1": server.URL, "upstream": server.URL, "quota": serveCommands(t), "dying": serveCommands(t), "refused": "127.0.0.1:1", // no test is given that port
	} {
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
	p, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: fmt.Appendf(nil, recordBootstrap, listeners, clusters)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	require.NoError(t, p.WaitReady(ctx))
	return p, d
}

// TestRecord: what the simulator is held to is what real Envoys do.
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
				transport := &http.Transport{Protocols: &http.Protocols{}, DisableKeepAlives: true, DisableCompression: true} // a request is not made twice
				transport.Protocols.SetHTTP1(protocol == "HTTP1")
				transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP2")
				t.Cleanup(transport.CloseIdleConnections)
				client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
				labOf := func(listener string) *envoyLab {
					address, err := p.Listener(t.Context(), listener)
					require.NoError(t, err)
					return &envoyLab{t: t, p: p, client: client, url: "http://" + address + "/"}
				}
				requireConducted(t, labOf("talks"), write)
				requireConveyed(t, &envoyCourier{envoyLab: labOf("answers"), dispatch: d}, func(a asked) bool { return !a.http1 || protocol == "HTTP1" }, write)
			})
		}
	}
}
