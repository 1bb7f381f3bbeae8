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
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Nothing falls between the look at the newest revision and the change.
func TestAChangeThatComesBetweenIsNotOverwritten(t *testing.T) {
	f := newFixture(t, false)
	whole := api.New(api.Options{Store: f.store, XDS: f.xds})
	var first sync.Once
	f.server.Config.Handler = New(Options{Question: question(t), API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			first.Do(func() {
				other := httptest.NewRequest(http.MethodPost, "/v1/policies", strings.NewReader(good))
				whole.ServeHTTP(httptest.NewRecorder(), other)
			})
		}
		whole.ServeHTTP(w, r)
	})})
	b := f.browser()
	form := url.Values{"csrf": {b.csrf("/console/policy")}, "file": {"policy.yaml"}, "policy": {good}, "base": {"0"}}
	code, text := b.post("/console/policy/apply", form)
	require.Equal(t, http.StatusConflict, code, text)
	require.Contains(t, text, "revision 1 has been applied since you looked")
	code, _ = b.post("/console/revisions/1/rollback", form)
	require.Equal(t, http.StatusConflict, code)
	form.Del("base")
	code, text = b.post("/console/policy/apply", form)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, text, "is not the number of a revision")
}

// A damaged policy is replaced in the page that says so.
func TestDamagedPolicyCanBeReplaced(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("admin") // whether the manage section changes is not known
	code, _ := b.apply(good, "0")
	require.Equal(t, http.StatusOK, code)
	file := filepath.Join(f.dir, store.FileName)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	db, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer db.Close()
	for at := 0; ; { // bbolt has the file mapped
		i := bytes.Index(text[at:], []byte("missing_key: deny"))
		if i < 0 {
			break
		}
		at += i + 1
		_, err = db.WriteAt([]byte("#"), int64(at))
		require.NoError(t, err)
	}
	code, page := b.get("/console/policy")
	require.Equal(t, http.StatusOK, code, page)
	require.Contains(t, page, "apply the policy again")
	for _, path := range []string{"/console/", "/console/revisions"} {
		code, page = b.get(path)
		require.Equal(t, http.StatusOK, code, page)
	}
	_, page = b.post("/console/policy", url.Values{"csrf": {b.csrf("/console/policy")}, "do": {"review"}, "policy": {good}})
	require.Contains(t, page, "Revision 1 cannot be compared with")
	code, page = b.apply(good, "1")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, "Revision 2 is applied.")
}

// A policy is checked as somebody types: that the visitor leaves meanwhile is no error.
func TestAVisitorWhoLeavesIsNotLogged(t *testing.T) {
	f := newFixture(t, false)
	var log bytes.Buffer
	f.server.Config.Handler = New(Options{
		API: api.New(api.Options{Store: f.store, XDS: f.xds}), Question: question(t), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	form := url.Values{"csrf": {f.browser().csrf("/console/policy")}, "policy": {good}}
	gone, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, "/console/policy/check", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	f.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Empty(t, log.String())
}

// Whoever shows no token and sends slowly keeps nobody out.
func TestSlowFormsOfStrangersTakeNoPlace(t *testing.T) {
	f := newFixture(t, true)
	for _, path := range []string{"/console/login", "/console/policy"} {
		for range maxVisits {
			slow, err := net.Dial("tcp", f.server.Listener.Addr().String())
			require.NoError(t, err)
			defer slow.Close()
			_, err = fmt.Fprintf(slow, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"+
				"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=", path)
			require.NoError(t, err)
		}
		time.Sleep(100 * time.Millisecond) // until all are being read
		code, text := f.browser().get("/console/login")
		require.Equal(t, http.StatusOK, code, text)
	}
	code, text := f.browser().post("/console/login", url.Values{"token": {strings.Repeat("x", maxLogin)}})
	require.Equal(t, http.StatusRequestEntityTooLarge, code, text)
}

// A visitor who sends slowly leaves places to others.
func TestSlowFormsOfOneVisitorLeavePlaces(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("read")
	at, err := url.Parse(f.server.URL)
	require.NoError(t, err)
	cookie := b.client.Jar.Cookies(at)[0]
	for range maxVisits {
		slow, err := net.Dial("tcp", f.server.Listener.Addr().String())
		require.NoError(t, err)
		defer slow.Close()
		_, err = fmt.Fprintf(slow, "POST /console/policy HTTP/1.1\r\nHost: localhost\r\nCookie: %s\r\nContent-Length: 100\r\n"+
			"Content-Type: application/x-www-form-urlencoded\r\n\r\npolicy=", cookie)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		code, _ := b.get("/console/revisions")
		return code == http.StatusServiceUnavailable
	}, time.Minute, 10*time.Millisecond, "the visitor has all places for one")
	code, text := f.as("admin").get("/console/revisions")
	require.Equal(t, http.StatusOK, code, text)
}
