package console

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A damaged revision can be replaced by an older one.
func TestDamagedRevisionCanBeReplaced(t *testing.T) {
	f := newFixture(t, true)
	f.apply(good)
	f.apply(strings.Replace(good, "missing_key: deny", "missing_key: share", 1))
	b := f.as("admin") // whether the manage section changes is not known
	file := filepath.Join(f.dir, store.FileName)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	db, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer db.Close()
	for at := 0; ; { // bbolt has the file mapped
		i := bytes.Index(text[at:], []byte("missing_key: share"))
		if i < 0 {
			break
		}
		at += i + 1
		_, err = db.WriteAt([]byte("#"), int64(at))
		require.NoError(t, err)
	}
	for _, path := range []string{"/console/", "/console/revisions"} {
		code, page := b.get(path)
		require.Equal(t, http.StatusOK, code, page)
	}
	_, page := b.get("/console/revisions/1/rollback")
	require.Contains(t, page, "Revision 2 cannot be compared with")
	code, page := b.rollback("2")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, "Revision 3 is applied.")
}

// That a visitor leaves meanwhile is no error.
func TestAVisitorWhoLeavesIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	f := newLoggedFixture(t, false, slog.New(slog.NewTextHandler(&log, nil)))
	gone, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(gone, http.MethodGet, "/console/revisions", http.NoBody)
	f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Empty(t, log.String())
}

// slow opens as many connections as there may be visits, which post a form and never end it.
func (f *fixture) slow(path, header string) {
	f.t.Helper()
	for range maxVisits {
		slow, err := net.Dial("tcp", f.server.Listener.Addr().String())
		require.NoError(f.t, err)
		f.t.Cleanup(func() { _ = slow.Close() })
		_, err = fmt.Fprintf(slow, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 100\r\n"+
			"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=", path, header)
		require.NoError(f.t, err)
	}
}

// Whoever shows no token and sends slowly keeps nobody out.
func TestSlowFormsOfStrangersTakeNoPlace(t *testing.T) {
	f := newFixture(t, true)
	for _, path := range []string{"/console/login", "/console/revisions/1/rollback"} {
		f.slow(path, "")
		time.Sleep(100 * time.Millisecond) // until all are being read
		code, text := f.browser().get("/console/login")
		require.Equal(t, http.StatusOK, code, text)
	}
	code, text := f.browser().post("/console/login", url.Values{"token": {strings.Repeat("x", maxForm)}})
	require.Equal(t, http.StatusRequestEntityTooLarge, code, text)
}

// A visitor who sends slowly leaves places to others.
func TestSlowFormsOfOneVisitorLeavePlaces(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("read")
	at, err := url.Parse(f.server.URL)
	require.NoError(t, err)
	f.slow("/console/policy", fmt.Sprintf("Cookie: %s\r\n", b.client.Jar.Cookies(at)[0]))
	require.Eventually(t, func() bool {
		code, _ := b.get("/console/revisions")
		return code == http.StatusServiceUnavailable
	}, time.Minute, 10*time.Millisecond, "the visitor has all places for one")
	code, text := f.as("admin").get("/console/revisions")
	require.Equal(t, http.StatusOK, code, text)
}

// A canary is shown with what it waits for, and what was aborted is not what a rollback
// replaces.
func TestCanaryOnPages(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("apply")
	f.apply(good)
	do := func(path string) {
		w := httptest.NewRecorder()
		api.New(t.Context(), api.Options{Store: f.store, XDS: f.xds}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(good)))
		require.Less(t, w.Code, 300, w.Body.String())
	}
	do("/v1/policies?canary=10%25")
	_, text := b.get("/console/")
	require.Contains(t, text, `Revision <a href="/console/revisions/2?policy=default">2</a> is a canary of 10 % on 0 of 0 connected proxies: waits for promote or abort; `)
	_, text = b.get("/console/revisions")
	require.Regexp(t, `(?s)>2</a>.*<td> canary</td>.*>1</a>.*<td>current</td>`, text)
	do("/v1/abort")
	_, text = b.get("/console/")
	require.NotContains(t, text, "canary")
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, `<input type="hidden" name="base" value="1">`)
	code, text := b.rollback("1")
	require.Equal(t, http.StatusOK, code, text)
}
