package proxy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// guest compiles the simulator's test filter, which does what requests say.
func guest(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "guest.wasm")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", file, "../sim/testdata/guest")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return file
}

func witness(t *testing.T) []byte {
	t.Helper()
	wasm, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	return wasm
}

// plainText is a codec of messages that are text.
type plainText struct{}

func (plainText) Name() string                    { return "proto" }
func (plainText) Marshal(m any) ([]byte, error)   { return []byte(*m.(*string)), nil }
func (plainText) Unmarshal(b []byte, m any) error { *m.(*string) = string(b); return nil }

// serveEcho is a service that sends messages back as they are, and ends a stream
// that says "close". It reports what each message was, and how each stream ended.
func serveEcho(t *testing.T) (conn *grpc.ClientConn, heard, ended <-chan string) {
	t.Helper()
	messages, ends := make(chan string, 10), make(chan string, 10)
	handler := func(_ any, stream grpc.ServerStream) error {
		for {
			var m string
			if err := stream.RecvMsg(&m); err != nil {
				ends <- status.FromContextError(stream.Context().Err()).Code().String()
				return nil //nolint:nilerr // the filter's end
			}
			messages <- m
			if m == "close" {
				return status.Error(codes.NotFound, "asked to")
			}
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}
	server := grpc.NewServer(grpc.ForceServerCodec(plainText{}), grpc.UnknownServiceHandler(handler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn, messages, ends
}

// TestFilterPausesAndAsks: one worker, so a paused request must leave it to others.
func TestFilterPausesAndAsks(t *testing.T) {
	conn, heard, ended := serveEcho(t)
	free, err := ports.Free(1)
	require.NoError(t, err)
	nobody, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", free[0]), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nobody.Close()) })
	wasm := witness(t)
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }), func(o *proxy.Options) {
		o.Wasm, o.Workers = wasm, 1
		o.Cluster = func(name string) grpc.ClientConnInterface {
			return map[string]grpc.ClientConnInterface{"quota": conn, "nobody": nobody}[name]
		}
	})
	ask := func(do string) int {
		t.Helper()
		response, _ := p.do("/", "x-name", "a", "x-do", do)
		return response.StatusCode
	}
	end := func() string {
		select {
		case how := <-ended:
			return how
		case <-time.After(10 * time.Second):
			return "not at all"
		}
	}
	require.Equal(t, http.StatusAccepted, ask("pause|open quota|send resume a"))
	require.Equal(t, http.StatusTooManyRequests, ask("pause|send reply a 429"), "on the same stream")
	require.Equal(t, http.StatusConflict, ask("pause|onclose reply a 409|send close"), "the service ends it")
	require.Equal(t, http.StatusConflict, ask("pause|onclose reply a 409|open nobody"), "out of reach")
	require.Equal(t, http.StatusConflict, ask("pause|onclose reply a 409|open nowhere"), "no such cluster")
	require.Equal(t, http.StatusAccepted, ask("pause|tick 20 resume a"))
	require.Equal(t, http.StatusAccepted, ask("pause|open quota|last resume a"))
	require.Equal(t, "OK", end(), "the filter has nothing more to say")
	require.Equal(t, http.StatusAccepted, ask("pause|open quota|send cancel;resume a"))
	require.Equal(t, codes.Canceled.String(), end())

	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("x-name", "gone")
	r.Header.Set("x-do", "pause|open quota|onclose reply a 410|send path gone")
	go func() {
		defer cancel() // once the filter waits
		for m := range heard {
			if m == "path gone" {
				return
			}
		}
	}()
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, http.StatusGone, ask("pause|send close"), "the worker and the stream live on")
}
