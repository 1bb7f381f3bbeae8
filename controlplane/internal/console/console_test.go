package console

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

const good = `version: 1
domain: shop
rules:
  - name: per-user
    key: [{header: x-user-id}]
    missing_key: deny
    limits: ["2/1m"]
`

type fixture struct {
	t      *testing.T
	dir    string
	server *httptest.Server
	store  *store.Bolt
	xds    *xds.Server
	list   *access.List
}

// newFixture starts the API with the console. The token of each role is its
// name, twice.
func newFixture(t *testing.T, restricted bool) *fixture {
	t.Helper()
	return newLoggedFixture(t, restricted, nil)
}

func newLoggedFixture(t *testing.T, restricted bool, log *slog.Logger) *fixture {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(dir)
	require.NoError(t, err)
	x, err := xds.New(t.Context(), xds.Options{Store: s, Wasm: "/lib/sluice.wasm"})
	require.NoError(t, err)
	f := &fixture{t: t, dir: dir, store: s, xds: x}
	o := api.Options{Store: s, XDS: x, Log: log}
	if restricted {
		f.setAccess("read", "apply", "admin", "edge:apply")
		o.Identify = access.Gate{List: func() *access.List { return f.list }}.Identify
	}
	mux := api.New(t.Context(), o)
	Add(mux, Options{Access: restricted, Log: log})
	f.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		f.server.Close()
		x.Stop()
		require.NoError(t, s.Close())
	})
	return f
}

func token(role string) string { return "a token of the role " + role + " for tests" }

func (f *fixture) setAccess(roles ...string) {
	var text strings.Builder
	for _, role := range roles {
		sum := sha256.Sum256([]byte(token(role)))
		fmt.Fprintf(&text, "token %s %s %s\n", role, role, hex.EncodeToString(sum[:]))
	}
	list, err := access.ParseList("access", []byte(text.String()))
	require.NoError(f.t, err)
	f.list = list
}

// browser keeps cookies and follows redirects.
type browser struct {
	f      *fixture
	client *http.Client
	header http.Header
}

func (f *fixture) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(f.t, err)
	return &browser{f, &http.Client{Jar: jar}, http.Header{"Accept": {"text/html"}}}
}

// as is a browser in which somebody has signed in.
func (f *fixture) as(role string) *browser {
	b := f.browser()
	code, text := b.post("/console/login", url.Values{"token": {token(role)}})
	require.Equal(f.t, http.StatusOK, code, text)
	return b
}

func (b *browser) do(r *http.Request) (int, string) {
	b.f.t.Helper()
	for name, values := range b.header {
		r.Header[name] = values
	}
	res, err := b.client.Do(r)
	require.NoError(b.f.t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(b.f.t, err)
	res.Body.Close()
	return res.StatusCode, string(text)
}

func (b *browser) get(path string) (int, string) {
	b.f.t.Helper()
	r, err := http.NewRequest(http.MethodGet, b.f.server.URL+path, http.NoBody)
	require.NoError(b.f.t, err)
	return b.do(r)
}

func (b *browser) post(path string, form url.Values) (int, string) {
	b.f.t.Helper()
	r, err := http.NewRequest(http.MethodPost, b.f.server.URL+path, strings.NewReader(form.Encode()))
	require.NoError(b.f.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(r)
}

// formPaths take forms.
var formPaths = []string{
	"/console/revisions/1/rollback", "/console/clients", "/console/clients/free", "/console/logout",
}

var csrfField = regexp.MustCompile(`name="csrf" value="([0-9a-f]+)"`)

// csrf is what the forms of a page carry.
func (b *browser) csrf(path string) string {
	b.f.t.Helper()
	_, text := b.get(path)
	found := csrfField.FindStringSubmatch(text)
	require.NotNil(b.f.t, found, text)
	return found[1]
}

// apply applies a policy, which is not the console's to do.
func (f *fixture) apply(policy string) {
	f.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/policies", strings.NewReader(policy))
	w := httptest.NewRecorder()
	api.New(f.t.Context(), api.Options{Store: f.store, XDS: f.xds}).ServeHTTP(w, r)
	require.Equal(f.t, http.StatusCreated, w.Code, w.Body)
}

// rollback rolls back to revision 1 as somebody does who follows the forms.
func (b *browser) rollback(base string) (int, string) {
	b.f.t.Helper()
	return b.post("/console/revisions/1/rollback", url.Values{"csrf": {b.csrf("/console/")}, "base": {base}})
}

func TestNobodySeesAPageWithoutAToken(t *testing.T) {
	f := newFixture(t, true)
	b := f.browser()
	for _, path := range []string{
		"/console/", "/console/revisions", "/console/revisions/1", "/console/revisions/1/rollback", "/console/rules",
		"/console/clients", "/console/none", "/",
	} {
		code, text := b.get(path)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, text, "<h1>Sign in</h1>", path)
		require.NotContains(t, text, "<nav", path)
	}
	for _, path := range formPaths {
		code, _ := b.post(path, nil)
		require.Equal(t, http.StatusUnauthorized, code, path)
	}
	code, text := b.post("/console/login", url.Values{"token": {"wrong"}})
	require.Equal(t, http.StatusUnauthorized, code)
	require.Contains(t, text, "The token is wrong.")
	code, text = b.get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"status":"ok"}`, text)
}

func TestSession(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("read")
	at, err := url.Parse(f.server.URL)
	require.NoError(t, err)
	code, text := b.get("/console/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "token read, role read")
	require.NotContains(t, text, token("read"))
	require.Len(t, b.client.Jar.Cookies(at), 1)

	// It ends with the token's line in the access file.
	f.setAccess("apply")
	_, text = b.get("/console/")
	require.Contains(t, text, "<h1>Sign in</h1>")
	f.setAccess("read")
	csrf := b.csrf("/console/")
	_, text = b.post("/console/logout", url.Values{"csrf": {csrf}})
	require.Contains(t, text, "<h1>Sign in</h1>")
	require.Empty(t, b.client.Jar.Cookies(at))
}

// Over TLS the cookie is bound to the host.
func TestSessionCookie(t *testing.T) {
	f := newFixture(t, true)
	secure := httptest.NewTLSServer(f.server.Config.Handler)
	defer secure.Close()
	client := secure.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for server, cookie := range map[string]string{
		f.server.URL: `^sluice-session=[0-9a-f]{64}; Path=/; Max-Age=36000; HttpOnly; SameSite=Strict$`,
		secure.URL:   `^__Host-sluice-session=[0-9a-f]{64}; Path=/; Max-Age=36000; HttpOnly; Secure; SameSite=Strict$`,
	} {
		res, err := client.PostForm(server+"/console/login", url.Values{"token": {token("read")}})
		require.NoError(t, err)
		res.Body.Close()
		require.Regexp(t, cookie, res.Header.Get("Set-Cookie"))
		require.Equal(t, "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "+
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'", res.Header.Get("Content-Security-Policy"))
	}
}

func TestFormsNeedTheirToken(t *testing.T) {
	f := newFixture(t, true)
	b, other := f.as("admin"), f.as("admin")
	for _, path := range formPaths {
		for _, csrf := range []string{"", "0", other.csrf("/console/")} {
			code, text := b.post(path, url.Values{"csrf": {csrf}})
			require.Equal(t, http.StatusForbidden, code, path)
			require.Contains(t, text, "this form is not from your session", path)
		}
	}
}

// What holds of the API on loopback holds here: other pages reach neither forms nor figures.
func TestOtherPagesGetNowhere(t *testing.T) {
	f := newFixture(t, false)
	f.apply(good)
	b := f.browser()
	code, text := b.get("/console/rules")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "anyone, role admin")
	form := url.Values{"csrf": {b.csrf("/console/revisions/1/rollback")}, "base": {"1"}}
	for _, header := range []http.Header{
		{"Sec-Fetch-Site": {"cross-site"}}, {"Sec-Fetch-Site": {"same-site"}}, {"Origin": {"https://evil.example"}},
	} {
		b.header = header
		code, text := b.post("/console/revisions/1/rollback", form)
		require.Equal(t, http.StatusForbidden, code)
		require.Contains(t, text, "cross-origin request refused")
	}
	for _, path := range []string{"/console/", "/console/revisions", "/console/rules"} {
		r, err := http.NewRequest(http.MethodGet, f.server.URL+path, http.NoBody)
		require.NoError(t, err)
		r.Host = "rebound.example"
		code, text = b.do(r)
		require.Equal(t, http.StatusForbidden, code)
		require.Contains(t, text, "is not a name of loopback")
	}
	b.header = http.Header{"Sec-Fetch-Site": {"same-origin"}, "Accept": {"text/html"}}
	code, text = b.post("/console/revisions/1/rollback", form)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "Revision 2 is applied.")
}

func TestRoles(t *testing.T) {
	f := newFixture(t, true)
	f.apply(good)
	digest := strings.Repeat("0123456789abcdef", 4)
	f.apply(good + "manage: {path: /m/, token_sha256: \"" + digest + "\"}\n")
	reader, applier := f.as("read"), f.as("apply")
	code, text := reader.rollback("2")
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, text, "POST /v1/rollback/{revision} needs the role apply: token read has the role read")
	_, text = reader.get("/console/revisions/1")
	require.NotContains(t, text, "Roll back")
	_, text = reader.get("/console/revisions/1/rollback")
	require.Contains(t, text, "To roll back takes the role apply: you have the role read.")
	// What takes an admin in the API takes one here.
	code, text = applier.rollback("2")
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, text, "to change the manage section needs the role admin: token apply has the role apply")
	f.apply(strings.Replace(good, "2/1m", "3/1m", 1))
	code, text = applier.rollback("3")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "Revision 4 is applied.")

	entries, err := f.store.Audit(t.Context(), "", 10, 0)
	require.NoError(t, err)
	require.Len(t, entries, 4)
	last := &entries[0]
	require.Equal(t, []string{"rollback", "token apply", "127.0.0.1"}, []string{last.Action, last.Who, last.From})
}

func TestARollbackIsReviewed(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("apply")
	f.apply(good)
	f.apply(strings.NewReplacer("2/1m", "3/2m", "domain: shop", "domain: shop # <b>").Replace(good))
	_, text := b.get("/console/revisions/2")
	require.Contains(t, text, "What it changed since revision 1")
	require.Contains(t, text, `counter &#34;per-user&#34;: kept; fixed_window of 2m is new and starts empty; `+
		`fixed_window of 1m is dropped`)
	require.Contains(t, text, "-    limits: [&#34;2/1m&#34;]")
	require.NotContains(t, text, "<b>")
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, "What changes from revision 2")
	require.Contains(t, text, `<input type="hidden" name="base" value="2">`)

	// What is applied meanwhile is not overwritten.
	f.apply(strings.Replace(good, "2/1m", "5/1m", 1))
	code, text := b.rollback("2")
	require.Equal(t, http.StatusConflict, code)
	require.Contains(t, text, "revision 3 has been applied since you looked")
	_, text = b.rollback("")
	require.Contains(t, text, "is not the number of a revision")
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, "All counters keep what they have counted.")
	code, text = b.rollback("3")
	require.Equal(t, http.StatusOK, code, text)
	_, text = b.get("/console/revisions/4")
	require.Contains(t, text, "a rollback to revision 1")
	_, text = b.get("/console/revisions")
	require.Contains(t, text, `<a href="/console/revisions/4?policy=default">4</a>`)
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, "The texts are the same.")
}

// Pages are about one policy, and show somebody with a role for one alone that one.
func TestPoliciesOnPages(t *testing.T) {
	f := newFixture(t, true)
	f.apply(good)
	admin := f.as("admin")
	_, text := admin.get("/console/revisions")
	require.NotContains(t, text, "Policies", "there is one")
	f.apply("name: edge\nproxies: {node: \"edge-*\"}\n" + good)
	f.apply("name: edge\nproxies: {node: \"edge-*\"}\n" + strings.Replace(good, "2/1m", "3/1m", 1))
	_, text = admin.get("/console/")
	require.Contains(t, text, "<h2>Policy default</h2>")
	require.Contains(t, text, "<h2>Policy edge</h2>")
	require.Contains(t, text, `<a href="/console/revisions/3?policy=edge">3</a>`)
	_, text = admin.get("/console/revisions")
	require.Contains(t, text, `<a href="/console/revisions?policy=edge">edge</a>`)
	require.NotContains(t, text, `policy=edge">3</a>`)
	_, text = admin.get("/console/revisions/3?policy=edge")
	require.Contains(t, text, "What it changed since revision 2")
	code, _ := admin.get("/console/rules?policy=none")
	require.Equal(t, http.StatusNotFound, code)

	own := f.as("edge:apply")
	_, text = own.get("/console/")
	require.Contains(t, text, "role none, of policy edge apply")
	require.NotContains(t, text, "Policy default")
	_, text = own.get("/console/revisions/2")
	require.Contains(t, text, "Roll back")
	form := url.Values{"csrf": {own.csrf("/console/")}, "base": {"3"}}
	code, text = own.post("/console/revisions/2/rollback?policy=edge", form)
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, "Revision 4 is applied.")
	code, _ = own.get("/console/revisions?policy=default")
	require.Equal(t, http.StatusForbidden, code)
}

// A client certificate speaks for a browser as it does for a command.
func TestCertificates(t *testing.T) {
	certificate := func(r *http.Request) (access.Caller, bool) {
		known := r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].DNSNames[0] == "alice"
		return access.Caller{Name: "certificate alice", Role: access.Apply}, known
	}
	f := newFixture(t, true)
	pages := api.New(f.t.Context(), api.Options{Store: f.store, XDS: f.xds, Identify: certificate})
	Add(pages, Options{Access: true})
	for name, want := range map[string]string{"alice": "certificate alice, role apply", "mallory": "<h1>Sign in</h1>"} {
		r := httptest.NewRequest(http.MethodGet, "https://control.example.com/console/revisions", http.NoBody)
		r.Header.Set("Accept", "text/html")
		r.TLS.PeerCertificates = []*x509.Certificate{{DNSNames: []string{name}}}
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if w.Code == http.StatusSeeOther {
			require.Equal(t, "/console/login", w.Header().Get("Location"))
			require.Equal(t, "mallory", name)
			continue
		}
		require.Contains(t, w.Body.String(), want)
	}
}

// Without a management token, the rules' page says what to set up.
func TestRulesWithoutManagement(t *testing.T) {
	code, text := newFixture(t, true).as("read").get("/console/rules")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "<code>--manage-token-file</code>")
}

func TestSessionsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	s := newSessions(func() time.Time { return now })
	digest := func(i int) access.Digest { return access.Digest{byte(i), byte(i >> 8)} }
	open := func(id string) bool {
		_, ok := s.resume(t.Context(), id)
		return ok
	}
	first := s.begin(digest(0))
	now = now.Add(time.Second)
	for range maxOfToken {
		s.begin(digest(1))
	}
	second := s.begin(digest(1))
	require.Len(t, s.byID, 1+maxOfToken)
	require.True(t, open(first))
	now = now.Add(time.Second)
	for i := range maxSessions {
		s.begin(digest(2 + i))
	}
	require.Len(t, s.byID, maxSessions)
	require.False(t, open(first))
	require.False(t, open(second))
	require.False(t, open(""))
	last := s.begin(digest(1))
	require.True(t, open(last))
	now = now.Add(sessionTime)
	require.False(t, open(last))
}

// Somebody who guesses is told to wait, and the log says so without the token. A right token
// from the same address, such as that of a shared ingress, gets in meanwhile.
func TestLoginTakesFewWrongTokens(t *testing.T) {
	var log bytes.Buffer
	f := newLoggedFixture(t, true, slog.New(slog.NewTextHandler(&log, nil)))
	b, signedIn := f.browser(), f.as("read")
	const guess = "a-guess-that-no-log-shows"
	guessing := func() int {
		code, text := b.post("/console/login", url.Values{"token": {guess}})
		require.NotContains(t, text, guess)
		return code
	}
	require.Equal(t, http.StatusUnauthorized, guessing())
	require.Eventually(t, func() bool { return guessing() == http.StatusTooManyRequests }, time.Minute, time.Millisecond)
	code, text := signedIn.get("/console/revisions")
	require.Equal(t, http.StatusOK, code, text)
	f.as("apply")
	require.Contains(t, log.String(), "request refused")
	require.NotContains(t, log.String(), guess)

	// A session whose token has gone leads to the form, however many others guess.
	f.setAccess("apply")
	for range 2 * origin.MaxGuesses {
		_, text = signedIn.get("/console/")
		require.Contains(t, text, "<h1>Sign in</h1>")
	}
}
