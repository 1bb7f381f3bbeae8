package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestTextFromOutsideIsChecked(t *testing.T) {
	f := newFixture(t, "")
	code, _ := f.do("POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code)
	wasm := func(path string) string { return "/v1/policies?wasm=" + url.QueryEscape(path) }
	file := func(name string) string { return "/v1/policies?file=" + url.QueryEscape(name) }
	long := strings.Repeat("x", 20000)
	for _, tc := range []struct{ method, path, want string }{
		{"POST", wasm("f.wasm"), `wasm path "f.wasm" is relative`},
		{"POST", wasm("/" + strings.Repeat("x", maxWasm)), "wasm path has 4097 bytes, at most 4096 are allowed"},
		{"POST", wasm("/a\n.wasm"), "bytes that cannot be printed"},
		{"POST", wasm("/a\x1b[31m.wasm"), "bytes that cannot be printed"},
		{"POST", wasm("/a\u202e.wasm"), "bytes that cannot be printed"},
		{"POST", wasm("/a\xff.wasm"), "bytes that cannot be printed"},
		{"POST", wasm("/a/../b.wasm"), `wasm path "/a/../b.wasm" is not clean: "/b.wasm" is the file it names`},
		{"POST", wasm("//a.wasm"), "is not clean"},
		{"POST", wasm("/a/"), "is not clean"},
		{"POST", wasm("/"), "is not clean"},
		{"POST", file("a\nb"), "file name has bytes that cannot be printed"},
		{"POST", file("a\xff"), "file name has bytes that cannot be printed"},
		{"POST", file(strings.Repeat("x", 256)), "file name has 256 bytes, at most 255 are allowed"},
		{"POST", "/v1/policies?wasm=/a&wasm=/b", "parameter wasm is given 2 times"},
		{"POST", "/v1/policies?wsam=/a", `no parameter "wsam" here`},
		{"POST", "/v1/policies?wasm=%zz", "the query of the URL is malformed"},
		{"POST", "/v1/policies?a;b", "the query of the URL is malformed"},
		{"GET", "/v1/policies?limit=0", `limit "0" is not a number from 1`},
		{"GET", "/v1/policies?limit=99999999999999999999", "is not a number from 1"},
		{"GET", "/v1/policies?limit=+1", "is not a number from 1"},
		{"GET", "/v1/audit?limit=1001", `limit "1001" is not a number from 1 to 1000`},
		{"GET", "/v1/audit?before=x", `before "x" is not a number from 1`},
		{"GET", "/v1/policies/99999999999999999999", "is not a revision"},
		{"GET", "/v1/policies/" + long, "is not a revision"},
		{"GET", "/v1/revisions/1/wait?timeout=" + long, "is not a duration"},
		{"GET", "/v1/policies?" + long + "=1", "no parameter"},
		{"GET", "/v1/policies/0", `"0" is not a revision`},
		{"GET", "/v1/policies/x", `"x" is not a revision`},
		{"GET", "/v1/revisions/1/wait?timeout=1h", "10m"},
		{"GET", "/v1/policies/7", "no such revision"},
		{"POST", "/v1/rollback/7", "no such revision"},
		{"GET", "/v1/revisions/7/wait", "no such revision"},
		{"GET", "/nowhere", "no GET /nowhere"},
		{"DELETE", "/v1/policies/1", "no DELETE"},
	} {
		code, text := f.do(tc.method, tc.path, good)
		want := http.StatusBadRequest
		if strings.HasPrefix(tc.want, "no such") || strings.HasPrefix(tc.want, "no GET") || strings.HasPrefix(tc.want, "no DELETE") {
			want = http.StatusNotFound
		}
		require.Equal(t, want, code, "%s: %s", tc.path, text)
		var e Error
		f.decode(text, &e)
		require.Contains(t, e.Error, tc.want, tc.path)
		require.Less(t, len(text), 400, "an answer does not repeat all it was sent")
	}
	code, text := f.do("GET", "/"+long, "")
	require.Equal(t, http.StatusNotFound, code)
	require.Less(t, len(text), 400)
	list, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, list, 1, "nothing that was refused is stored")
	require.NoError(t, CheckWasm("/"+strings.Repeat("x", maxWasm-1)))
	require.NoError(t, CheckWasm("/opt/filter é 2.wasm"))
}

// A caller holds room for what it has sent and gives it back in any case.
func TestBodiesHoldRoomForWhatTheyHave(t *testing.T) {
	m := newMemory()
	read := func(body io.Reader) (int, error) {
		text, free, err := m.read(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", body), policy.MaxBytes)
		free()
		return len(text), err
	}
	for _, size := range []int{0, 1, uncounted - 1, uncounted, uncounted + 1, policy.MaxBytes - 1, policy.MaxBytes} {
		n, err := read(bytes.NewReader(make([]byte, size)))
		require.NoError(t, err, "%d", size)
		require.Equal(t, size, n)
	}
	var tooLarge *http.MaxBytesError
	_, err := read(bytes.NewReader(make([]byte, policy.MaxBytes+1)))
	require.ErrorAs(t, err, &tooLarge)
	_, err = read(io.MultiReader(strings.NewReader("x"), brokenReader{}))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	free := fill(t, m, maxHeld-2*uncounted)
	n, err := read(bytes.NewReader(make([]byte, 2*uncounted-1)))
	require.NoError(t, err)
	require.Equal(t, 2*uncounted-1, n)
	full := fill(t, m, 2*uncounted)
	n, err = read(bytes.NewReader(make([]byte, uncounted-1)))
	require.NoError(t, err, "a small one is always read")
	require.Equal(t, uncounted-1, n)
	full()
	_, err = read(bytes.NewReader(make([]byte, 2*uncounted+1)))
	require.ErrorIs(t, err, errBusy)
	free()
	fill(t, m, maxHeld)
}

// fill has other callers take so much.
func fill(t *testing.T, m *memory, bytes int) (free func()) {
	t.Helper()
	half, err := m.take("one", bytes/2)
	require.NoError(t, err)
	rest, err := m.take("another", bytes-bytes/2)
	require.NoError(t, err)
	return func() { half(); rest() }
}

// A caller that sends or reads slowly leaves room for others.
func TestOneCallerLeavesRoom(t *testing.T) {
	f := newFixtureWith(t, func(o *Options) {
		o.Identify = func(r *http.Request) (access.Caller, bool) {
			return access.Caller{Name: r.Header.Get("Authorization"), Role: access.Apply}, true
		}
	})
	large := good + strings.Repeat("# padding\n", uncounted/10)
	taken := 0
	for ; taken < maxHeld; taken += 1 << 20 {
		if _, err := f.server.memory.take("slow", 1<<20); err != nil {
			break
		}
	}
	require.Equal(t, maxHeld/4*3, taken)
	code, text := f.do("POST", "/v1/policies", large, "Authorization", "slow")
	require.Equal(t, http.StatusServiceUnavailable, code, text)
	code, text = f.do("POST", "/v1/policies", large, "Authorization", "other")
	require.Equal(t, http.StatusCreated, code, text)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestTurn(t *testing.T) {
	judging := newTurn(time.Minute)
	done, err := judging.take(t.Context())
	require.NoError(t, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 10 { // either case of the select may come first
		_, err = judging.take(gone)
		require.ErrorIs(t, err, context.Canceled)
	}
	done()
	for range 10 {
		_, err = judging.take(gone)
		require.ErrorIs(t, err, context.Canceled)
	}
	done, err = judging.take(t.Context())
	require.NoError(t, err, "no turn is lost")
	done()
}

// Where there is no room, callers are told when to come again.
func TestNoRoom(t *testing.T) {
	f := newFixture(t, "")
	code, _ := f.do("POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code)
	f.proxy("e1", func(int) bool { return true })
	free := fill(t, f.server.memory, maxHeld)
	large := good + strings.Repeat("# padding\n", uncounted/10)
	all := map[string]string{"/v1/policies": "POST", "/v1/policies?limit=1": "GET", "/v1/policies/1": "GET", "/v1/status": "GET", "/v1/audit": "GET"}
	for path, method := range all {
		request, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(large))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, path)
		require.Equal(t, errBusy.retryAfter, response.Header.Get("Retry-After"))
	}
	code, _ = f.do("GET", "/healthz", "")
	require.Equal(t, http.StatusOK, code)
	code, _ = f.do("POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code, "a policy of common size still gets in")
	free()
	for path, method := range all {
		code, text := f.do(method, path, large)
		require.Less(t, code, 300, text)
	}
}

// Callers that send slowly do not keep others from their turn.
func TestSlowSendersHoldNobodyUp(t *testing.T) {
	f := newFixture(t, "")
	address := strings.TrimPrefix(f.url, "http://")
	for range 50 {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "POST /v1/policies HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nversion: 1\n")
		require.NoError(t, err)
	}
	code, text := f.do("POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code, text)
}

// A caller that has gone while it waited for its turn changes nothing.
func TestWorkForACallerThatHasGoneStops(t *testing.T) {
	f := newFixture(t, "")
	s := f.server
	holds := func() bool {
		free, err := s.memory.take("127.0.0.1", maxHeld/4*3)
		if err == nil {
			free()
		}
		return err != nil
	}
	done, err := s.judging.take(t.Context())
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	sent := make(chan struct{})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) }})
	large := good + strings.Repeat("# padding\n", uncounted/10)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/policies", strings.NewReader(large))
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		ended <- err
	}()
	<-sent
	leave()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Eventually(t, func() bool { return !holds() }, 2*time.Minute, time.Millisecond, "its room is free again")
	done()
	list, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Empty(t, list)
}
