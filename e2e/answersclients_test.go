package e2e

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// visit is how a client asks the answering upstream, how it behaves, and what comes of it.
type visit struct {
	name    string
	do      string // what the upstream does
	route   string
	header  string // one more, as "name: value"
	http2   bool
	leaves  leaving
	resets  bool     // the proxy does, after 0.2 s
	breaks  bool     // the upstream breaks the protocol
	want    int      // the status; 0 = the answer has no end
	charged [5]int64 // by edgesRules
}

// leaving is when a client resets its request.
type leaving int

const (
	stays  leaving = iota
	before         // once the upstream has the request
	amid           // once a part of the answer is there
)

const grpcType = "content-type: application/grpc"

// visits are all ways of a request under which a slot must neither leak nor be free too early.
var visits = []visit{
	{name: "an answer", do: "200 hello", want: 200, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "an answer over HTTP/2", http2: true, do: "200 hello", route: "http2", want: 200, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "no body", do: "204", want: 204, charged: [5]int64{1}},
	{name: "an error", do: "500 hello", want: 500, charged: [5]int64{1, 1}},
	{name: "chunks", do: "chunks", want: 200, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "chunks over HTTP/2", http2: true, do: "chunks", want: 200, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "trailers", do: "trailers 7", want: 200, charged: [5]int64{1, 0, 0, 7, 15}},
	{name: "trailers over HTTP/2", http2: true, do: "trailers 7", route: "http2", want: 200, charged: [5]int64{1, 0, 0, 7, 15}},
	{name: "a gRPC stream", http2: true, do: "grpc 0", route: "http2", header: grpcType, want: 200, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "a gRPC error", http2: true, do: "grpc 5", route: "http2", header: grpcType, want: 200, charged: [5]int64{1, 0, 1, 0, 15}},
	{name: "a websocket that the upstream ends", do: "websocket", header: "upgrade: websocket", want: 101, charged: [5]int64{1}},
	{name: "a websocket that the client leaves", do: "websocket", header: "upgrade: websocket", leaves: amid, charged: [5]int64{1}},
	{name: "the client leaves before the answer", do: "200", leaves: before, charged: [5]int64{1, 1, 0, 1}},
	{name: "the client leaves before the answer over HTTP/2", http2: true, do: "200", route: "http2", leaves: before, charged: [5]int64{1, 1, 0, 1}},
	{name: "the client leaves amid the answer", do: "chunks", leaves: amid, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "the client leaves amid a gRPC stream", http2: true, do: "grpc 0", route: "http2", header: grpcType, leaves: amid, charged: [5]int64{1, 0, 1, 0, 5}},
	{name: "the upstream resets before the answer", do: "reset", want: 503, charged: [5]int64{1, 1, 0, 1}},
	{name: "the upstream resets amid the answer", do: "chunk-reset", breaks: true, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "the upstream resets amid a gRPC stream", http2: true, do: "chunk-reset", route: "http2", header: grpcType, charged: [5]int64{1, 0, 1, 0, 15}},
	{name: "the upstream resets over HTTP/2", do: "reset", route: "http2", want: 503, charged: [5]int64{1, 1, 0, 1}},
	{name: "the upstream garbles the answer", do: "garbage", breaks: true, want: 502, charged: [5]int64{1, 1, 0, 1}},
	{name: "a timeout", do: "200", route: "timeout", resets: true, want: 504, charged: [5]int64{1, 1, 0, 1}},
	{name: "a timeout amid the answer", do: "chunks", route: "timeout", resets: true, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "an idle stream", do: "200", route: "idle", resets: true, want: 504, charged: [5]int64{1, 1, 0, 1}},
	{name: "an upstream's timeout", do: "504 hello", want: 504, charged: [5]int64{1, 1}},
	{name: "a longest duration amid the answer", do: "chunks", route: "longest", resets: true, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "a retry", do: "fail-once", route: "retry", want: 200, charged: [5]int64{1}},
	{name: "retries used up", do: "fails", route: "retry", want: 503, charged: [5]int64{1, 1}},
	{name: "an internal redirect", do: "redirect", route: "redirect", want: 200, charged: [5]int64{1}},
	{name: "a reply of the route", route: "direct", want: 404, charged: [5]int64{1}},
	{name: "a reply of a later filter", header: "x-envoy-fault-abort-request: 418", want: 418, charged: [5]int64{1, 1}},
	{name: "a reply of an earlier filter", header: "x-before: yes", want: 403},
	{name: "no healthy upstream", route: "nowhere", want: 503, charged: [5]int64{1, 1}},
}

// lingers reports whether the proxy resets the upstream, which may go on.
func (v *visit) lingers() bool { return v.leaves != stays || v.resets || v.breaks }

// late is how a visit ends that is to be cut off amid the answer, where a busy machine comes
// to that too late: the client after the end, the proxy before the begin.
func (v *visit) late() int {
	switch {
	case v.want != 0:
		return v.want
	case v.resets:
		return http.StatusGatewayTimeout
	case v.leaves != stays:
		return http.StatusOK
	}
	return 0
}

// clients ask one proxy, over connections that each worker has as many of.
type clients struct {
	address  string
	upstream *answering
	http1    *http.Transport
	http2    []*http.Transport
}

func newClients(t *testing.T, address string, upstream *answering) *clients {
	c := &clients{address: address, upstream: upstream}
	c.http1 = &http.Transport{Protocols: protocols(1), MaxIdleConnsPerHost: 300, DisableCompression: true}
	t.Cleanup(c.http1.CloseIdleConnections)
	for range 2 * workers {
		h := &http.Transport{Protocols: protocols(2), DisableCompression: true}
		t.Cleanup(h.CloseIdleConnections)
		c.http2 = append(c.http2, h)
	}
	return c
}

// visit asks once and returns the status, 0 where the answer did not come to its end.
func (c *clients) visit(ctx context.Context, v *visit, path, id string, took time.Duration, more ...string) (status int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if v.leaves == before {
		defer c.upstream.onArrival(id, cancel)()
	}
	text := "a body"
	if v.do == "echo" {
		text = strings.Repeat("0123456789", 20_000)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+path, strings.NewReader(text))
	if err != nil {
		return 0
	}
	for _, line := range append(more, "x-id: "+id, "x-do: "+v.do, "x-ms: "+strconv.Itoa(int(took.Milliseconds())), "x-route: "+v.route, v.header) {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	if v.do == "redirect" || v.do == "websocket" { // Envoy redirects no body
		r.Method, r.Body, r.ContentLength = http.MethodGet, nil, 0
	}
	if v.do == "websocket" {
		return c.upgrade(ctx, r, v, cancel)
	}
	res, err := c.transport(v.http2).RoundTrip(r)
	if err == nil {
		defer res.Body.Close()
		if res.Header.Get("grpc-status") != "" { // a denial
			return http.StatusTooManyRequests
		}
		if v.leaves == amid && res.StatusCode == http.StatusOK {
			_, _ = io.ReadFull(res.Body, make([]byte, 5))
			cancel()
		}
		var got []byte
		if got, err = io.ReadAll(res.Body); v.do == "echo" && res.StatusCode == http.StatusOK && string(got) != text {
			return 0
		}
	}
	if err != nil {
		return 0
	}
	return res.StatusCode
}

func (c *clients) transport(http2 bool) *http.Transport {
	if http2 {
		return c.http2[rand.N(len(c.http2))]
	}
	return c.http1
}

// upgrade is a websocket that goes on until the upstream ends it.
func (c *clients) upgrade(ctx context.Context, r *http.Request, v *visit, leave func()) (status int) {
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r.Header.Set("connection", "upgrade")
	if err := r.Write(conn); err != nil {
		return 0
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, r)
	if err != nil {
		return 0
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		_, _ = io.WriteString(conn, "hello")
		_, _ = io.ReadFull(reader, make([]byte, 5))
		if v.leaves == amid {
			leave()
		}
		_, _ = io.Copy(io.Discard, reader)
	}
	if ctx.Err() != nil {
		return 0
	}
	return res.StatusCode
}
