package proxy_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// TestFilterSeesAnswers: their bodies as they pass by, trailers, and how they end.
func TestFilterSeesAnswers(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	p := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/empty" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if r.URL.Path == "/trailers" {
			w.Header().Set("Trailer", "X-Trailer")
		}
		_, _ = w.Write([]byte("hello"))
		_ = http.NewResponseController(w).Flush()
		switch r.URL.Path {
		case "/trailers":
			w.Header().Set("X-Trailer", "t")
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/leave":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}), func(o *proxy.Options) { o.Wasm = witness(t) })
	_, err := p.Configure([]byte("{}"))
	require.NoError(t, err)
	said := func(path, line string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(p.log.String(), line) }, patience, moment, "%s: %s\n%s", path, line, p.log.String())
	}
	ask := func(path string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, io.MultiReader(strings.NewReader("question")))
		require.NoError(t, err)
		r.Header.Set("X-Name", path)
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		if path == "/leave" {
			_, err = io.ReadFull(res.Body, make([]byte, 5))
			require.NoError(t, err)
			cancel()
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	for path, lines := range map[string][]string{
		"/empty":    {"response_headers /empty 1 ", "log /empty [/empty 204 !1 !1] (204 via_upstream 0 2 0 + 8 +"},
		"/whole":    {"response_headers /whole 0 ", `response_body /whole 5 0 \"hello\"`, `response_body /whole 0 1 `, "log /whole [/whole 200 !1 !1] (200 via_upstream 0 2 5 + 8 +"},
		"/trailers": {`response_body /trailers 5 0 `, "log /trailers [/trailers 200 t !1] (200 via_upstream 0 2 5 +"},
		"/reset":    {"log /reset [/reset 200 !1 !1] (200 upstream_reset_after_response_started{remote_reset} 16 2 5 +"},
		"/leave":    {"log /leave [/leave 200 !1 !1] (200 downstream_remote_disconnect 16384 2 5 +"},
	} {
		ask(path)
		for _, line := range lines {
			said(path, line)
		}
	}
	said("/leave", "delete /leave ")
	require.Equal(t, 5, strings.Count(p.log.String(), "delete /"), "each once")
}
