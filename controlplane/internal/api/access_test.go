package api

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// withRoles lets callers in whose token is the name of their role.
func withRoles(o *Options) {
	o.Identify = func(r *http.Request) (access.Caller, bool) {
		name, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		role, policies, err := access.ParseRoles(name)
		return access.Caller{Name: "token " + name, Role: role, Policies: policies}, err == nil
	}
}

// as makes a request as a caller with a role, "" as nobody, and asserts how it ends.
func (f *fixture) as(role, request, body string, code int, want ...string) (text string) {
	f.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	var header []string
	if role != "" {
		header = []string{"Authorization", "Bearer " + role, "Content-Type", "application/x-www-form-urlencoded"}
	}
	got, text := f.do(method, path, body, header...)
	require.Equal(f.t, code, got, "%s as %s: %s", request, role, text)
	for _, want := range want {
		require.Contains(f.t, text, want)
	}
	return text
}

// Every route is here with the least role that may use it.
func TestRoutesNeedTheirRoles(t *testing.T) {
	f := newFixtureWith(t, func(o *Options) {
		withRoles(o)
		o.Calls = http.NotFoundHandler()
	})
	f.as("apply", "POST /v1/policies", good, 201)
	needed := map[string]access.Role{
		"POST /v1/policies": access.Apply, "POST /v1/changes": access.Apply,
		"GET /v1/policies": access.Read, "GET /v1/policies/{revision}": access.Read,
		"POST /v1/rollback/{revision}": access.Apply, "GET /v1/revisions/{revision}/wait": access.Read,
		"POST /v1/promote": access.Apply, "POST /v1/abort": access.Apply, "GET /v1/status": access.Read,
		"GET /v1/rates": access.Read, "GET /v1/caller": access.Read,
		"POST /v1/explain": access.Read, "GET /v1/audit": access.Read, "GET /metrics": access.Read,
		"GET /v1/backup": access.Admin, "/": access.Read, "POST /json": access.Apply,
	}
	for _, op := range manage.Operations {
		needed["POST /v1/counters/"+op.Name] = access.Admin
	}
	for _, op := range []string{"get", "peek", "stats", "top", "expires-at"} {
		needed["POST /v1/counters/"+op] = access.Read
	}
	for _, route := range f.server.routes() {
		want, known := needed[route.pattern]
		require.True(t, known, "a route that this test does not know: %s", route.pattern)
		delete(needed, route.pattern)
		request := strings.ReplaceAll(route.pattern, "{revision}", "1")
		if route.pattern == "/" {
			request = "GET /"
		}
		f.as("", request, good, 401, `"bearer token missing or wrong"`)
		for _, role := range []access.Role{access.Read, access.Apply, access.Admin} {
			if role < want {
				lacks := fmt.Sprintf("%s needs the role %s: token %s has the role %s", route.pattern, want, role, role)
				f.as(role.String(), request, good, 403, lacks)
				continue
			}
			method, path, _ := strings.Cut(request, " ")
			code, text := f.do(method, path, good, "Authorization", "Bearer "+role.String())
			require.NotContains(t, []int{401, 403}, code, "%s as %s: %s", route.pattern, role, text)
		}
	}
	require.Empty(t, needed, "routes that are gone")
	f.as("", "GET /healthz", "", 200) // a probe has no role
	f.as("", "GET /healthcheck", "", 404)
}

// Somebody with roles for some policies may do with these what the roles say, and nothing
// with the others or with all.
func TestRolesOfSomePolicies(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	edge := named("edge", "edge-*")
	// It takes proxies from the default.
	f.as("edge:admin", "POST /v1/policies", edge, 403,
		`to change which proxies the policy edge is for needs the role apply with the policy \"default\"`)
	f.as("edge:apply,default:apply", "POST /v1/policies", edge, 201)
	f.as("edge:apply", "POST /v1/policies", named("edge", "*"), 403)
	f.as("edge:apply", "POST /v1/policies", good, 403,
		`to apply needs the role apply with the policy \"default\": token edge:apply has the role none with it`)
	f.as("edge:apply,default:read", "POST /v1/changes", change(t, edge, good), 403)
	f.as("default:apply,edge:apply", "POST /v1/policies", good, 201)
	for _, request := range []string{
		"GET /v1/policies", "GET /v1/policies/current", "GET /v1/policies/1", "GET /v1/status", "GET /v1/rates",
		"GET /v1/audit", "POST /v1/explain", "POST /v1/rollback/1", "GET /v1/revisions/1/wait",
		"POST /v1/promote", "POST /v1/abort", "GET /v1/backup", "GET /metrics",
	} {
		method, path, _ := strings.Cut(request, " ")
		code, text := f.do(method, path+"?policy=edge", "", "Authorization", "Bearer edge:apply")
		require.Equal(t, path == "/v1/backup" || path == "/metrics", code == 403, "%s: %s", request, text)
		for _, query := range []string{"", "?policy=default", "?policy=ed", "?x"} {
			f.as("edge:apply", request+query, "", 403)
		}
	}
	f.as("edge:apply", "GET /metrics", "", 403,
		"GET /metrics needs the role read with every policy: token edge:apply has the role none with all")
	f.as("edge:apply", "GET /v1/caller", "", 200)
	for _, policy := range []string{"default", ""} {
		f.as("edge:admin", "POST /v1/counters/reset", "rule=per-user&key=a&policy="+policy, 403)
		f.as("edge:admin", "POST /v1/counters/stats", "policy="+policy, 403)
	}
	f.as("edge:admin", "POST /v1/counters/reset", "rule=per-user&key=a&policy=edge", 501)
	// A number leads to no other policy.
	f.as("edge:apply", "GET /v1/policies/2?policy=edge", "", 404, "revision 2 is of policy default")
	var list Audit
	decode(t, f.as("edge:read", "GET /v1/audit?policy=edge", "", 200), &list)
	for _, e := range list.Entries {
		require.Equal(t, "edge", e.Policy)
	}
	require.Contains(t, list.Entries[len(list.Entries)-1].Text, "; for other proxies")
}

// Rules of one domain count together: so a policy gets a domain that another one has or had only from a caller who has
// the role there, too.
func TestDomainOfAnotherPolicy(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	in := func(domain, policy string) string {
		return strings.Replace(named(policy, policy+"-*"), "domain: shop\n", domain, 1)
	}
	const shop, own, former = "domain: shop\n", "domain: own\n", "domain: former\n"
	apply := func(role, text string, code int, says ...string) {
		t.Helper()
		f.as(role, "POST /v1/policies", text, code, says...)
	}
	apply("admin", in(shop, "edge"), 201)
	apply("admin", in(former, "core"), 201)
	apply("core:apply", in(shop, "core"), 403, `to take the domain \"shop\", which the policy edge has or had, `+
		`needs the role apply with the policy \"edge\": token core:apply has the role none with it`)
	apply("core:apply,edge:read", in(shop, "core"), 403)
	apply("core:apply", in(own, "core"), 201)
	apply("edge:apply", in("domain: elsewhere\n", "edge"), 201)
	apply("core:apply", in(shop, "core"), 403, "which the policy edge has or had")
	apply("core:apply", in(former, "core"), 201)
	apply("core:apply,edge:apply", in(shop, "core"), 201)
	apply("core:apply", in(shop, "core")+"# the same domain\n", 201)
	f.as("core:apply", "POST /v1/rollback/3?policy=core", "", 201)
	f.as("core:apply", "POST /v1/rollback/6?policy=core", "", 403, "which the policy edge has or had")
	apply("admin", "version: 1\nrules: []\n", 201)
	apply("core:apply", in("", "core"), 403, `to take the domain \"default\", which the policy default has or had`)
}

// What the policy hands to others is for admins.
func TestManageAndWasmNeedAdmin(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	other := strings.Replace(managed, "5a5a", "5b5a", 1)
	for _, step := range []struct{ path, text, what string }{
		{"policies", good, ""},
		{"policies?wasm=/a.wasm", good, `to change the wasm path from none to \"/a.wasm\"`},
		{"policies?wasm=/a.wasm", strings.Replace(good, "10/1m", "11/1m", 1), ""},
		{"policies?wasm=/b.wasm", good, `to change the wasm path from \"/a.wasm\" to \"/b.wasm\"`},
		{"policies?wasm=", good, `to leave out the wasm path \"/b.wasm\" of revision 4`},
		{"policies", managed, "to change the manage section"},
		{"policies", managed + "# a comment\n", ""},
		{"policies", other, "to change the manage section"},
		{"policies", strings.Replace(other, "manage: {", "manage: {port: 9902, ", 1), "to change the manage section"},
		{"policies", good, "to change the manage section"},
		{"rollback/6", "", "to change the manage section"},
		{"rollback/7", "", ""},
		{"rollback/2", "", `to change the wasm path from none to \"/a.wasm\"`},
		{"policies?wasm=/a.wasm", "report_keys: plain\n" + good,
			"to have clients' keys reported as they are (report_keys: plain)"},
		{"policies?wasm=/a.wasm", "report_keys: plain # still\n" + good, ""},
		{"policies?wasm=/a.wasm", "report_keys: off\n" + good, ""},
	} {
		role := "apply"
		if step.what != "" {
			f.as(role, "POST /v1/"+step.path, step.text, 403, step.what+" needs the role admin: token apply has the role apply")
			role = "admin"
		}
		f.as(role, "POST /v1/"+step.path, step.text, 201)
	}
	first := newFixtureWith(t, withRoles)
	first.as("apply", "POST /v1/policies", managed, 403) // the first revision turns management on
	old := store.Draft{File: "old.yaml", YAML: []byte("version: 0\n"), JSON: []byte(`{}`)}
	_, err := first.store.Append(t.Context(), store.Change{Drafts: []store.Draft{old}})
	require.NoError(t, err)
	first.as("apply", "POST /v1/policies", good, 403,
		"to replace revision 1, whose manage section this release cannot read, needs the role admin")
	first.as("admin", "POST /v1/policies", good, 201, `"changes":null`)
}

// Two callers race: an admin takes management away, another restores it from
// what it read. Whichever comes second is judged against the first.
func TestNoApplySlipsPastTheComparison(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	f.as("admin", "POST /v1/policies", managed, 201)
	apply := func(role, text string) {
		f.do("POST", "/v1/policies", text, "Authorization", "Bearer "+role)
	}
	for range 10 {
		var wg sync.WaitGroup
		wg.Go(func() { apply("admin", good) })
		for range 4 {
			wg.Go(func() { apply("apply", managed) })
		}
		wg.Wait()
		apply("admin", managed)
	}
	list, err := f.store.Audit(t.Context(), "", 0, 0)
	require.NoError(t, err)
	require.Greater(t, len(list), 10)
	for _, e := range list {
		if strings.Contains(e.Text, "manage changed") {
			require.Equal(t, "token admin", e.Who, "revision %d", e.Revision)
		}
	}
}

func TestAuditTellsWhoChangedWhat(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	changed := strings.Replace(good, "missing_key: deny", "missing_key: deny\n    capacity: 8", 1)
	f.as("apply", "POST /v1/policies", good, 201)
	f.as("admin", "POST /v1/policies?wasm=/a.wasm", changed, 201)
	f.as("admin", "POST /v1/rollback/1", "", 201)
	f.as("apply", "POST /v1/policies", "version: [", 422)
	f.as("read", "POST /v1/policies", good, 403)
	var a Audit
	decode(t, f.as("read", "GET /v1/audit", "", 200), &a)
	require.Len(t, a.Entries, 3, "what was refused changed nothing")
	for i, want := range []store.Entry{
		{ID: 3, Who: "token admin", Action: "rollback", Revision: 3,
			Text: `to revision 1; lines: 0 added, 1 removed; wasm "/a.wasm" → none; ` +
				`counter "per-user": capacity 8 → 65536: its counters restart`},
		{ID: 2, Who: "token admin", Action: "apply", Revision: 2,
			Text: `lines: 1 added, 0 removed; wasm none → "/a.wasm"; ` +
				`counter "per-user": capacity 65536 → 8: its counters restart`},
		{ID: 1, Who: "token apply", Action: "apply", Revision: 1, Text: "lines: 7 added, 0 removed"},
	} {
		want.From, want.Policy = "127.0.0.1", "default"
		want.At = a.Entries[i].At
		require.Equal(t, want, a.Entries[i])
		require.False(t, want.At.IsZero())
	}
	decode(t, f.as("read", "GET /v1/audit?limit=1&before=3", "", 200), &a)
	require.Len(t, a.Entries, 1)
	require.Equal(t, uint64(2), a.Entries[0].ID)
}

func TestLinesAddedAndRemovedAreCounted(t *testing.T) {
	for _, tc := range []struct{ before, after, want string }{
		{"", "a\nb\n", "lines: 2 added, 0 removed"},
		{"a\nb\n", "a\nc\nb\n", "lines: 1 added, 0 removed"},
		{"a\na\nb\n", "a\nx\n", "lines: 1 added, 2 removed"},
		{"a\nb\n", "b\na\n", "lines moved"},
		{"a\n", "a\n", "the same text"},
	} {
		require.Equal(t, tc.want, lines([]byte(tc.before), []byte(tc.after)))
	}
}

func TestAuditTextIsBounded(t *testing.T) {
	f := newFixture(t, "")
	for _, name := range []string{"rule", "other"} {
		text := "version: 1\nrules:\n"
		for i := range 500 {
			text += fmt.Sprintf("  - {name: %s-%d, limits: [1/1s]}\n", name, i)
		}
		f.as("", "POST /v1/policies", text, 201)
	}
	list, err := f.store.Audit(t.Context(), "", 1, 0)
	require.NoError(t, err)
	require.Less(t, len(list[0].Text), maxSummary+32)
	require.Regexp(t, `; and 9\d\d more$`, list[0].Text)
}

// Anyone can cause refusals: they are counted, and the log has few lines and no
// credential.
func TestRefusalsAreCountedAndLogged(t *testing.T) {
	var log bytes.Buffer
	f := newFixtureWith(t, func(o *Options) {
		withRoles(o)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	began := time.Now()
	unknown := map[int]int{}
	for range 200 {
		code, _ := f.do("GET", "/v1/status?token=inurl", "", "Authorization", "Bearer s3cret")
		unknown[code]++
	}
	require.Equal(t, 200, unknown[401]+unknown[429], "%v", unknown)
	for range 4 {
		f.as("read", "POST /v1/policies", good, 403)
	}
	f.as("read", "GET /metrics", "", 200, fmt.Sprintf("sluice_http_refused_total{code=\"401\"} %d\n", unknown[401]),
		"sluice_http_refused_total{code=\"403\"} 4\n")
	require.Contains(t, log.String(), `msg="request refused" code=401 from=127.0.0.1`)
	require.NotContains(t, log.String(), "s3cret")
	require.NotContains(t, log.String(), "inurl")
	seconds := int(time.Since(began) / time.Second)
	require.LessOrEqual(t, strings.Count(log.String(), "request refused"), 1+seconds, "one a second: %s", &log)
}

// A browser adds a client certificate by itself.
func TestPagesOfOthersMayNotUseACertificate(t *testing.T) {
	f := newFixtureWith(t, func(o *Options) {
		o.Identify = func(*http.Request) (access.Caller, bool) {
			return access.Caller{Name: "certificate ops.test", Role: access.Admin}, true
		}
	})
	for _, header := range [][]string{
		{"Origin", "https://elsewhere.example"}, {"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
	} {
		code, text := f.do("POST", "/v1/policies", good, header...)
		require.Equal(t, http.StatusForbidden, code, "%v: %s", header, text)
	}
	code, _ := f.do("POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code)
}

// Without a caller in its context, a request is refused.
func TestNobodyMayDoNothing(t *testing.T) {
	s := &server{refusals: newRefusals(slog.New(slog.DiscardHandler))}
	w := httptest.NewRecorder()
	s.needs(route{role: access.Read})(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusForbidden, w.Code)
}

// Wrong tokens slow their own address alone, and nobody who shows a right one: behind a
// shared ingress all callers have one address.
func TestWrongTokensSlowTheirAddressAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{Healthy: func(context.Context) error { return nil }}
		withRoles(&o)
		s := newServer(o)
		handler := s.mux(s.routes())
		show := func(address, token string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "/v1/caller", http.NoBody)
			r.RemoteAddr = address
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		for range 2 * origin.MaxGuesses {
			require.Equal(t, http.StatusUnauthorized, show("192.0.2.1:1", "").Code, "who shows none guesses none")
		}
		for range origin.MaxGuesses {
			require.Equal(t, http.StatusUnauthorized, show("192.0.2.1:1", "wrong").Code)
		}
		refused := show("192.0.2.1:2", "wrong")
		require.Equal(t, http.StatusTooManyRequests, refused.Code, "another port is the same address")
		require.Equal(t, "1", refused.Header().Get("Retry-After"))
		require.Contains(t, refused.Body.String(), "try again in 1 s")
		require.Equal(t, http.StatusOK, show("192.0.2.1:2", "read").Code, "a right token gets in at once")
		require.Equal(t, http.StatusUnauthorized, show("192.0.2.2:1", "wrong").Code, "others are not slowed")
		registry := prometheus.NewRegistry()
		registry.MustRegister(s.refusals.total)
		families, err := registry.Gather()
		require.NoError(t, err)
		counted := families[0].GetMetric() // by code
		require.InDelta(t, 1, counted[len(counted)-1].GetCounter().GetValue(), 0)
		time.Sleep(time.Second)
		require.Equal(t, http.StatusUnauthorized, show("192.0.2.1:1", "wrong").Code)
	})
}
