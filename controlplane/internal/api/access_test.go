package api

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// withRoles lets callers in whose token is the name of their role.
func withRoles(o *Options) {
	o.Identify = func(r *http.Request) (access.Caller, bool) {
		name, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		role, policies, err := access.ParseRoles(name)
		return access.Caller{Name: "token " + name, Role: role, Policies: policies}, err == nil
	}
}

// as makes requests as a caller with a role, "" as nobody.
func (f *fixture) as(role, method, path, body string) (int, string) {
	f.t.Helper()
	if role == "" {
		return f.do(method, path, body)
	}
	return f.do(method, path, body, "Authorization", "Bearer "+role)
}

// Every route is here with the least role that may use it.
func TestRoutesNeedTheirRoles(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	code, _ := f.as("apply", "POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code)
	needed := map[string]access.Role{
		"POST /v1/policies": access.Apply, "POST /v1/changes": access.Apply, "GET /v1/policies": access.Read, "GET /v1/policies/{revision}": access.Read,
		"POST /v1/rollback/{revision}": access.Apply, "GET /v1/revisions/{revision}/wait": access.Read,
		"POST /v1/promote": access.Apply, "POST /v1/abort": access.Apply,
		"GET /v1/status": access.Read, "GET /v1/caller": access.Read, "POST /v1/explain": access.Read, "GET /v1/audit": access.Read, "GET /metrics": access.Read, "GET /v1/backup": access.Admin,
		"/": access.Read,
	}
	for _, op := range manage.Operations {
		role := access.Admin
		if slices.Contains([]string{"get", "peek", "stats", "top", "expires-at"}, op.Name) {
			role = access.Read
		}
		needed["POST /v1/counters/"+op.Name] = role
	}
	for _, route := range f.server.routes() {
		want, known := needed[route.pattern]
		require.True(t, known, "a route that this test does not know: %s", route.pattern)
		delete(needed, route.pattern)
		method, path, found := strings.Cut(strings.ReplaceAll(route.pattern, "{revision}", "1"), " ")
		if !found {
			method, path = "GET", route.pattern
		}
		for _, role := range []access.Role{0, access.Read, access.Apply, access.Admin} {
			name := ""
			if role > 0 {
				name = role.String()
			}
			code, text := f.as(name, method, path, good)
			switch {
			case role == 0:
				require.Equal(t, http.StatusUnauthorized, code, route.pattern)
				require.JSONEq(t, `{"error": "bearer token missing or wrong"}`, text)
			case role < want:
				require.Equal(t, http.StatusForbidden, code, route.pattern)
				require.Contains(t, text, fmt.Sprintf("%s needs the role %s: token %s has the role %s", route.pattern, want, role, role))
			default:
				require.NotContains(t, []int{401, 403}, code, "%s as %s: %s", route.pattern, role, text)
			}
		}
	}
	require.Empty(t, needed, "routes that are gone")
	code, _ = f.do("GET", "/healthz", "")
	require.Equal(t, http.StatusOK, code, "a probe has no role")
}

// Somebody with roles for some policies may do with these what the roles say, and nothing
// with the others or with all.
func TestRolesOfSomePolicies(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	edge := strings.Replace(good, "version: 1", "version: 1\nname: edge\nproxies: {node: \"edge-*\"}", 1)
	code, text := f.as("edge:admin", "POST", "/v1/policies", edge)
	require.Equal(t, http.StatusForbidden, code, "it takes proxies from the default")
	require.Contains(t, text, `to change which proxies the policy edge is for needs the role apply with the policy \"default\"`)
	code, text = f.as("edge:apply,default:apply", "POST", "/v1/policies", edge)
	require.Equal(t, http.StatusCreated, code, text)
	code, _ = f.as("edge:apply", "POST", "/v1/policies", strings.Replace(edge, "edge-*", "*", 1))
	require.Equal(t, http.StatusForbidden, code)
	code, text = f.as("edge:apply", "POST", "/v1/policies", good)
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, text, `to apply needs the role apply with the policy \"default\": token edge:apply has the role none with it`)
	code, _ = f.as("edge:apply,default:read", "POST", "/v1/changes", change(t, edge, good))
	require.Equal(t, http.StatusForbidden, code)
	code, text = f.as("default:apply", "POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code, text)
	const mine, other, whole = "?policy=edge", "?policy=default", ""
	for path, allowed := range map[string]map[string]bool{
		"GET /v1/policies":              {mine: true, other: false, whole: false},
		"GET /v1/policies/current":      {mine: true, other: false, whole: false},
		"GET /v1/status":                {mine: true, other: false, whole: false},
		"GET /v1/audit":                 {mine: true, other: false, whole: false},
		"POST /v1/explain":              {mine: true, other: false, whole: false},
		"POST /v1/rollback/1":           {mine: true, other: false, whole: false},
		"GET /v1/revisions/1/wait":      {mine: true, other: false, whole: false},
		"POST /v1/promote":              {mine: true, other: false, whole: false},
		"POST /v1/abort":                {mine: true, other: false, whole: false},
		"GET /v1/backup":                {mine: false, other: false, whole: false},
		"GET /metrics":                  {mine: false, other: false, whole: false},
		"GET /v1/caller":                {whole: true},
		"POST /v1/counters/stats":       {whole: false},
		"POST /v1/counters/get":         {whole: false},
		"GET /v1/policies/1":            {mine: true, other: false, whole: false},
		"GET /v1/policies/current?x":    {whole: false},
		"POST /v1/rollback/1?policy=ed": {whole: false},
	} {
		method, target, _ := strings.Cut(path, " ")
		for query, want := range allowed {
			code, text := f.as("edge:apply", method, target+query, "")
			require.Equal(t, want, code != http.StatusForbidden, "%s%s: %s", path, query, text)
		}
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Authorization", "Bearer edge:admin"}
	for policy, want := range map[string]bool{"edge": true, "default": false, "": false} {
		code, text := f.do("POST", "/v1/counters/reset", "rule=per-user&key=a&policy="+policy, form...)
		require.Equal(t, want, code != http.StatusForbidden, text)
	}
	code, text = f.as("edge:apply", "GET", "/v1/policies/2?policy=edge", "")
	require.Equal(t, http.StatusNotFound, code, "a number leads to no other policy")
	require.Contains(t, text, "revision 2 is of policy default")
	var list Audit
	f.decode(func() string { _, text := f.as("edge:read", "GET", "/v1/audit?policy=edge", ""); return text }(), &list)
	for _, e := range list.Entries {
		require.Equal(t, "edge", e.Policy)
	}
	require.Contains(t, list.Entries[len(list.Entries)-1].Text, "; for other proxies")
}

// What the policy hands to others is for admins.
func TestManageAndWasmNeedAdmin(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	other := strings.Replace(managed, "5a5a", "5b5a", 1)
	for i, step := range []struct{ path, text, what string }{
		{"/v1/policies", good, ""},
		{"/v1/policies?wasm=/a.wasm", good, `to change the wasm path from none to \"/a.wasm\"`},
		{"/v1/policies?wasm=/a.wasm", strings.Replace(good, "10/1m", "11/1m", 1), ""},
		{"/v1/policies?wasm=/b.wasm", good, `to change the wasm path from \"/a.wasm\" to \"/b.wasm\"`},
		{"/v1/policies?wasm=", good, `to leave out the wasm path \"/b.wasm\" of revision 4`},
		{"/v1/policies", managed, "to change the manage section"},
		{"/v1/policies", managed + "# a comment\n", ""},
		{"/v1/policies", other, "to change the manage section"},
		{"/v1/policies", strings.Replace(other, "manage: {", "manage: {port: 9902, ", 1), "to change the manage section"},
		{"/v1/policies", good, "to change the manage section"},
		{"/v1/rollback/6", "", "to change the manage section"},
		{"/v1/rollback/7", "", ""},
		{"/v1/rollback/2", "", `to change the wasm path from none to \"/a.wasm\"`},
		{"/v1/policies?wasm=/a.wasm", "report_keys: plain\n" + good, "to have clients' keys reported as they are (report_keys: plain)"},
		{"/v1/policies?wasm=/a.wasm", "report_keys: plain # still\n" + good, ""},
		{"/v1/policies?wasm=/a.wasm", "report_keys: off\n" + good, ""},
	} {
		if step.what != "" {
			code, text := f.as("apply", "POST", step.path, step.text)
			require.Equal(t, http.StatusForbidden, code, "step %d: %s", i, text)
			require.Contains(t, text, step.what+" needs the role admin: token apply has the role apply", "step %d", i)
			code, text = f.as("admin", "POST", step.path, step.text)
			require.Equal(t, http.StatusCreated, code, text)
		} else {
			code, text := f.as("apply", "POST", step.path, step.text)
			require.Equal(t, http.StatusCreated, code, "step %d: %s", i, text)
		}
	}
	first := newFixtureWith(t, withRoles)
	code, _ := first.as("apply", "POST", "/v1/policies", managed)
	require.Equal(t, http.StatusForbidden, code, "the first revision turns management on")
	_, err := first.store.Append(t.Context(), store.Change{Drafts: []store.Draft{{File: "old.yaml", YAML: []byte("version: 0\n"), JSON: []byte(`{}`)}}})
	require.NoError(t, err)
	code, text := first.as("apply", "POST", "/v1/policies", good)
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, text, "to replace revision 1, whose manage section this release cannot read, needs the role admin")
	code, text = first.as("admin", "POST", "/v1/policies", good)
	require.Equal(t, http.StatusCreated, code)
	require.Contains(t, text, `"changes":null`)
}

// Two callers race: an admin takes management away, another restores it from
// what it read. Whichever comes second is judged against the first.
func TestNoApplySlipsPastTheComparison(t *testing.T) {
	f := newFixtureWith(t, withRoles)
	code, _ := f.as("admin", "POST", "/v1/policies", managed)
	require.Equal(t, http.StatusCreated, code)
	for range 10 {
		var wg sync.WaitGroup
		wg.Go(func() { f.as("admin", "POST", "/v1/policies", good) })
		for range 4 {
			wg.Go(func() { f.as("apply", "POST", "/v1/policies", managed) })
		}
		wg.Wait()
		f.as("admin", "POST", "/v1/policies", managed)
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
	for _, step := range [][3]string{
		{"apply", "/v1/policies", good}, {"admin", "/v1/policies?wasm=/a.wasm", changed}, {"admin", "/v1/rollback/1", ""},
		{"apply", "/v1/policies", "version: ["}, {"read", "/v1/policies", good},
	} {
		f.as(step[0], "POST", step[1], step[2])
	}
	code, text := f.as("read", "GET", "/v1/audit", "")
	require.Equal(t, http.StatusOK, code)
	var a Audit
	f.decode(text, &a)
	require.Len(t, a.Entries, 3, "what was refused changed nothing")
	for i, want := range []store.Entry{
		{ID: 3, Who: "token admin", Action: "rollback", Revision: 3,
			Text: `to revision 1; lines: 0 added, 1 removed; wasm "/a.wasm" → none; counter "per-user": capacity 8 → 65536: its counters restart`},
		{ID: 2, Who: "token admin", Action: "apply", Revision: 2,
			Text: `lines: 1 added, 0 removed; wasm none → "/a.wasm"; counter "per-user": capacity 65536 → 8: its counters restart`},
		{ID: 1, Who: "token apply", Action: "apply", Revision: 1, Text: "lines: 7 added, 0 removed"},
	} {
		want.From, want.At, want.Policy = "127.0.0.1", a.Entries[i].At, "default"
		require.Equal(t, want, a.Entries[i])
		require.False(t, a.Entries[i].At.IsZero())
	}
	_, text = f.as("read", "GET", "/v1/audit?limit=1&before=3", "")
	f.decode(text, &a)
	require.Len(t, a.Entries, 1)
	require.Equal(t, uint64(2), a.Entries[0].ID)
}

func TestLines(t *testing.T) {
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
	var before, after strings.Builder
	before.WriteString("version: 1\nrules:\n")
	after.WriteString("version: 1\nrules:\n")
	for i := range 500 {
		fmt.Fprintf(&before, "  - {name: rule-%d, limits: [1/1s]}\n", i)
		fmt.Fprintf(&after, "  - {name: other-%d, limits: [1/1s]}\n", i)
	}
	f := newFixture(t, "")
	f.do("POST", "/v1/policies", before.String())
	f.do("POST", "/v1/policies", after.String())
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
	for range 200 {
		f.do("GET", "/v1/status?token=inurl", "", "Authorization", "Bearer s3cret")
	}
	for range 3 {
		f.as("read", "POST", "/v1/policies", good)
	}
	f.do("POST", "/v1/policies", good, "Origin", "https://elsewhere.example")
	_, text := f.as("read", "GET", "/metrics", "")
	require.Contains(t, text, "sluice_http_refused_total{code=\"401\"} 200\n")
	require.Contains(t, text, "sluice_http_refused_total{code=\"403\"} 4\n")
	require.Contains(t, log.String(), `msg="request refused" code=401 from=127.0.0.1`)
	require.NotContains(t, log.String(), "s3cret")
	require.NotContains(t, log.String(), "inurl")
	require.LessOrEqual(t, strings.Count(log.String(), "request refused"), 1+int(time.Since(began)/time.Second), "one a second: %s", &log)
}

// A browser adds a client certificate by itself.
func TestPagesOfOthersMayNotUseACertificate(t *testing.T) {
	f := newFixtureWith(t, func(o *Options) {
		o.Identify = func(*http.Request) (access.Caller, bool) {
			return access.Caller{Name: "certificate ops.test", Role: access.Admin}, true
		}
	})
	for _, header := range [][]string{
		{"Origin", "https://elsewhere.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "null"},
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
	handle := s.needs(route{role: access.Read, handle: func(http.ResponseWriter, *http.Request) error {
		t.Error("let in")
		return nil
	}})
	handle(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.Equal(t, http.StatusForbidden, w.Code)
}
