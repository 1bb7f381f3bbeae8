package console

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	require.Contains(t, page, "The policy cannot be compared with revision 2")
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

func TestFormsOfStrangersAreShort(t *testing.T) {
	f := newFixture(t, true)
	code, text := f.browser().post("/console/login", url.Values{"token": {strings.Repeat("x", maxPublicForm)}})
	require.Equal(t, http.StatusRequestEntityTooLarge, code, text)
}

// A canary is shown with what it waits for, and what was aborted is not what a rollback
// replaces.
func TestCanaryOnPages(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("apply")
	f.apply(good)
	do := func(path string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(good))
		api.New(t.Context(), api.Options{Store: f.store, XDS: f.xds}).ServeHTTP(w, r)
		require.Less(t, w.Code, 300, w.Body.String())
	}
	do("/v1/policies?canary=10%25")
	_, text := b.get("/console/")
	require.Contains(t, text, `Revision <a href="/console/revisions/2?policy=default">2</a> `+
		`is a canary of 10 % on 0 of 0 connected proxies: waits for promote or abort; `)
	_, text = b.get("/console/revisions")
	require.Regexp(t, `(?s)>2</a>.*<td> canary</td>.*>1</a>.*<td>current</td>`, text)
	do("/v1/abort")
	_, text = b.get("/console/")
	require.NotContains(t, text, "canary")
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, `<input type="hidden" name="base" value="1">`)
	do("/v1/policies?canary=10%25")
	_, last := f.xds.Ledger().Takers()
	step := store.Step{Revision: 3, State: store.Aborted, Why: "too < much", Audit: store.Entry{Action: "abort"}}
	_, err := f.store.Append(t.Context(), store.Change{Last: last, Steps: []store.Step{step}})
	require.NoError(t, err)
	require.NoError(t, f.xds.Refresh(t.Context()))
	_, text = b.get("/console/")
	require.Regexp(t, `policy=default">3</a> was a canary and was aborted by itself:\s+too &lt; much.</p>`, text)
	code, text := b.rollback("1")
	require.Equal(t, http.StatusOK, code, text)
}

// What is wrong with the description of a client is said beside the form, which stays as it
// was. The test of build/browser finds clients, of real proxies.
func TestDescriptionsOfClients(t *testing.T) {
	b := newFixture(t, true).as("admin")
	csrf := b.csrf("/console/clients")
	for _, path := range []string{"/console/clients", "/console/clients/free"} {
		code, _ := b.post(path, url.Values{"client_ip": {"192.0.2.7"}})
		require.Equal(t, http.StatusForbidden, code, "a form of another page")
		for _, tc := range []struct {
			form url.Values
			want string
		}{
			{url.Values{"path": {" "}}, "Describe one of the client&#39;s requests"},
			{
				url.Values{"header": {"x-user-id: alice\r\nbob"}},
				"header has no &#34;:&#34; after its name: give something like x-user-id: alice.",
			},
			{url.Values{"query": {"tenant"}}, "query has no &#34;=&#34; after its name"},
			{url.Values{"client_ip": {"192.0.2"}}, "client_ip: &#34;192.0.2&#34; is not an IP address."},
			{
				url.Values{"header": {"x-a: " + strings.Repeat("a", 50<<10)}},
				"and a proxy accepts 49152: leave out headers that no rule uses.",
			},
			{url.Values{"client_ip": {" 192.0.2.7 "}}, "serve has no management token: start it with --manage-token-file."},
		} {
			tc.form.Set("csrf", csrf)
			code, text := b.post(path, tc.form)
			require.Equal(t, http.StatusOK, code, text)
			require.Contains(t, text, tc.want, path)
			require.NotContains(t, text, "What was found")
		}
	}
	_, text := b.post("/console/clients", url.Values{
		"csrf": {csrf}, "header": {"x-a: <b>\r\nx-b: 2\r\n"}, "host": {"shop"}, "cookie": {"c"},
	})
	require.Contains(t, text, "x-a: &lt;b&gt;\nx-b: 2\n</textarea>")
	require.Contains(t, text, `value="shop"`)
	require.Contains(t, text, "<details open>")
	code, _ := b.get("/console/clients?policy=none")
	require.Equal(t, http.StatusNotFound, code)
}
