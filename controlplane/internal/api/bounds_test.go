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

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestTextFromOutsideIsChecked(t *testing.T) {
	f := newFixture(t, "")
	f.json("POST", "/v1/policies", good, 201, &Applied{})
	wasm := func(path string) string { return "/v1/policies?wasm=" + url.QueryEscape(path) }
	file := func(name string) string { return "/v1/policies?file=" + url.QueryEscape(name) }
	long := strings.Repeat("x", 20000)
	for _, tc := range []struct {
		method, path, want string
		code               int
	}{
		{"POST", wasm("f.wasm"), `wasm path "f.wasm" is relative`, 400},
		{"POST", wasm("/" + strings.Repeat("x", maxWasm)), "wasm path has 4097 bytes, at most 4096 are allowed", 400},
		{"POST", wasm("/a\x1b[31m.wasm"), "wasm path has bytes that cannot be printed", 400},
		{"POST", wasm("/a/../b.wasm"), `wasm path "/a/../b.wasm" is not clean: "/b.wasm" is the file it names`, 400},
		{"POST", wasm("/"), "is not clean", 400},
		{"POST", file("a\nb"), "file name has bytes that cannot be printed", 400},
		{"POST", file(strings.Repeat("x", 256)), "file name has 256 bytes, at most 255 are allowed", 400},
		{"POST", "/v1/policies?wasm=/a&wasm=/b", "parameter wasm is given 2 times", 400},
		{"POST", "/v1/policies?wsam=/a", `no parameter "wsam" here`, 400},
		{"POST", "/v1/policies?wasm=%zz", "the query of the URL is malformed", 400},
		{"POST", "/v1/rollback/1?bsae=7", `no parameter "bsae" here`, 400},
		{"GET", "/v1/policies/1?polcy=edge", `no parameter "polcy" here`, 400},
		{"GET", "/v1/policies?limit=0", `limit "0" is not a number from 1`, 400},
		{"GET", "/v1/policies?limit=99999999999999999999", "is not a number from 1", 400},
		{"GET", "/v1/audit?limit=1001", `limit "1001" is not a number from 1 to 1000`, 400},
		{"GET", "/v1/audit?before=x", `before "x" is not a number from 1`, 400},
		{"GET", "/v1/policies/99999999999999999999", "is not a revision", 400},
		{"GET", "/v1/policies/" + long, "is not a revision", 400},
		{"GET", "/v1/revisions/1/wait?timeout=" + long, "is not a duration", 400},
		{"GET", "/v1/policies?" + long + "=1", "no parameter", 400},
		{"GET", "/v1/policies/0", `"0" is not a revision`, 400},
		{"GET", "/v1/revisions/1/wait?timeout=1h", "10m", 400},
		{"GET", "/v1/policies/7", "no such revision", 404},
		{"POST", "/v1/rollback/7", "no such revision", 404},
		{"GET", "/v1/revisions/7/wait", "no such revision", 404},
		{"GET", "/" + long, "no GET /xxx", 404},
		{"DELETE", "/v1/policies/1", "no DELETE", 404},
	} {
		code, text := f.do(tc.method, tc.path, good)
		require.Equal(t, tc.code, code, "%s: %s", tc.path, text)
		var e Error
		decode(t, text, &e)
		require.Contains(t, e.Error, tc.want, tc.path)
		require.Less(t, len(text), 400, "an answer does not repeat all it was sent")
	}
	list, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, list, 1, "nothing that was refused is stored")
	require.NoError(t, CheckWasm("/opt/filter é 2.wasm"))
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestABodyIsReadUpToItsBound(t *testing.T) {
	of := &body{policy.MaxBytes, "%d"}
	read := func(from io.Reader) (int, error) {
		text, err := of.read(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", from))
		return len(text), err
	}
	for _, size := range []int{0, 1, policy.MaxBytes} {
		n, err := read(bytes.NewReader(make([]byte, size)))
		require.NoError(t, err, "%d", size)
		require.Equal(t, size, n)
	}
	_, err := read(bytes.NewReader(make([]byte, policy.MaxBytes+1)))
	require.Equal(t, refusal(http.StatusRequestEntityTooLarge, "%d", policy.MaxBytes), err)
	_, err = read(io.MultiReader(strings.NewReader("x"), brokenReader{}))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A caller that sends slowly does not keep others from their turn.
func TestSlowSendersHoldNobodyUp(t *testing.T) {
	f := newFixture(t, "")
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	defer c.Close()
	const begun = "POST /v1/policies HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nversion: 1\n"
	_, err = io.WriteString(c, begun)
	require.NoError(t, err)
	f.as("", "POST /v1/policies", good, 201)
	f.server.judging.wait = time.Millisecond
	_, err = f.server.judging.take(t.Context())
	require.NoError(t, err)
	f.as("", "POST /v1/policies", good, 503, "busy with other requests")
}

// A caller that has gone while it waited for its turn changes nothing.
func TestWorkForACallerThatHasGoneStops(t *testing.T) {
	f := newFixture(t, "")
	done, err := f.server.judging.take(t.Context())
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	leaves := httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { leave() }}
	ctx = httptrace.WithClientTrace(ctx, &leaves)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/policies", strings.NewReader(good))
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(request)
	require.ErrorIs(t, err, context.Canceled)
	done()
	list, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Empty(t, list)
}
