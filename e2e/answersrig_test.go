package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// answering is an upstream that gives each request the answer for which it asks, in the time
// for which it asks, and that works on where the proxy has reset it: see do. It counts what
// runs, what has failed with 401, and how many of both there were at most.
type answering struct {
	*httptest.Server
	took                           time.Duration // where a request asks for none
	mu                             sync.Mutex
	running, failed, most, reached int
	busy                           time.Duration // of all that ran together, until
	changed                        time.Time
	received                       sync.Map          // bytes of a body that have come, by id: *atomic.Int64
	costs                          atomic.Int64      // by the header x-cost of what was answered
	arrivals                       map[string]func() // what clients do once their request is here, by id
}

func startAnswering(t *testing.T) *answering {
	a := &answering{arrivals: map[string]func(){}}
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.Protocols = protocols(1, 2)
	a.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of each upgrade
	a.Start()
	t.Cleanup(a.Close)
	return a
}

func protocols(versions ...int) *http.Protocols {
	p := &http.Protocols{}
	p.SetHTTP1(slices.Contains(versions, 1))
	p.SetUnencryptedHTTP2(slices.Contains(versions, 2))
	return p
}

func (a *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/ready" {
		return
	}
	arrived, failing := a.change(1, 0, r.Header.Get("x-id")), 0
	if r.Header.Get("x-do") == "401" {
		failing = 1
	}
	over := sync.OnceFunc(func() { a.change(-1, failing, "") }) // before the answer's last byte goes out
	defer over()
	if arrived != nil {
		arrived()
	}
	body, _ := io.ReadAll(io.TeeReader(r.Body, (*counter)(a.came(r.Header.Get("x-id")))))
	r.Body = io.NopCloser(bytes.NewReader(body))
	took := a.took
	if ms, err := strconv.Atoi(r.Header.Get("x-ms")); err == nil {
		took = time.Duration(ms) * time.Millisecond
	}
	a.do(w, r, took, over)
}

// came is how much has come of the body of a request.
func (a *answering) came(id string) *atomic.Int64 {
	n, _ := a.received.LoadOrStore(id, new(atomic.Int64))
	return n.(*atomic.Int64)
}

type counter atomic.Int64

func (c *counter) Write(b []byte) (int, error) {
	(*atomic.Int64)(c).Add(int64(len(b)))
	return len(b), nil
}

// change counts a request that begins, or that ends and has failed or not. It returns what the
// client of that id does once its request is here.
func (a *answering) change(running, failed int, id string) (arrived func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.busy += time.Duration(a.running) * now.Sub(a.changed)
	a.changed = now
	a.running += running
	a.failed += failed
	a.reached += max(running, 0)
	a.most = max(a.most, a.running+a.failed)
	return a.arrivals[id]
}

// since returns for how long requests have run, all together, and how many at once since it
// was called before.
func (a *answering) since() (busy time.Duration, most int) {
	a.change(0, 0, "")
	a.mu.Lock()
	defer a.mu.Unlock()
	most, a.most = a.most, a.running
	return a.busy, most
}

// do answers as x-do says, after so long: with a status or by one of these words.
func (a *answering) do(w http.ResponseWriter, r *http.Request, took time.Duration, over func()) {
	what, more, _ := strings.Cut(r.Header.Get("x-do"), " ")
	first := r.Header.Get("x-envoy-attempt-count") == "1"
	switch what {
	case "reset":
		time.Sleep(took)
		panic(http.ErrAbortHandler)
	case "echo":
		_, _ = io.Copy(w, r.Body)
	case "chunk-reset":
		chunks(w, took)
		panic(http.ErrAbortHandler)
	case "chunks":
		chunks(w, took)
	case "trailers":
		chunks(w, took)
		w.Header().Set(http.TrailerPrefix+"X-Cost", more)
	case "grpc":
		w.Header().Set("content-type", "application/grpc")
		chunks(w, took)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", more)
	case "slow-once":
		if first {
			time.Sleep(took)
		}
	case "fail-once", "fails":
		time.Sleep(took)
		if first || what == "fails" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "redirect":
		time.Sleep(took)
		if to := r.URL.Path + "/again"; !strings.HasSuffix(r.URL.Path, "/again") {
			http.Redirect(w, r, "http://"+r.Host+to, http.StatusFound)
		}
	case "websocket":
		hijacked(w, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket", took, over)
	case "garbage":
		hijacked(w, "no answer", took, over)
	default:
		time.Sleep(took)
		status, _ := strconv.Atoi(what)
		for _, line := range r.Header.Values("x-send") {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Set(name, value)
			if name == "x-cost" {
				cost, _ := strconv.Atoi(value)
				a.costs.Add(int64(cost))
			}
		}
		w.Header().Set("x-accepted", r.Header.Get("accept-encoding"))
		w.WriteHeader(cmp.Or(status, http.StatusOK))
		_, _ = io.WriteString(w, more)
	}
}

// chunks writes a chunk at the begin, in the middle and at the end.
func chunks(w http.ResponseWriter, took time.Duration) {
	for i := range 3 {
		if i > 0 {
			time.Sleep(took / 2)
		}
		_, _ = io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
	}
}

// hijacked writes a head of its own, works for so long, and sends back what it reads meanwhile.
func hijacked(w http.ResponseWriter, head string, took time.Duration, over func()) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, head+"\r\n\r\n")
	go func() { _, _ = io.Copy(c, c) }()
	time.Sleep(took)
	over()
}

// onArrival has then called when the request is here, until it is undone.
func (a *answering) onArrival(id string, then func()) (undo func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arrivals[id] = then
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.arrivals, id)
	}
}

// forget forgets what was, while nothing runs.
func (a *answering) forget(t *testing.T) {
	eventually(t, 5*time.Second, "the upstream to end", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		idle := a.running == 0
		if idle {
			a.failed = 0
			a.most = 0
			a.reached = 0
		}
		return idle
	})
}

// answeringRoutes are chosen by the header x-route.
var answeringRoutes = []struct{ name, action string }{
	{"timeout", "route: {cluster: upstream, timeout: 0.2s}"},
	{"idle", "route: {cluster: upstream, idle_timeout: 0.2s}"},
	{"longest", "route: {cluster: upstream, max_stream_duration: {max_stream_duration: 0.2s}}"},
	{"deadline", "route: {cluster: upstream, max_stream_duration: {grpc_timeout_header_max: 0s}}"},
	{"per-try", `route: {cluster: upstream, retry_policy: {retry_on: "5xx", num_retries: 3, per_try_timeout: 0.4s}}`},
	{"retry", `route: {cluster: upstream, retry_policy: {retry_on: "5xx,reset", num_retries: 1}}`},
	{"redirect", "route: {cluster: upstream, internal_redirect_policy: {}}"},
	{"direct", "direct_response: {status: 404}"},
	{"nowhere", "route: {cluster: nowhere}"},
	{"http2", "route: {cluster: http2, timeout: 0s}"},
}

// answerRoutes has an Envoy reach the upstream by all routes, and one filter stand before sluice
// and one behind it that answer where a request says so.
func answerRoutes(bootstrap []byte, address, accessLog string) []byte {
	const (
		route   = "\n              routes:"
		first   = "\n          http_filters:"
		last    = "\n          - name: envoy.filters.http.router"
		manager = "\n          stat_prefix: ingress"
		cluster = "\n  - name: upstream\n"
		options = "typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: " +
			`{"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {%s}}}`
	)
	host, port, _ := net.SplitHostPort(address)
	routes := "\n              include_request_attempt_count: true" + route
	for _, r := range answeringRoutes {
		match := "{prefix: /, headers: [{name: x-route, string_match: {exact: " + r.name + "}}]}"
		routes += "\n              - {match: " + match + ", " + r.action + "}"
	}
	bootstrap = logged(spread(bootstrap), accessLog,
		"%START_TIME(%s.%6f)% %DURATION% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %REQ(:PATH)%")
	for _, edit := range [][2]string{
		{route, routes},
		{manager, manager + "\n          http_protocol_options: {enable_trailers: true}" +
			"\n          upgrade_configs: [{upgrade_type: websocket}]"},
		{cluster, cluster + "    circuit_breakers: {thresholds: [{max_retries: 1000}]}\n    " +
			fmt.Sprintf(options, "http_protocol_options: {enable_trailers: true}") + "\n"},
		{first, first + `
          - name: before
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
              rules:
                action: DENY
                policies:
                  p: {permissions: [{header: {name: x-before, present_match: true}}], principals: [{any: true}]}`},
		{last, `
          - name: after
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
              abort: {header_abort: {}, percentage: {numerator: 100}}` + last},
	} {
		bootstrap = replacing(edit[0], edit[1])(bootstrap)
	}
	return fmt.Appendf(bootstrap, `
  - {name: nowhere, type: STATIC}
  - name: http2
    type: STATIC
    load_assignment:
      cluster_name: http2
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}]}]
    %s
`, host, port, fmt.Sprintf(options, "http2_protocol_options: {}"))
}

// answerRig is an Envoy of four workers before an answering upstream.
type answerRig struct {
	*proxy
	upstream  *answering
	accessLog string // path
}

func newAnswerRig(t *testing.T, d driver, o proxyOptions) *answerRig {
	r := &answerRig{upstream: startAnswering(t), accessLog: filepath.Join(t.TempDir(), "access")}
	r.proxy = r.another(t, d, o)
	return r
}

// another starts one more Envoy before the same upstream.
func (r *answerRig) another(t *testing.T, d driver, o proxyOptions) *proxy {
	o.upstream = r.upstream.URL
	edit := o.edit
	o.edit = func(bootstrap []byte) []byte {
		bootstrap = answerRoutes(bootstrap, r.upstream.Listener.Addr().String(), r.accessLog)
		if edit != nil {
			bootstrap = edit(bootstrap)
		}
		return bootstrap
	}
	return d.start(t, o)
}

// requireGauges waits until the gauges show that nothing is held.
func (r *answerRig) requireGauges(t *testing.T, rule string) {
	for _, gauge := range []string{"rate_limit_held_units", "rate_limit_held_streams"} {
		eventually(t, time.Minute, gauge+" to be 0", func() bool {
			n, _ := r.metric(t, gauge, rule)
			return n == 0
		})
	}
}
