package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

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
			if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
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
		more := unmarshaled(t, fmt.Sprintf(`
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
`, socketAddress(plain.Listener), socketAddress(l)))
		return edited(t, spread(bootstrap), func(static object) {
			host := managerOf(listenersOf(static)[0])["route_config"].(object)["virtual_hosts"].([]any)[0].(object)
			host["routes"] = more["routes"]
			static["clusters"] = append(static["clusters"].([]any), more["clusters"].([]any)...)
		})
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
		began, user := time.Now(), w.user()
		time.AfterFunc(faultTimeout/4, w.gate.open)
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
			require.Equal(t, sha256.Sum256([]byte(text)), sha256.Sum256(got), "%d bytes came back", len(got))
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
