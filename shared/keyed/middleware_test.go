package keyed

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serve sends a request through the middleware.
func serve(l *Limiter, r *http.Request, key KeyFunc, options ...MiddlewareOption) *http.Response {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	w := httptest.NewRecorder()
	l.Middleware(key, options...)(ok).ServeHTTP(w, r)
	return w.Result()
}

func request(header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestMiddlewareDenies(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     *Builder
		after time.Duration // delay of the second request
		want  string        // Retry-After
	}{
		{"whole seconds", New().WindowPerKey(5*time.Second, 1), 0, "5"},
		{"rounded up", New().WindowPerKey(5*time.Second, 1), time.Millisecond, "5"},
		{"at least one", New().WindowPerKey(5*time.Second, 1), 5*time.Second - 1, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, clock := build(t, c.b)
			require.Equal(t, http.StatusNoContent, serve(l, request("X-User-Id", "a"), ByHeader("x-user-id")).StatusCode)
			clock.Duration += c.after
			got := serve(l, request("x-user-id", "a"), ByHeader("X-USER-ID"))
			require.Equal(t, http.StatusTooManyRequests, got.StatusCode)
			require.Equal(t, c.want, got.Header.Get("Retry-After"))
			require.Empty(t, got.Header.Values("RateLimit"))
			require.Equal(t, http.StatusNoContent, serve(l, request("x-user-id", "b"), ByHeader("x-user-id")).StatusCode)
		})
	}
	l, _ := build(t, New().Window(time.Second, 0))
	never := serve(l, request("x-user-id", "a"), ByHeader("x-user-id"))
	require.Equal(t, http.StatusTooManyRequests, never.StatusCode)
	require.NotContains(t, never.Header, "Retry-After", "waiting does not help")
	require.Equal(t, http.StatusNoContent, serve(l, request(), ByHeader("x-user-id")).StatusCode, "no key")
}

func TestMiddlewareOptions(t *testing.T) {
	l, _ := build(t, New().Window(time.Minute, 10))
	cost := Cost(func(r *http.Request) uint32 {
		n, _ := strconv.ParseUint(r.Header.Get("x-cost"), 10, 32)
		return uint32(n)
	})
	teapot := Denied(func(w http.ResponseWriter, _ *http.Request, r Result) {
		require.False(t, r.Allowed)
		w.WriteHeader(http.StatusTeapot)
	})
	user := ByHeader("x-user-id")
	require.Equal(t, http.StatusNoContent, serve(l, request("x-user-id", "a", "x-cost", "9"), user, cost,
		teapot).StatusCode)
	denied := serve(l, request("x-user-id", "a", "x-cost", "2"), user, cost, teapot)
	require.Equal(t, http.StatusTeapot, denied.StatusCode)
	require.Equal(t, "20", denied.Header.Get("Retry-After"))
	require.Equal(t, http.StatusNoContent, serve(l, request("x-user-id", "a"), user, cost, teapot).StatusCode,
		"a cost of 0")
	require.EqualValues(t, 9, l.Get("a"))
}

func TestRateLimitFields(t *testing.T) {
	for _, c := range []struct {
		name          string
		b             *Builder
		limit         string
		policy, state string
	}{
		{"one", New().Window(time.Minute, 10), "per-user", `"per-user";q=10;w=60`, `"per-user";r=9;t=20`},
		{"layered", New().Window(time.Minute, 10, Name("minute")).SlidingLog(1500*time.Millisecond, 5), `a"b\c`,
			`"a\"b\\c/minute";q=10;w=60, "a\"b\\c/1";q=5`, `"a\"b\\c/minute";r=9;t=20, "a\"b\\c/1";r=4;t=2`},
		{"burst", New().TokenBucket(time.Minute, 60, Burst(5)), "ü\n\x7f\xff ~", `"???? ~";q=5`, `"???? ~";r=4;t=1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, _ := build(t, c.b)
			got := serve(l, request("k", "a"), ByHeader("k"), RateLimitFields(c.limit))
			require.Equal(t, http.StatusNoContent, got.StatusCode)
			require.Equal(t, c.policy, got.Header.Get("RateLimit-Policy"))
			require.Equal(t, c.state, got.Header.Get("RateLimit"))
			require.Empty(t, serve(l, request(), ByHeader("k"), RateLimitFields(c.limit)).Header)
		})
	}
}

// A blocked key has nothing left until its block ends, whatever its windows say.
func TestBlockedFields(t *testing.T) {
	l, clock := build(t, New().Window(time.Minute, 1).Block(time.Hour))
	for _, want := range []string{`"a";r=0;t=20`, `"a";r=0;t=3600`, `"a";r=0;t=3540`} {
		got := serve(l, request("k", "a"), ByHeader("k"), RateLimitFields("a"))
		require.Equal(t, want, got.Header.Get("RateLimit"))
		if want == `"a";r=0;t=3600` {
			require.Equal(t, "3600", got.Header.Get("Retry-After"))
			clock.Duration += time.Minute
		}
	}
	require.EqualValues(t, 1, l.Stats().Blocks)
	r := l.Peek("a")
	require.Equal(t, clock.now().Add(59*time.Minute), r.BlockedUntil)
	require.EqualValues(t, 1, r.Remaining, "of the window, which is a new one")
	_, err := l.Reset("a")
	require.NoError(t, err)
	require.True(t, l.Hit("a").Allowed)
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		remote, want string
		ok           bool
	}{
		{"[2001:db8:1:2:3::4]:1234", "2001:db8:1:2::/64", true},
		{"@", "", false},
	} {
		r := request()
		r.RemoteAddr = c.remote
		got, ok := ByIP(r)
		require.Equal(t, c.ok, ok, c.remote)
		if ok {
			require.Equal(t, c.want, got)
		}
	}
	key, ok := ByHeader("k")(request("k", "a", "k", "b"))
	require.True(t, ok)
	require.Equal(t, "a,b", key)
	key, ok = ByHeader("k")(request("k", ""))
	require.True(t, ok, "empty is not missing")
	require.Empty(t, key)
}

// A server takes the Host out of the header.
func TestHostIsAKey(t *testing.T) {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")))
	require.NoError(t, err)
	key, ok := ByHeader("host")(r)
	require.True(t, ok)
	require.Equal(t, "a.example", key)

	r, err = http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.0\r\n\r\n")))
	require.NoError(t, err)
	_, ok = ByHeader("host")(r)
	require.False(t, ok, "it says no host")
}
