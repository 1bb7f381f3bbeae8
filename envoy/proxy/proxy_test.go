package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

func TestHeadersPassThroughAsInEnvoy(t *testing.T) {
	seen := make(chan *http.Request, 1)
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "hello")
	}))
	p.configure(perUser(1))
	response, body := p.do("/api/%2e/a//b?q=1&q=%2F;x", "x-user-id", "alice", "Host", "ignored",
		"X-Multi", "1", "X-Multi", "2", "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "h",
		"Connection", "x-private, upgrade", "X-Private", "1", "Upgrade", "websocket", "User-Agent", "test")
	require.Equal(t, http.StatusCreated, response.StatusCode)
	require.Equal(t, "hello", body)
	require.Equal(t, `"per-user";q=1;w=3600`, response.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"per-user";r=0;t=3600`, response.Header.Get("RateLimit"))
	require.Equal(t, []string{"a=1", "b=2"}, response.Header.Values("Set-Cookie"))
	require.Empty(t, response.Header.Get("X-Hop"))

	r := <-seen
	require.Equal(t, "/api/a/b?q=1&q=%2F;x", r.RequestURI)
	require.Equal(t, strings.TrimPrefix(p.url, "http://"), r.Host)
	require.Equal(t, []string{"1", "2"}, r.Header.Values("X-Multi"))
	require.Equal(t, "192.0.2.1,127.0.0.1", r.Header.Get("X-Forwarded-For"))
	require.Equal(t, "http", r.Header.Get("X-Forwarded-Proto"))
	require.Equal(t, "h", r.Header.Get("X-Forwarded-Host"))
	require.Equal(t, "test", r.Header.Get("User-Agent"))
	for _, hop := range []string{"Connection", "Upgrade", "X-Private"} {
		require.Empty(t, r.Header.Get(hop), hop)
	}

	response, _ = p.do("/api/x", "x-user-id", "alice")
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Equal(t, int64(19), response.ContentLength)
}

// The proxy refuses what the Envoy of a rendered bootstrap would not show to a filter: it could
// spell a key in a second way, or avoid a rule. The head of a request has 60 KiB at most.
func TestMalformedHeadsAreRefused(t *testing.T) {
	p := serve(t, hello)
	const get = "GET / HTTP/1.1\r\nHost: a\r\n"
	for head, want := range map[string]int{
		get + "X_User_Id: alice":                       400,
		"get / HTTP/1.1\r\nHost: a":                    400,
		"CONNECT / HTTP/1.1\r\nHost: a":                400,
		"GET / HTTP/1.1\r\nHost: a<b":                  400,
		"GET / HTTP/1.1":                               400,
		"OPTIONS * HTTP/1.1\r\nHost: a":                400,
		get + "Content-Length: 0\r\nContent-Length: 5": 400,
		get + "X-Long: " + strings.Repeat("a", 59<<10): 200,
		get + "X-Long: " + strings.Repeat("a", 64<<10): 431,
	} {
		name := fmt.Sprintf("%.60s of %d bytes", head, len(head))
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		require.NoError(t, err)
		_, err = io.WriteString(c, head+"\r\n\r\n")
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, name)
		require.Equal(t, want, response.StatusCode, name)
		require.NoError(t, response.Body.Close())
		require.NoError(t, c.Close())
	}
}

// Both bodies arrive while the other end still writes.
func TestBodiesAreStreamed(t *testing.T) {
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "X-End")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, strings.ToUpper(lines.Text()))
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-End", "yes")
	}))
	p.configure(perUser(10))
	body, writer := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/api/x", body)
	require.NoError(t, err)
	r.Header.Set("x-user-id", "alice")
	go func() { fmt.Fprintln(writer, "one") }()
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ONE\n", line)
	_, err = fmt.Fprintln(writer, "two")
	require.NoError(t, err)
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "TWO\n", line)
	require.NoError(t, writer.Close())
	_, err = lines.ReadString('\n')
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "yes", response.Trailer.Get("X-End"))
}

// A worker serves other requests while one is with the upstream.
func TestSlowUpstreamHoldsNoWorker(t *testing.T) {
	arrived, answer := make(chan struct{}), make(chan struct{})
	p := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/slow" {
			close(arrived)
			<-answer
		}
	}), func(o *proxy.Options) { o.Workers = 1 })
	p.configure(perUser(10))
	var slow sync.WaitGroup
	slow.Go(func() {
		response, _ := p.do("/api/slow", "x-user-id", "alice")
		if response.Header.Get("RateLimit") == "" {
			t.Error("no RateLimit field")
		}
	})
	<-arrived
	require.Equal(t, http.StatusOK, p.status("alice"))
	close(answer)
	slow.Wait()
}

// While the proxy ends, a paused request still gets the tick that it waits for.
func TestServeEndsAfterItsRequests(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	p := serve(t, hello, func(o *proxy.Options) { o.Wasm = code })
	var paused sync.WaitGroup
	paused.Go(func() {
		response, _ := p.do("/", "x-name", "a", "x-do", "pause|tick 500 resume a")
		if response.StatusCode != http.StatusOK {
			t.Errorf("answered with %d", response.StatusCode)
		}
	})
	require.Eventually(t, func() bool { return p.log.count("tick 500 0") == 1 }, patience, moment)
	require.NoError(t, p.end())
	paused.Wait()
}

func TestUpstreamFailuresAreAnsweredAndCounted(t *testing.T) {
	t.Parallel()
	free, err := ports.Free(1)
	require.NoError(t, err)
	never := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		upstream http.HandlerFunc
		change   func(*proxy.Options)
		status   int
		body     string
	}{
		"down": {
			upstream: hello,
			change: func(o *proxy.Options) {
				o.Upstream = &url.URL{Scheme: "http", Host: fmt.Sprint("127.0.0.1:", free[0])}
			},
			status: http.StatusBadGateway,
			body:   "the upstream gave no answer\n",
		},
		"slow": {
			upstream: never,
			change:   func(o *proxy.Options) { o.Timeout = 50 * time.Millisecond },
			status:   http.StatusGatewayTimeout,
			body:     "the upstream did not answer in time\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, tc.upstream, tc.change)
			p.configure(perUser(10))
			response, body := p.do("/api/x", "x-user-id", "alice")
			require.Equal(t, tc.status, response.StatusCode)
			require.Equal(t, tc.body, body)
			require.Equal(t, `"per-user";r=9;t=3600`, response.Header.Get("RateLimit"), "it was counted")
			_, stats := p.ask("/stats/prometheus")
			require.Contains(t, stats, "sluice_proxy_upstream_errors_total 1\n")
		})
	}
}

func TestParseUpstream(t *testing.T) {
	for _, good := range []string{"http://a", "https://a:1/", "http://[::1]:80"} {
		_, err := proxy.ParseUpstream(good)
		require.NoError(t, err, good)
	}
	for text, want := range map[string]string{
		"":                "is not an http or https URL",
		"127.0.0.1:80":    "is not a URL",
		"localhost:80":    "is not an http or https URL",
		"ftp://a":         "is not an http or https URL",
		"http://":         "is not an http or https URL",
		"http://a/b":      "paths pass through",
		"http://a?b":      "paths pass through",
		"http://u:p@a":    "holds a user",
		"http://a:b c":    "is not a URL",
		"http://[::1":     "is not a URL",
		"http://a/#there": "paths pass through",
	} {
		_, err := proxy.ParseUpstream(text)
		require.ErrorContains(t, err, want, text)
	}
}
