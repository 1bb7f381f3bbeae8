package proc

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hello is an Envoy that answers by itself, on ports of the kernel's choice.
const hello = `
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
static_resources:
  listeners:
  - name: hello
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: hello
          route_config:
            virtual_hosts:
            - name: hello
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

func start(t *testing.T, bootstrap string) *Process {
	t.Helper()
	p, err := Start(t.Context(), Options{Bootstrap: []byte(bootstrap), Concurrency: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestProcess(t *testing.T) {
	ctx := within(t, 60*time.Second)
	p := start(t, hello)
	require.NoError(t, p.WaitReady(ctx))
	require.NoError(t, p.WaitLog(ctx, "starting main dispatch loop"))

	address, err := p.Listener(ctx, "hello")
	require.NoError(t, err)
	response, err := http.Get("http://" + address)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "hello", string(body))

	_, err = p.Listener(ctx, "other")
	require.ErrorContains(t, err, `none is named "other"`)

	stats, err := p.Stats(ctx, `^http\.hello\.downstream_rq_2xx$`)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"http.hello.downstream_rq_2xx": 1}, stats)
	prometheus, err := p.Prometheus(ctx)
	require.NoError(t, err)
	require.Contains(t, prometheus, `envoy_http_downstream_rq_xx{envoy_response_code_class="2",envoy_http_conn_manager_prefix="hello"} 1`)

	allocated, err := p.Memory(ctx)
	require.NoError(t, err)
	require.Greater(t, allocated, uint64(1<<20))
	resident, err := p.RSS()
	require.NoError(t, err)
	require.Greater(t, resident, uint64(1<<20))
	used, err := p.CPU()
	require.NoError(t, err)
	require.Greater(t, used, time.Duration(0))

	binary, err := Find()
	require.NoError(t, err)
	version, err := Version(ctx, binary)
	require.NoError(t, err)
	require.Regexp(t, `^1\.\d+\.\d+`, version)

	require.NoError(t, p.Stop())
	require.NoError(t, p.Stop(), "stopping twice")
	require.NoDirExists(t, p.dir)
	require.ErrorContains(t, p.WaitReady(ctx), "it ended")
}

func TestWaitReadyTellsWhy(t *testing.T) {
	p := start(t, "admin: {door: {}}")
	err := p.WaitReady(within(t, 60*time.Second))
	require.ErrorContains(t, err, "it ended: exit status 1")
	require.ErrorContains(t, err, "door", "Envoy's own words")
}

func TestValidate(t *testing.T) {
	path, err := Find()
	require.NoError(t, err)
	ctx := within(t, 60*time.Second)
	require.NoError(t, Validate(ctx, path, []byte(hello)))
	require.ErrorContains(t, Validate(ctx, path, []byte("static_resources: {listener: []}")), "static_resources")
}

func TestStartEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, Options{Bootstrap: []byte(hello)})
	require.NoError(t, err)
	cancel()
	<-p.Done()
}
