package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
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

// guest compiles the simulator's test filter, which does what requests say.
func guest(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "guest.wasm")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", file,
		"../sim/testdata/guest")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return file
}

// besideEnvoy starts this proxy and each Envoy that the tests have to pass on, with the
// simulator's guest as their filter and one echo server as their upstream, and runs the test on
// their addresses.
func besideEnvoy(t *testing.T, test func(t *testing.T, here, there string)) {
	t.Helper()
	file := guest(t)
	code, err := os.ReadFile(file)
	require.NoError(t, err)

	upstream := echo(t)
	p := serve(t, hello, func(o *proxy.Options) {
		o.Wasm, o.Upstream = code, &url.URL{Scheme: "http", Host: upstream}
	})
	p.configure([]byte(envoy.EmptyPolicy))
	bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: file}, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Node: "n", Upstream: upstream,
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

// echo starts a server that answers a request with its head, byte by byte as it came.
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
				in, head := textproto.NewReader(bufio.NewReader(c)), ""
				for {
					line, err := in.ReadLine()
					if err != nil || line == "" {
						break
					}
					head += line + "\n"
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(head), head)
			}()
		}
	}()
	return listener.Addr().String()
}

var filterSaw = regexp.MustCompile(`(?im)^(x-did|host): .*$`)

// tell sends a request and returns what became of it: that it was refused, where it was
// redirected to, or what the filter and the upstream got.
func tell(address, request string) string {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, request)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || answer.StatusCode >= http.StatusBadRequest {
		return "refused"
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Location"))
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	first, rest, _ := strings.Cut(string(body), "\n")
	seen := filterSaw.FindAllString(rest, -1)
	slices.Sort(seen)
	return strings.ToLower(fmt.Sprintf("%q %q", first, seen))
}

// differs returns why this proxy may answer a request differently from an Envoy, "" if it may
// not.
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

// Both refuse a path, or both show the same to the filter and the upstream.
func TestPathsAreReadAsByEnvoy(t *testing.T) {
	t.Parallel()
	sent := targets(t)
	require.GreaterOrEqual(t, len(sent), 200)
	besideEnvoy(t, func(t *testing.T, here, there string) {
		_, version, _ := strings.Cut(t.Name(), "/")
		compare(t, here, there, sent, version)
	})
}

// targets returns the paths of testdata/targets.txt, each in a request of its own.
func targets(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "targets.txt"))
	require.NoError(t, err)
	sent := map[string]string{}
	for line := range bytes.Lines(text) {
		target, err := strconv.Unquote(`"` + strings.TrimSuffix(string(line), "\n") + `"`)
		require.NoError(t, err, "%s", line)
		sent[target] = "GET " + target + " HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n" +
			"X-Ask: on;header :method;header :authority;header :path\r\n\r\n" // the guest shows the upstream what it sees
	}
	return sent
}

// compare sends all requests to both. An outcome may differ only if differs gives a reason.
func compare(t *testing.T, here, there string, sent map[string]string, version string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	different := map[string]int{}
	few := make(chan struct{}, 16)
	for name, request := range sent {
		all.Go(func() {
			few <- struct{}{}
			defer func() { <-few }()
			want, got := tell(there, request), tell(here, request)
			if want == got {
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
