package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// waitingRig is an Envoy whose requests wait for a quota service behind a gate.
type waitingRig struct {
	*proxy
	control *controlPlane
	service *quotaService
	gate    *gate
	users   int
}

// waitingPolicy has a limit of a user who comes once. Requests to /free concern no rule.
const waitingPolicy = `
version: 1
quota: {timeout: %s}
rules:
  - name: waits
    scope: cluster
    on_unavailable: deny
    match: {paths: [/waits, "/echo*"]}
    key: [{header: x-user-id}]
    limits: [1/366d]
`

// A request that waits is answered within the timeout and 20 ms, whatever happens, and
// goes on as it came.
func TestWaiting(t *testing.T) {
	w := newWaitingRig(t)
	t.Run("no answer", func(t *testing.T) {
		w.gate.hold()
		defer w.gate.open()
		w.burst(t, 64, nil).within(t, faultWait)
	})
	t.Run("answered late", func(t *testing.T) {
		w.recover(t)
		got := w.during(t, 64, func() {
			w.gate.hold()
			time.AfterFunc(faultTimeout/2, w.gate.open)
		}, nil)
		got.within(t, faultWait)
		require.Positive(t, got.count(allowed))
	})
	t.Run("streams reset", func(t *testing.T) {
		w.recover(t)
		got := w.during(t, 64, w.gate.hold, func() {
			w.gate.cut()
			w.gate.open() // and they are asked again
		})
		got.within(t, faultWait)
		require.Positive(t, got.count(allowed))
		w.recover(t)
		w.during(t, 64, w.gate.hold, func() {
			for range 10 {
				w.gate.cut()
				time.Sleep(10 * time.Millisecond)
			}
			w.gate.open()
		}).within(t, faultWait)
	})
	t.Run("the service restarts", func(t *testing.T) {
		w.recover(t)
		w.during(t, 64, w.gate.hold, func() {
			w.service.kill()
			w.gate.open()
			w.service.start(t)
		}).within(t, faultWait)
	})
	t.Run("many at once", func(t *testing.T) {
		n := 4096
		if *faultRuns == 0 {
			n = 1024 // it takes less
		}
		w.recover(t)
		free := w.send(t, n, steadyFree, nil)
		_, busy := waits(free.all, nil) // as long as answering so many takes
		for _, then := range []func(){nil, w.gate.open} {
			w.recover(t)
			got := w.during(t, n, w.gate.hold, then)
			_, took := waits(got.all, nil)
			t.Logf("%d requests, %d allowed: took %s, without a rule %s", len(got.all), got.count(allowed), took, busy)
			require.Equal(t, len(got.all), got.count(allowed)+got.count(denied))
			require.Less(t, took, faultWait+2*busy+faultSlack())
		}
	})
	t.Run("the clients go", func(t *testing.T) {
		w.recover(t)
		w.gate.hold()
		for i := range 256 {
			c, err := net.Dial("tcp", w.address)
			require.NoError(t, err)
			fmt.Fprintf(c, "GET /waits HTTP/1.1\r\nhost: api.example.com\r\nx-user-id: %s\r\n\r\n", w.user())
			time.AfterFunc(time.Duration(i%64)*2*time.Millisecond, func() { c.Close() })
		}
		time.Sleep(faultTimeout / 2)
		w.gate.open()
		w.recover(t)
	})
	t.Run("what waits goes on as it came", w.shapes)
	t.Run("a new policy", func(t *testing.T) {
		const timeout = time.Second
		w.control.push(t, fmt.Sprintf(waitingPolicy, timeout))
		w.recover(t)
		got := w.during(t, 64, w.gate.hold, func() { w.control.push(t, fmt.Sprintf(waitingPolicy, 2*timeout)) })
		got.within(t, timeout+20*time.Millisecond)
		w.gate.open()
		w.recover(t)
	})
	for _, trap := range []string{"Uncaught", "panic", "[critical]", "Function: proxy_"} {
		require.NotContains(t, w.log(), trap)
	}
}

func newWaitingRig(t *testing.T) *waitingRig {
	t.Helper()
	w := &waitingRig{control: startControlPlane(t), service: startQuota(t, quotaMemory)}
	w.gate = newGate(t, w.service.address)
	w.proxy = newest(t).start(t, proxyOptions{
		node: "edge", xds: w.control.xds, quota: w.gate.address(), edit: echoes(t), workers: 4,
	})
	w.control.awaitConnected(t, "edge")
	w.control.push(t, fmt.Sprintf(waitingPolicy, faultTimeout))
	w.recover(t)
	return w
}

const quotaMemory = "memory"

// echoes makes an Envoy pass /echo on to a server that sends back what it gets, calls
// of echo.Echo to one for gRPC, and answer all else itself.
func echoes(t *testing.T) func(bootstrap []byte) []byte {
	plain := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(plain.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		for {
			var m wrapperspb.StringValue
			if err := stream.RecvMsg(&m); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}))
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }()
	return func(bootstrap []byte) []byte {
		var doc map[string]any
		require.NoError(t, yaml.Unmarshal(bootstrap, &doc))
		static := doc["static_resources"].(map[string]any)
		listener := static["listeners"].([]any)[0].(map[string]any)
		listener["connection_balance_config"] = map[string]any{"exact_balance": map[string]any{}}
		manager := managerOf(listener)
		host := manager["route_config"].(map[string]any)["virtual_hosts"].([]any)[0].(map[string]any)
		var more struct {
			Routes   []any
			Clusters []any
		}
		require.NoError(t, yaml.Unmarshal(fmt.Appendf(nil, `
routes:
- match: {prefix: /echo.Echo}
  route: {cluster: grpc}
- match: {prefix: /echo}
  route: {cluster: plain, upgrade_configs: [{upgrade_type: websocket}]}
- match: {prefix: /}
  direct_response: {status: 200, body: {inline_string: "hello\n"}}
clusters:
- name: plain
  load_assignment: {cluster_name: plain, endpoints: [{lb_endpoints: [{endpoint: {address: %s}}]}]}
- name: grpc
  load_assignment: {cluster_name: grpc, endpoints: [{lb_endpoints: [{endpoint: {address: %s}}]}]}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {}}
`, socketAddress(plain.Listener), socketAddress(l)), &more))
		host["routes"] = more.Routes
		static["clusters"] = append(static["clusters"].([]any), more.Clusters...)
		return marshaled(t, doc)
	}
}

func socketAddress(l net.Listener) string {
	return fmt.Sprintf("{socket_address: {address: 127.0.0.1, port_value: %d}}", l.Addr().(*net.TCPAddr).Port)
}

// echo sends a body back, or after an upgrade all that comes.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("upgrade") == "" {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
		return
	}
	c, in, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %s\r\n\r\n", r.Header.Get("upgrade"))
	_, _ = io.Copy(c, in)
}

// user is one who has not come yet.
func (w *waitingRig) user() string {
	w.users++
	return fmt.Sprint("user-", w.users)
}

// recover waits until no worker is without the service.
func (w *waitingRig) recover(t *testing.T) {
	t.Helper()
	w.gate.open()
	eventually(t, 10*time.Second, "the quota service to be asked again", func() bool {
		const some = 16 // on each worker
		if w.burst(t, some, nil).count(allowed) == some {
			return true
		}
		time.Sleep(100 * time.Millisecond)
		return false
	})
}

// answers are what became of a burst of requests.
type answers struct{ all, beside []exchange }

func (a answers) count(status int16) (n int) {
	for _, e := range a.all {
		if e.status == status {
			n++
		}
	}
	return n
}

// within requires that all were answered in time, and did not fail.
func (a answers) within(t *testing.T, limit time.Duration) {
	t.Helper()
	require.Equal(t, len(a.all), a.count(allowed)+a.count(denied))
	wait, took := waits(a.all, a.beside)
	t.Logf("%d requests, %d allowed: waited %s, took %s", len(a.all), a.count(allowed), wait, took)
	require.Less(t, wait, limit+faultSlack())
}

// during sends n requests of new users at once after before, and calls then while they
// wait.
func (w *waitingRig) during(t *testing.T, n int, before, then func()) answers {
	t.Helper()
	var late sync.WaitGroup
	got := w.burst(t, n, func() {
		before()
		if then != nil {
			late.Go(func() {
				time.Sleep(faultTimeout / 4)
				then()
			})
		}
	})
	late.Wait()
	return got
}

// burst sends n requests of new users at once after before.
func (w *waitingRig) burst(t *testing.T, n int, before func()) answers {
	t.Helper()
	return w.send(t, n, "waits", before)
}

// send sends n requests at once, on connections of their own, after before. Beside them
// it sends requests that no rule concerns.
func (w *waitingRig) send(t *testing.T, n int, rule string, before func()) (got answers) {
	t.Helper()
	l := &steady{addresses: []string{w.address}}
	connect := func() *steadyConnection {
		c := &steadyConnection{load: l}
		_, err := c.exchange(w.address, steadyFree, "")
		require.NoError(t, err)
		return c
	}
	connections := make([]*steadyConnection, n)
	stop := make(chan struct{})
	var beside, all sync.WaitGroup
	for range 8 {
		c := connect()
		c.beside = true
		beside.Go(func() { c.run(stop, 0, besideEvery) })
	}
	for i := range connections {
		connections[i] = connect()
		defer connections[i].close()
	}
	if before != nil {
		before()
	}
	for _, c := range connections {
		user := w.user()
		all.Go(func() { c.sendTo(w.address, exchange{rule: rule, key: user}) })
	}
	all.Wait()
	close(stop)
	beside.Wait()
	got.all, got.beside = l.take("")
	return got
}

// shapes are requests with more than headers.
func (w *waitingRig) shapes(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///"+w.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	call := func(user string) (string, error) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-user-id", user), time.Minute)
		defer cancel()
		var out wrapperspb.StringValue
		err := conn.Invoke(ctx, "/echo.Echo/Say", wrapperspb.String(strings.Repeat("grpc ", 1000)), &out)
		return out.Value, err
	}
	// while holds the service's answers back while the request waits.
	while := func(send func(user string)) {
		w.recover(t)
		w.gate.hold()
		time.AfterFunc(faultTimeout/4, w.gate.open)
		began, user := time.Now(), w.user()
		send(user)
		require.GreaterOrEqual(t, time.Since(began), faultTimeout/4, "it has waited")
	}
	t.Run("gRPC", func(t *testing.T) {
		while(func(user string) {
			got, err := call(user)
			require.NoError(t, err)
			require.Equal(t, strings.Repeat("grpc ", 1000), got)
			_, err = call(user)
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		})
		w.gate.hold()
		_, err := call(w.user())
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "without an answer")
		w.gate.open()
	})
	t.Run("a body", func(t *testing.T) {
		while(func(user string) {
			text := strings.Repeat("0123456789", 20_000)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.address+"/echo", strings.NewReader(text))
			require.NoError(t, err)
			r.Header.Set("x-user-id", user)
			res, err := http.DefaultTransport.RoundTrip(r)
			require.NoError(t, err)
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.True(t, text == string(got), "%d bytes came back", len(got))
		})
	})
	t.Run("WebSocket", func(t *testing.T) {
		upgrade := func(user string) (net.Conn, *bufio.Reader, string) {
			c, err := net.Dial("tcp", w.address)
			require.NoError(t, err)
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			fmt.Fprintf(c, "GET /echo HTTP/1.1\r\nhost: api.example.com\r\nx-user-id: %s\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", user)
			in := bufio.NewReader(c)
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			return c, in, line
		}
		while(func(user string) {
			c, in, line := upgrade(user)
			defer c.Close()
			require.Contains(t, line, "101")
			for line != "\r\n" {
				var err error
				line, err = in.ReadString('\n')
				require.NoError(t, err)
			}
			fmt.Fprintln(c, "hello")
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "hello\n", line)
			again, _, line := upgrade(user)
			defer again.Close()
			require.Contains(t, line, "429")
		})
	})
}
