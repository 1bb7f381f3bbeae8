package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/envoy"
)

const (
	// mostMemory bounds what serve may take, whatever proxies send.
	mostMemory = 200 << 20
	// largest is a request just below what serve takes.
	largest = 256<<10 - 64

	honestIP, hostileIP = "127.0.0.1", "127.0.0.2"
)

func boundedMemory(t *testing.T, pid int) {
	t.Helper()
	status := proctest.StatusOf(pid)
	peak := proctest.Memory(t, status, proctest.Peak)
	t.Logf("%d MiB now, %d at most", proctest.Memory(t, status, proctest.Resident)>>20, peak>>20)
	proctest.Below(t, peak, mostMemory)
}

// honestWithin is how long an honest caller waits at most, whatever hostile ones do, on
// a machine that does nothing else.
func honestWithin() time.Duration {
	if proctest.Race {
		return 20 * time.Second
	}
	return 2 * time.Second
}

// connection opens one from an address of this machine.
func (s server) connection(t *testing.T, from string) *grpc.ClientConn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	security := insecure.NewCredentials()
	if s.tls != nil {
		security = credentials.NewTLS(s.tls)
	}
	conn, err := grpc.NewClient("passthrough:///"+s.xds, grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// honest is a new proxy that gets its policy in time, and a look at /healthz.
func (s server) honest(t *testing.T, what string) {
	t.Helper()
	watch := proctest.StartStopwatch(s.process.Pid)
	ctx, cancel := watch.Within(t.Context(), honestWithin())
	defer cancel()
	client := extensionv3.NewExtensionConfigDiscoveryServiceClient(s.connection(t, honestIP))
	stream, err := client.DeltaExtensionConfigs(ctx)
	require.NoError(t, err, what)
	require.NoError(t, stream.Send(first("localhost", nil)), what)
	r, err := stream.Recv()
	require.NoError(t, err, "%s: %v", what, context.Cause(ctx))
	require.Len(t, r.GetResources(), 1)
	t.Logf("%s: a policy within %s", what, watch)
	s.healthz(t, what)
}

func (s server) healthz(t *testing.T, what string) {
	t.Helper()
	ctx, cancel := proctest.StartStopwatch(s.process.Pid).Within(t.Context(), honestWithin())
	defer cancel()
	code, _, err := s.ask(ctx, http.MethodGet, "/healthz", "")
	require.NoError(t, err, "%s: %v", what, context.Cause(ctx))
	require.Equal(t, http.StatusOK, code, what)
}

func first(id string, sluice map[string]any) *discoveryv3.DeltaDiscoveryRequest {
	metadata, err := structpb.NewStruct(map[string]any{"sluice": sluice})
	if err != nil {
		panic(err)
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: id, Metadata: metadata}, TypeUrl: xds.TypeURL,
		ResourceNamesSubscribe: []string{envoy.ResourceName},
	}
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (bytesCodec) Unmarshal(text []byte, v any) error { *v.(*[]byte) = text; return nil }
func (bytesCodec) Name() string                       { return "proto" }

const method = "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/DeltaExtensionConfigs"

// attack opens 200 streams of the method that each send what next returns until it is
// nil, and read nothing.
func (s server) attack(t *testing.T, method string, next func(stream, request int) []byte) (stop func()) {
	t.Helper()
	const connections, streams = 20, 10
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for c := range connections {
		conn := s.connection(t, hostileIP)
		for i := range streams {
			wg.Go(func() {
				for ctx.Err() == nil { // a stream that was ended is opened again
					stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
						grpc.ForceCodec(bytesCodec{}))
					for n := 0; err == nil; n++ {
						message := next(c*streams+i, n)
						if message == nil {
							<-ctx.Done()
							return
						}
						err = stream.SendMsg(message)
					}
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
		}
	}
	return func() { cancel(); wg.Wait() }
}

// repeat fills a request with one field.
func repeat(field protowire.Number, text string, size int) []byte {
	var message []byte
	one := protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), text)
	for len(message)+len(one) <= size {
		message = append(message, one...)
	}
	return message
}

func nested(depth int) []byte {
	value := structpb.NewStringValue("x")
	for range depth {
		value = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{value}})
	}
	r := first("deep", nil)
	r.Node.Metadata.Fields["sluice"] = value
	message, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	return message
}

func opening(stream int) []byte {
	message, err := proto.Marshal(first(fmt.Sprint("hostile-", stream), map[string]any{"vm_id": fmt.Sprint(stream)}))
	if err != nil {
		panic(err)
	}
	return message
}

// large is a policy of nearly the largest size.
func large() string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for i := range 6000 {
		fmt.Fprintf(&b, "- {name: rule-%d, match: {paths: [\"/some/longer/path/%d/*\"]}, ", i, i)
		b.WriteString("limits: [\"10/1s\"], capacity: 16}\n")
	}
	return b.String()
}

// Each attack meets a serve of its own: the kernel also counts what an earlier one took, and the runtime has not given
// back yet.
func TestHostileStreams(t *testing.T) {
	start := func(t *testing.T) server {
		s := startServe(t, t.TempDir())
		_, err := s.apply(large())
		require.NoError(t, err)
		s.honest(t, "before")
		return s
	}

	names := repeat(3, "n", largest)
	versions := repeat(5, "\n\x01a\x12\x01b", largest)
	empty := repeat(1, "", largest)
	oversized, deep := repeat(3, strings.Repeat("n", 100), 3_900_000), nested(5000)
	after := func(message []byte) func(int, int) []byte {
		return func(stream, n int) []byte {
			if n == 0 {
				return opening(stream)
			}
			return message
		}
	}
	for _, a := range []struct {
		name string
		next func(stream, n int) []byte
	}{
		{"streams that never read", after(nil)},
		{"many names", after(names)},
		{"many versions", after(versions)},
		{"many empty nodes", after(empty)},
		{"deep nesting", after(deep)},
		{"too large", after(oversized)},
		{"large before the node is named", func(int, int) []byte { return names }},
		{"nothing", func(int, int) []byte { return nil }},
	} {
		t.Run(a.name, func(t *testing.T) {
			s := start(t)
			stop := s.attack(t, method, a.next)
			defer stop()
			for range 3 {
				s.honest(t, a.name)
				time.Sleep(300 * time.Millisecond) // lets the attack go on
			}
			boundedMemory(t, s.process.Pid)
		})
	}
	t.Run("messages without end", func(t *testing.T) {
		s := start(t)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 20 {
			c := s.dial(t, s.xds, hostileIP)
			wg.Go(func() { flood(c, 10, allButOne) })
			defer c.Close()
		}
		for range 3 {
			s.honest(t, "messages without end")
			time.Sleep(300 * time.Millisecond) // lets the attack go on
		}
		boundedMemory(t, s.process.Pid)
	})
}

// dial opens a plain connection.
func (s server) dial(t *testing.T, address, from string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	return c
}

// flood speaks HTTP/2 with so many streams, each of which sends something.
func flood(c net.Conn, streams int, send func(*http2.Framer, uint32) error) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return
	}
	buffer := bufio.NewWriterSize(c, 64<<10) // not a system call for each byte
	defer buffer.Flush()
	framer := http2.NewFramer(buffer, nil)
	if framer.WriteSettings() != nil || framer.WriteWindowUpdate(0, 1<<30) != nil {
		return
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for i := range streams {
		headers.Reset()
		for _, h := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		id := uint32(2*i + 1)
		frame := http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true}
		if framer.WriteHeaders(frame) != nil {
			return
		}
		if send(framer, id) != nil {
			return
		}
	}
}

// prefix begins a message of a length.
func prefix(length int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(length)) }

func allButOne(f *http2.Framer, id uint32) error {
	if err := f.WriteData(id, false, prefix(largest)); err != nil {
		return err
	}
	for sent := 0; sent < largest-1; {
		n := min(16<<10, largest-1-sent)
		if err := f.WriteData(id, false, make([]byte, n)); err != nil {
			return err
		}
		sent += n
	}
	return nil
}

// Connections that do nothing keep nobody out, however few files serve may open; with TLS,
// those that never finish a handshake.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	cert, key := certtest.Files(t)
	pair, err := tls.LoadX509KeyPair(cert, key) // the authority's, serve's and the proxy's
	require.NoError(t, err)
	for name, flags := range map[string][]string{
		"plain": nil,
		"TLS":   {"--tls-cert", cert, "--tls-key", key, "--xds-client-ca", cert},
	} {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, "ulimit -n 64; ", t.TempDir(), flags...)
			if flags != nil {
				s.url = "https" + strings.TrimPrefix(s.url, "http")
				s.tls = &tls.Config{
					MinVersion: tls.VersionTLS12, RootCAs: certtest.Pool(&pair), Certificates: []tls.Certificate{pair},
				}
			}
			_, err := s.apply("version: 1\nrules: []\n")
			require.NoError(t, err)
			s.idle(t)
		})
	}
}

// idle has 80 connections do nothing, in each way that there is, while honest callers call.
func (s server) idle(t *testing.T) {
	t.Helper()
	_, address, _ := strings.Cut(s.url, "://")
	clientHello := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 100)...)
	for _, a := range []struct {
		name, address string
		begin         func(net.Conn)
	}{
		{"silent to xDS", s.xds, func(net.Conn) {}},
		{"silent to HTTP", address, func(net.Conn) {}},
		{"idle HTTP/2 to xDS", s.xds, func(c net.Conn) { flood(c, 0, nil) }},
		{"HTTP/2 to HTTP", address, func(c net.Conn) { flood(c, 0, nil) }},
		{"streams without a request", s.xds, func(c net.Conn) {
			flood(c, 10, func(*http2.Framer, uint32) error { return nil })
		}},
		{"unfinished requests", address, func(c net.Conn) { _, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\n") }},
		{"unfinished bodies", address, func(c net.Conn) {
			_, _ = io.WriteString(c, "POST /v1/policies HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
		}},
		{"idle after a request", address, func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}},
		{"handshakes without end", s.xds, func(c net.Conn) { _, _ = c.Write(clientHello) }},
	} {
		t.Run(a.name, func(t *testing.T) {
			for i := range 80 {
				c := s.dial(t, a.address, []string{honestIP, hostileIP}[i%2])
				defer c.Close()
				a.begin(c)
			}
			for range 3 {
				s.honest(t, a.name)
			}
		})
	}
}
