package api

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/xdstest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// A rollback goes to the newest that was accepted, or else the one before. One after a
// rollback goes further back, and not to what was rolled back. What cannot be known is not guessed.
func TestWhichRevisionIsPrevious(t *testing.T) {
	type list = []store.Summary
	good := func(number, repeats uint64) store.Summary {
		return store.Summary{Number: number, RollbackOf: repeats, Acked: true}
	}
	bad := store.Summary{Number: 2, Damaged: true}
	for name, tc := range map[string]struct {
		list list // newest first
		want uint64
		says string
	}{
		"nobody has accepted any":      {list{{Number: 3}, {Number: 2}, {Number: 1}}, 2, ""},
		"the newest that was accepted": {list{{Number: 4}, {Number: 3}, good(2, 0), good(1, 0)}, 2, ""},
		"one that is damaged":          {list{{Number: 3}, bad, good(1, 0)}, 1, ""},
		"one that was a rollback":      {list{good(5, 0), good(4, 2), good(3, 0), good(2, 0)}, 4, ""},
		"after two rollbacks": {list{good(6, 4), good(5, 0), good(4, 2),
			good(3, 0), good(2, 0), good(1, 0)}, 1, ""},
		"a rollback as far as there is": {list{good(2, 1), good(1, 0)}, 0,
			"none before revision 1, whose policy the current one repeats: name a revision"},
		"a rollback of one that is gone": {list{good(5, 3), good(4, 0), good(2, 0)}, 0,
			"repeats revision 3, which is gone or damaged: name a revision"},
		"a rollback of one that is damaged": {list{good(4, 2), good(3, 0), bad, good(1, 0)}, 0,
			"repeats revision 2, which is gone or damaged"},
		"nothing whole before": {list{{Number: 3}, bad, {Number: 1, Damaged: true}}, 0,
			"there is none before the current one that is whole"},
	} {
		got, err := before(tc.list)
		require.Equal(t, tc.want, got, name)
		if tc.says != "" {
			require.ErrorContains(t, err, tc.says, name)
		} else {
			require.NoError(t, err, name)
		}
	}
}

// A module that a proxy has refused goes on only if another one has accepted it.
func TestWhichModuleIsInForce(t *testing.T) {
	type list = []store.Summary
	aborted := &store.Rollout{State: store.Aborted}
	refused := store.Summary{Wasm: "refused", Nacked: true}
	for want, revisions := range map[string]list{
		"":         nil,
		"untried":  {{Wasm: "untried"}, {Wasm: "old", Acked: true}},
		"by some":  {{Wasm: "by some", Acked: true, Nacked: true}, {Wasm: "old", Acked: true}},
		"accepted": {refused, {Damaged: true}, {Wasm: "aborted", Rollout: aborted}, {Wasm: "accepted", Acked: true}},
	} {
		require.Equal(t, want, WasmInForce(revisions))
	}
	require.Empty(t, WasmInForce(list{refused}))
}

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
	f.json("POST", "/v1/changes", change(t, named("edge", "edge-*"), good), 201, &applied)
	require.Len(t, applied.Applied, 2)
	require.Equal(t, []string{"edge", "default"}, []string{applied.Applied[0].Policy, applied.Applied[1].Policy})
	for text, want := range map[string]struct {
		code int
		text string
	}{
		change(t, named("core", "core-*"), "version: 2"):         {422, "policy is not valid"},
		change(t, named("core", "core-*"), named("core", "c-*")): {400, "are both the policy core: give it once"},
		change(t, named("core", "core-*"), named("inner", "*-1")): {409,
			`the policies core and inner would both be for a proxy with node \"core-1\": narrow the proxies of one`},
		change(t, named("core", "core-*"), named("inner", "edge-eu-")): {409,
			`the policies inner and edge would both be for a proxy with node \"edge-eu-\"`},
		`{"policies": []}`:                                             {400, "the body is not"},
		`{"policies": [{"file": "a", "text": "b"}]}`:                   {400, "the body is not"},
		change(t, named("core", "core-*"), strings.Repeat("#", 9<<20)): {413, "8 MiB"},
	} {
		f.as("", "POST /v1/changes", text, want.code, want.text)
	}
	history, err := f.store.History(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, history, 2, "none of that is stored")

	// Two policies may trade their proxies in one change.
	f.as("", "POST /v1/policies", named("core", "core-*"), 201)
	f.as("", "POST /v1/policies", named("core", "edge-*"), 409)
	f.as("", "POST /v1/changes", change(t, named("core", "edge-*"), named("edge", "core-*")), 201)
	f.as("", "POST /v1/rollback/1?policy=edge", "", 409) // it would bring the proxies of then back
}

// The next change on a serve that is behind gets a number above what proxies run, and says
// what it replaces.
func TestApplyWhereServeIsBehind(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	newer := newFixtureOn(t, dir, func(*Options) {})
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
	older := newFixtureOn(t, copied, func(*Options) {})
	for range 3 {
		newer.json("POST", "/v1/policies", good, 201, &Applied{})
	}
	got := make(chan string, 10)
	xdstest.Follow(t, []string{newer.grpc, older.grpc}, "e1", 10*time.Millisecond,
		func(version string) { got <- version })
	require.Contains(t, <-got, "3-")
	newer.eventually(func(list []xds.ProxyStatus) bool { return list[0].Runs == 3 })
	newer.hangUp()
	older.eventually(func([]xds.ProxyStatus) bool { n, _ := older.xds.Ledger().Ahead(); return n == 1 })
	var st Status
	older.json("GET", "/v1/status", "", 200, &st)
	require.Equal(t, 1, st.Behind)
	older.as("", "GET /metrics", "", 200, "sluice_proxies_ahead 1\n")
	var applied Applied
	older.json("POST", "/v1/policies", good, 201, &applied)
	require.Equal(t, uint64(4), applied.Number)
	require.Len(t, applied.ProxyWarnings, 1)
	require.Contains(t, applied.ProxyWarnings[0],
		"this serve was behind: connected proxies ran newer revisions of this store, up to 3")
	require.Contains(t, <-got, "4-")
}
