package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

const (
	patience = 2 * time.Minute
	moment   = 5 * time.Millisecond
)

// perUser is a policy, as the filter gets it, with windows that do not end
// during a test.
func perUser(limit int) []byte {
	return fmt.Appendf(nil, `{"version":1,"headers":"ietf","rules":[{"name":"per-user","match":{"paths":["/api/*"]},`+
		`"key":[{"header":"x-user-id"}],"algorithm":"fixed_window_per_key","limits":["%d/1h"]}]}`, limit)
}

// plane is a running proxy.
type plane struct {
	*proxy.Proxy
	t     *testing.T
	url   string
	admin string
	log   *syncBuffer
	// end stops serving, and returns what Serve returned.
	end func() error
}

// serve starts a proxy in front of a handler.
func serve(t *testing.T, upstream http.Handler, change ...func(*proxy.Options)) *plane {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	p := &plane{t: t, log: &syncBuffer{}}
	o := proxy.Options{Wasm: buildtest.Wasm(t), Workers: 2, CacheDir: buildtest.CacheDir(), Log: p.log.logger()}
	var err error
	o.Upstream, err = url.Parse(behind.URL)
	require.NoError(t, err)
	for _, f := range change {
		f(&o)
	}
	p.Proxy, err = proxy.New(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	requests, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.url = "http://" + requests.Addr().String()
	p.admin = "http://" + admin.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, requests, admin) }()
	p.end = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = p.end() })
	return p
}

func (p *plane) configure(policy []byte) {
	p.t.Helper()
	_, err := p.Configure(policy)
	require.NoError(p.t, err)
}

// head is a response without its body.
type head struct {
	StatusCode    int
	Header        http.Header
	ContentLength int64
}

// do sends a GET with headers given as pairs, reads the response and
// returns it with its body.
func (p *plane) do(path string, headers ...string) (head, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+path, http.NoBody)
	require.NoError(p.t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(p.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return head{response.StatusCode, response.Header, response.ContentLength}, string(body)
}

// status returns the status of a GET by a user.
func (p *plane) status(user string) int {
	p.t.Helper()
	response, _ := p.do("/api/x", "x-user-id", user)
	return response.StatusCode
}

// ask sends a GET to the admin listener.
func (p *plane) ask(path string) (int, string) {
	p.t.Helper()
	response, err := http.Get(p.admin + path)
	require.NoError(p.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return response.StatusCode, string(body)
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

// syncBuffer is a log that is read while others write.
type syncBuffer struct{ proctest.Log }

func (b *syncBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// count returns how often the log holds a text.
func (b *syncBuffer) count(text string) int { return strings.Count(b.String(), text) }
