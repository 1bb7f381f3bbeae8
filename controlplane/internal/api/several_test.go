package api

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// named is a policy of that name for those proxies.
func named(name, nodes string) string {
	return strings.Replace(good, "version: 1", "version: 1\nname: "+name+"\nproxies: {node: \""+nodes+"\"}", 1)
}

// change is the body of a change of several policies.
func change(t *testing.T, policies ...string) string {
	t.Helper()
	var c Changes
	for _, text := range policies {
		c.Policies = append(c.Policies, File{"p.yaml", text})
	}
	body, err := json.Marshal(c)
	require.NoError(t, err)
	return string(body)
}

// Policies applied together become revisions together, or none does.
func TestSeveralPolicies(t *testing.T) {
	f := newFixture(t, "")
	var applied AppliedChanges
	f.json("POST", "/v1/changes", change(t, named("edge", "edge-*"), good), http.StatusCreated, &applied)
	require.Len(t, applied.Applied, 2)
	require.Equal(t, "edge", applied.Applied[0].Policy)
	require.Equal(t, "default", applied.Applied[1].Policy)

	for text, want := range map[string]struct {
		code int
		text string
	}{
		change(t, named("core", "core-*"), "version: 2"):               {http.StatusUnprocessableEntity, "policy is not valid"},
		change(t, named("core", "core-*"), named("core", "c-*")):       {http.StatusBadRequest, "are both the policy core: give it once"},
		change(t, named("core", "core-*"), named("inner", "*-1")):      {http.StatusConflict, `the policies core and inner would both be for a proxy with node \"core-1\": narrow the proxies of one`},
		change(t, named("core", "core-*"), named("inner", "edge-eu-")): {http.StatusConflict, `the policies inner and edge would both be for a proxy with node \"edge-eu-\"`},
		`{"policies": []}`:                                             {http.StatusBadRequest, "the body is not"},
		`{"policies": [{"file": "a", "text": "b"}]}`:                   {http.StatusBadRequest, "the body is not"},
		change(t, named("core", "core-*"), strings.Repeat("#", 9<<20)): {http.StatusRequestEntityTooLarge, "8 MiB"},
	} {
		code, body := f.do("POST", "/v1/changes", text)
		require.Equal(t, want.code, code, body)
		require.Contains(t, body, want.text)
	}
	history, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, history, 2, "none of that is stored")

	// Two policies may trade their proxies in one change.
	f.json("POST", "/v1/policies", named("core", "core-*"), http.StatusCreated, new(Applied))
	code, _ := f.do("POST", "/v1/policies", named("core", "edge-*"))
	require.Equal(t, http.StatusConflict, code)
	f.json("POST", "/v1/changes", change(t, named("core", "edge-*"), named("edge", "core-*")), http.StatusCreated, &applied)
	code, text := f.do("POST", "/v1/rollback/1?policy=edge", "")
	require.Equal(t, http.StatusConflict, code, "a rollback brings the proxies of then back: %s", text)
}

// The next change on a serve that is behind gets a number above what proxies run, and says
// what it replaces.
func TestApplyWhereServeIsBehind(t *testing.T) {
	newer := newFixture(t, "")
	from, _, err := newer.store.Backup(t.Context())
	require.NoError(t, err)
	backup := filepath.Join(t.TempDir(), "backup")
	_, err = store.Save(backup, func(w io.Writer) error { _, err := io.Copy(w, from); return err })
	require.NoError(t, err)
	older := newFixtureWith(t, func(o *Options) {
		dir := t.TempDir()
		_, err := store.Restore(backup, dir, false)
		require.NoError(t, err)
		s, err := store.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		o.Store = s
		o.XDS, err = xds.New(t.Context(), xds.Options{Store: s, Wasm: "/lib/sluice.wasm"})
		require.NoError(t, err)
		t.Cleanup(o.XDS.Stop)
	})
	for range 3 {
		newer.json("POST", "/v1/policies", good, http.StatusCreated, new(Applied))
	}
	pushed, err := newer.subscribe(&corev3.Node{Id: "e1"}, "").Recv()
	require.NoError(t, err)
	stream := older.subscribe(&corev3.Node{Id: "e1"}, pushed.GetSystemVersionInfo())
	var st Status
	require.Eventually(t, func() bool {
		older.json("GET", "/v1/status", "", http.StatusOK, &st)
		return st.Behind == 1
	}, 2*time.Minute, 5*time.Millisecond)
	_, metrics := older.do("GET", "/metrics", "")
	require.Contains(t, metrics, "sluice_proxies_ahead 1\n")
	var applied Applied
	older.json("POST", "/v1/policies", good, http.StatusCreated, &applied)
	require.Equal(t, uint64(4), applied.Number)
	require.Len(t, applied.ProxyWarnings, 1)
	require.Contains(t, applied.ProxyWarnings[0], "this serve was behind: connected proxies ran newer revisions of this store, up to 3")
	pushed, err = stream.Recv()
	require.NoError(t, err)
	require.Contains(t, pushed.GetSystemVersionInfo(), "4-")
}

// The script policies.txtar has what else is one policy's own.
func TestProxiesThatNoPolicyIsFor(t *testing.T) {
	f := newFixture(t, "")
	f.json("POST", "/v1/policies", named("edge", "edge-*"), http.StatusCreated, new(Applied))
	f.proxy("core-1", func(int) bool { return true })
	var st Status
	f.json("GET", "/v1/status", "", http.StatusOK, &st)
	require.Equal(t, 1, st.Untaken)
	_, metrics := f.do("GET", "/metrics", "")
	require.Contains(t, metrics, "sluice_proxies_without_policy 1\n")
	var r Revision
	f.json("GET", "/v1/policies/current?policy=edge", "", http.StatusOK, &r)
	require.NotContains(t, string(r.Policy), "edge-*", "proxies do not get whom a policy is for")
	_, text := f.do("GET", "/v1/revisions/1/wait?policy=edge&timeout=5s", "")
	require.NotContains(t, text, "core-1")
}
