package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// besideEnvoy starts this proxy and every Envoy the tests have to pass on, each
// with the mirror as its filter in front of one echo, and runs the test on
// their addresses.
func besideEnvoy(t *testing.T, test func(t *testing.T, here, there string)) {
	t.Helper()
	mirror := filepath.Join(t.TempDir(), "mirror.wasm")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", mirror, "./testdata/mirror")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	code, err := os.ReadFile(mirror)
	require.NoError(t, err)

	upstream := echo(t)
	p := serve(t, hello, func(o *proxy.Options) {
		o.Wasm, o.Upstream = code, &url.URL{Scheme: "http", Host: upstream}
	})
	p.configure([]byte(envoy.EmptyPolicy))
	bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: mirror}, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Node: "n", Upstream: upstream,
	})
	require.NoError(t, err)
	binaries, err := proc.All()
	require.NoError(t, err)
	for _, binary := range binaries {
		version, err := proc.Version(t.Context(), binary)
		require.NoError(t, err)
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			t.Cleanup(cancel)
			e, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: bootstrap})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, e.Kill()) })
			require.NoError(t, e.WaitReady(ctx))
			there, err := e.Listener(ctx, envoy.ListenerName)
			require.NoError(t, err)
			test(t, strings.TrimPrefix(p.url, "http://"), there)
		})
	}
}

// echo answers every request with its head, as it came over the wire. It
// parses as little as it can, so that nothing is refused or spelled anew here.
func echo(t *testing.T) string {
	t.Helper()
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
				defer c.Close()
				in := bufio.NewReader(c)
				for echoOne(in, c) == nil {
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func echoOne(in *bufio.Reader, out io.Writer) error {
	var head strings.Builder
	var body io.Reader = http.NoBody
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			break
		}
		fmt.Fprintln(&head, line)
		switch name, value, _ := strings.Cut(line, ": "); strings.ToLower(name) {
		case "content-length":
			n, _ := strconv.ParseInt(value, 10, 64)
			body = io.LimitReader(in, n)
		case "transfer-encoding":
			body = httputil.NewChunkedReader(in)
		}
	}
	read, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if strings.Contains(head.String(), "hunked") {
		for { // trailers
			line, err := in.ReadString('\n')
			if err != nil {
				return err
			}
			if line == "\r\n" {
				break
			}
			fmt.Fprint(&head, "trailer ", line)
		}
	}
	fmt.Fprintf(&head, "body %q\n", read)
	_, err = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", head.Len(), head.String())
	return err
}

// tell sends bytes and says what became of them: of each of so many answers, 0
// for all, that it was refused, where it redirects to, or what the upstream got.
func tell(address, request string, answers int) string {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	go func() { _, _ = io.WriteString(c, request) }()
	var told []string
	for in := bufio.NewReader(c); answers == 0 || len(told) < answers; {
		answer, err := http.ReadResponse(in, nil)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(answer.Body)
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return strings.Join(append(told, "waits"), ", ")
		case err != nil && len(told) == 0:
			return "refused"
		case err != nil:
			return strings.Join(append(told, "closed"), ", ")
		case answer.StatusCode >= http.StatusBadRequest: // what comes after it is as good as gone
			return strings.Join(append(told, "refused"), ", ")
		case answer.StatusCode == http.StatusOK:
			told = append(told, "200 "+shown(string(body)))
		default:
			told = append(told, fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Location")))
		}
	}
	return strings.Join(told, ", ")
}

// shown is what an echo says of the request line and of what an attacker could
// be after.
func shown(echoed string) string {
	first, rest, _ := strings.Cut(echoed, "\n")
	var said []string
	for line := range strings.Lines(rest) {
		name, _, _ := strings.Cut(line, " ")
		switch strings.ToLower(strings.TrimSuffix(name, ":")) {
		case "host", "x-user-id", "x_user_id", "x-filter-saw", "body", "trailer", "te", "upgrade", "keep-alive",
			"proxy-connection", "expect":
			said = append(said, strings.ToLower(name)+strings.TrimRight(strings.TrimPrefix(line, name), "\r\n"))
		}
	}
	slices.Sort(said)
	return strings.Join(append([]string{strconv.QuoteToASCII(first)}, said...), " | ")
}

// differs says why this proxy may answer a request otherwise than an Envoy.
func differs(name, version string) string {
	path, _, _ := strings.Cut(name, "?")
	switch {
	case brokenEscape.MatchString(path):
		return "net/http refuses a path with a broken escape"
	case strings.HasSuffix(name, " "):
		return "net/http refuses a second space in the request line"
	case onlySlashes.MatchString(path):
		return "Envoy leaves two slashes of a path of nothing else"
	case unusual.MatchString(name):
		return "the host of an absolute target is for net/http to judge, and its scheme is http"
	case strings.HasPrefix(name, "chunked"):
		return "a chunked request is the last of its connection"
	case version == "1.36.4" && dotParameters.MatchString(path):
		return "Envoy resolves dot segments with parameters from 1.36.10 on"
	}
	return ""
}

var (
	brokenEscape  = regexp.MustCompile(`%([^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)`)
	onlySlashes   = regexp.MustCompile(`(?i)^(http://[^/]*)?(/|\\|%2f|%5c)+$`)
	unusual       = regexp.MustCompile(`(?i)^http://([^/]*[^a-z0-9./:]|[^/]*:[0-9]{5}|[^/]*$)|^HTTP`)
	dotParameters = regexp.MustCompile(`(?i)(/|%2f)\.\.?;`)
)

// shapes are requests that two parsers could read in two ways.
func shapes() map[string]string {
	m := map[string]string{}
	for _, lines := range []string{
		"X-User-Id: alice", "X-User-Id:", "X-User-Id:   alice   ", "X-User-Id: al\tice", "X-User-Id: al\x00ice", "X-User-Id: al\xefce",
		"X-User-Id : alice", "X-User-Id", ": alice", ":path: /b", "X-User-Id: alice\r\n bob", "X-User-Id: alice\r\nX-User-Id: bob",
		"X-User-Id:\r\nX-User-Id: bob", "X_User_Id: alice", "X_User_Id: alice\r\nX-User-Id: bob",
		"Connection: x-user-id\r\nX-User-Id: alice", "Keep-Alive: timeout=5", "Proxy-Connection: keep-alive", "TE: trailers", "TE: gzip, trailers",
		"Upgrade: websocket", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
		"Content-Length: -5", "Content-Length: 5 5", "Content-Length: 0x5", "Content-Length: 0\r\nContent-Length: 5",
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: identity",
	} {
		m[lines] = "GET /a HTTP/1.1\r\nHost: example.com\r\n" + lines + "\r\n\r\n"
	}
	for _, method := range strings.Fields("get Get PUT DELETE PATCH TRACE PROPFIND REPORT CONNECT") {
		m[method] = method + " /a HTTP/1.1\r\nHost: example.com\r\n\r\n"
	}
	for _, host := range strings.Fields("a/b a\\b a;b a: :80 [::1] [::1 A.Example a:99999 a?b http://a a<b a_b a{b") {
		m["host "+host] = "GET /a HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	}
	post := "POST /a HTTP/1.1\r\nHost: example.com\r\n"
	m["length"] = post + "Content-Length: 5\r\n\r\nhello"
	m["expects to go on"] = post + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"
	m["chunked"] = post + "Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n"
	m["chunked, trailer"] = post + "Transfer-Encoding: chunked\r\nTrailer: x-user-id\r\n\r\n5\r\nhello\r\n0\r\nX-User-Id: bob\r\n\r\n"
	m["chunk size no number"] = post + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"
	m["no host"] = "GET /a HTTP/1.1\r\n\r\n"
	m["no version"] = "GET /a\r\n\r\n"
	m["OPTIONS *"] = "OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n"
	return m
}

// TestAsEnvoy: what a client sends is refused by both, or both show the filter
// and the upstream the same.
func TestAsEnvoy(t *testing.T) {
	t.Parallel()
	sent := targets(t)
	require.GreaterOrEqual(t, len(sent), 200)
	besideEnvoy(t, func(t *testing.T, here, there string) {
		_, version, _ := strings.Cut(t.Name(), "/")
		compare(t, here, there, sent, 1, version)
		compare(t, here, there, shapes(), 0, version)
	})
}

// targets are the paths of testdata/targets.txt, each in a request of its own.
func targets(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "targets.txt"))
	require.NoError(t, err)
	sent := map[string]string{}
	for line := range bytes.Lines(text) {
		target, err := strconv.Unquote(`"` + strings.TrimSuffix(string(line), "\n") + `"`)
		require.NoError(t, err, "%s", line)
		sent[target] = "GET " + target + " HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
	}
	return sent
}

// compare sends all to both. An outcome may differ where why says so.
func compare(t *testing.T, here, there string, sent map[string]string, answers int, version string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	different := map[string]int{}
	few := make(chan struct{}, 16)
	for name, request := range sent {
		all.Go(func() {
			few <- struct{}{}
			defer func() { <-few }()
			if answers == 0 { // all until one that ends the connection
				request += "GET /last HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
			}
			want, got := tell(there, request, answers), tell(here, request, answers)
			if strings.EqualFold(want, got) {
				return
			}
			if reason := differs(name, version); reason != "" {
				mu.Lock()
				defer mu.Unlock()
				different[reason]++
				return
			}
			t.Errorf("%q\n  envoy %s\n  here  %s", name, want, got)
		})
	}
	all.Wait()
	t.Logf("%d requests compared with Envoy, different are %v", len(sent), different)
}
