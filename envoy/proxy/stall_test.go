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

	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// limit is what the tests here give a silent end. A quarter of it is honest.
const limit = 2 * time.Second

func impatient(o *proxy.Options) {
	o.HeaderTimeout, o.BodyIdle, o.StreamIdle = limit, limit, limit
}

func (p *plane) dial() net.Conn {
	p.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	require.NoError(p.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// rest reads until the other end closes, and fails if it does not.
func rest(t *testing.T, c net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(c)
	if err != nil {
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection was not cut")
	}
	return string(text)
}

// TestSilentClient: a request that stops coming is cut, wherever it stops and
// whoever waits for it.
func TestSilentClient(t *testing.T) {
	t.Parallel()
	drains := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for name, tc := range map[string]struct {
		upstream      http.Handler
		request, want string
	}{
		"in its head":              {drains, "POST /api/x HTTP/1.1\r\nHost: a\r\nX-", ""},
		"in a body of some length": {drains, "POST /api/x HTTP/1.1\r\nHost: a\r\nX-User-Id: a\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 408 "},
		"in a chunk":               {drains, "POST /api/x HTTP/1.1\r\nHost: a\r\nX-User-Id: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "HTTP/1.1 408 "},
		"before its body":          {drains, "POST /api/x HTTP/1.1\r\nHost: a\r\nX-User-Id: a\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 408 "},
		"before it was told to go on": {drains,
			"POST /api/x HTTP/1.1\r\nHost: a\r\nX-User-Id: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 100 "},
		"when it has its answer": {hello, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 "},
		"when it is denied":      {hello, "POST /api/x HTTP/1.1\r\nHost: a\r\nX-User-Id: denied\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 429 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, tc.upstream, impatient)
			p.configure(perUser(1))
			p.status("denied")
			c := p.dial()
			began := time.Now()
			_, err := io.WriteString(c, tc.request)
			require.NoError(t, err)
			answer := rest(t, c)
			require.True(t, strings.HasPrefix(answer, tc.want), "%q", answer)
			require.GreaterOrEqual(t, time.Since(began), limit/2)
		})
	}
}

// TestReaderThatDoesNotRead: a response that nobody takes is cut, and so is an
// upload that the upstream does not take.
func TestReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		cut := make(chan error, 1)
		p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					cut <- err
					return
				}
			}
		}), impatient)
		p.configure(perUser(1))
		c := p.dial()
		_, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		require.NoError(t, err)
		select {
		case <-cut:
		case <-time.After(patience):
			t.Fatal("it is still served")
		}
	})
	t.Run("upstream", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for { // accepted, and never read
				if c, err := listener.Accept(); err == nil {
					t.Cleanup(func() { _ = c.Close() })
				} else {
					return
				}
			}
		}()
		p := serve(t, hello, impatient, func(o *proxy.Options) {
			o.Upstream = &url.URL{Scheme: "http", Host: listener.Addr().String()}
		})
		p.configure(perUser(1))
		c := p.dial()
		go func() {
			_, _ = io.WriteString(c, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
			for block := make([]byte, 1<<20); ; {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		require.Regexp(t, "^HTTP/1.1 50[24] ", line)
	})
}

// TestSilentUpstream: a response that stops coming is cut, also where it had
// said how long it would be.
func TestSilentUpstream(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "some")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}), impatient)
	p.configure(perUser(1))
	c := p.dial()
	_, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	answer := rest(t, c)
	require.Contains(t, answer, "some")
	require.False(t, strings.HasSuffix(answer, "0\r\n\r\n"), "a cut response does not look whole")
	<-left
}

// TestSlowIsNotSilent: both bodies go on for three times what a silent end is
// given, a byte now and then, while the other end reads as slowly.
func TestSlowIsNotSilent(t *testing.T) {
	t.Parallel()
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := http.NewResponseController(w)
		_ = client.EnableFullDuplex()
		_ = client.Flush()
		letter := make([]byte, 1)
		for {
			if _, err := io.ReadFull(r.Body, letter); err != nil {
				return
			}
			_, _ = w.Write([]byte(strings.ToUpper(string(letter))))
			_ = client.Flush()
		}
	}), impatient)
	p.configure(perUser(1))
	body, writer := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/x", body)
	require.NoError(t, err)
	var slow sync.WaitGroup
	slow.Go(func() {
		every := time.NewTicker(limit / 4)
		defer every.Stop()
		for range 12 {
			_, _ = writer.Write([]byte("a"))
			<-every.C
		}
		_ = writer.Close()
	})
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("A", 12), string(text))
	slow.Wait()
}

// TestSlowUpstreamIsNotASilentClient: a client that has sent all waits longer
// than it might be silent.
func TestSlowUpstreamIsNotASilentClient(t *testing.T) {
	t.Parallel()
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-time.After(limit + limit/2)
		fmt.Fprint(w, "late")
	}), impatient)
	p.configure(perUser(1))
	response, err := http.Post(p.url+"/x", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "late", string(text))
}

// TestSlowReader takes a response in small bits, with a pause before each that
// is less than the limit, for longer than the limit.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than the buffers between hold
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, size))
	}), impatient)
	p.configure(perUser(1))
	c := p.dial()
	_, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	got, every := 0, time.NewTicker(limit/4)
	defer every.Stop()
	for range 8 {
		<-every.C
		n, err := io.ReadFull(c, make([]byte, 64<<10))
		require.NoError(t, err)
		got += n
	}
	got += len(rest(t, c))
	require.Greater(t, got, size)
}

// TestConnectionsAreBounded: a newcomer takes the place of an idle connection;
// where none is idle, it is closed.
func TestConnectionsAreBounded(t *testing.T) {
	arrived, answer := make(chan struct{}), make(chan struct{})
	p := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			arrived <- struct{}{}
			<-answer
		}
	}), func(o *proxy.Options) { o.Connections = 3 })
	p.configure(perUser(1))
	ask := func(c net.Conn, path string) {
		_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")
		require.NoError(t, err)
	}
	answered := func(c net.Conn) {
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", line)
	}
	idle, busy, other := p.dial(), p.dial(), p.dial()
	ask(busy, "/slow")
	<-arrived
	ask(other, "/slow")
	<-arrived

	newcomer := p.dial()
	ask(newcomer, "/slow")
	<-arrived
	rest(t, idle) // it had to go

	excess := p.dial()
	require.Empty(t, rest(t, excess))
	_, stats := p.ask("/stats/prometheus")
	require.Contains(t, stats, "sluice_proxy_crowded_out_total 2\n")
	close(answer)
	for _, c := range []net.Conn{busy, other, newcomer} {
		answered(c)
	}
}

// TestBadUpstreams: what an upstream says in place of HTTP never reaches a
// client.
func TestBadUpstreams(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		says   string
		status string
	}{
		"garbage":             {"\x16\x03\x01 what?\r\n\r\n", "502"},
		"no status":           {"HTTP/1.1 \r\n\r\n", "502"},
		"too many headers":    {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", "502"},
		"hints, then answers": {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", "103"},
		"length and chunked":  {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200"},
		"lengths differ":      {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello", "502"},
		"switches protocols":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "502"},
		"nothing":             {"", "502"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						_, _ = http.ReadRequest(bufio.NewReader(c))
						_, _ = io.WriteString(c, tc.says)
						_ = c.Close()
					}()
				}
			}()
			p := serve(t, hello, func(o *proxy.Options) {
				o.Upstream = &url.URL{Scheme: "http", Host: listener.Addr().String()}
			})
			p.configure(perUser(1))
			c := p.dial()
			_, err = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			require.NoError(t, err)
			answer := rest(t, c)
			require.True(t, strings.HasPrefix(answer, "HTTP/1.1 "+tc.status+" "), "%q", answer)
			require.NotContains(t, answer, "what?")
		})
	}
}
