package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
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

const recordBootstrap = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: ingress
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          stream_idle_timeout: %s
          http_filters:
          - name: pauser
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                name: plugin
                root_id: root
                vm_config: {vm_id: vm, runtime: envoy.wasm.runtime.v8, code: {local: {filename: %s}}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: upstream}}]}
  clusters:`

const recordCluster = `
  - name: %s
    connect_timeout: 1s
    load_assignment:
      cluster_name: %s
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]
`

const http2 = `    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

type envoyLab struct {
	t      *testing.T
	p      *proc.Process
	client *http.Client
	url    string
	lines  []string
	read   int // of the log
}

var wasmLine = regexp.MustCompile(`(?m)\[info\]\[wasm\].* wasm log(?: plugin)? root vm: (.*)$`)

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

func startRecorder(t *testing.T, binary string) *proc.Process {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("from the upstream"))
	}))
	t.Cleanup(upstream.Close)
	port := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	text := fmt.Sprintf(recordBootstrap, idle, pauserFile) + fmt.Sprintf(recordCluster, "upstream", "upstream", port(upstream.URL))
	for name, address := range map[string]string{"quota": serveCommands(t), "dying": serveCommands(t), "refused": free.Addr().String()} {
		text += fmt.Sprintf(recordCluster, name, name, port(address)) + http2
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	p, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: []byte(text)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	require.NoError(t, p.WaitReady(ctx))
	return p
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
			t.Run(version+" "+protocol, func(t *testing.T) {
				t.Parallel() // they mostly wait
				p := startRecorder(t, binary)
				address, err := p.Listener(t.Context(), "ingress")
				require.NoError(t, err)
				transport := &http.Transport{Protocols: &http.Protocols{}, DisableKeepAlives: true} // a request is not made twice
				transport.Protocols.SetHTTP1(protocol == "HTTP1")
				transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP2")
				t.Cleanup(transport.CloseIdleConnections)
				got := conduct(t, &envoyLab{t: t, p: p, client: &http.Client{Transport: transport}, url: "http://" + address + "/"})
				if *update && i == len(binaries)-1 && protocol == "HTTP1" {
					require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				require.Equal(t, string(want), got)
			})
		}
	}
}
