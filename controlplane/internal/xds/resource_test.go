package xds

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func revisionOf(t *testing.T, number uint64, policy string) revision {
	t.Helper()
	r, err := newRevision(store.Revision{Summary: store.Summary{Number: number}, JSON: []byte(policy)})
	require.NoError(t, err)
	return r
}

func stamped(t *testing.T, number uint64, policy, tag string) []byte {
	t.Helper()
	r := revisionOf(t, number, policy)
	return append(r.head(tag), r.policy...)
}

func TestStamp(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{"version":1}`, `{"revision":"7-a","version":1}`},
		{"{}", `{"revision":"7-a"}`},
		{" { } ", `{"revision":"7-a" }`},
	} {
		got := string(stamped(t, 7, tc.in, "a"))
		require.Equal(t, tc.want, got)
		require.JSONEq(t, tc.want, got)
	}
	for _, in := range []string{"", "[]", "1"} {
		_, err := newRevision(store.Revision{JSON: []byte(in)})
		require.Error(t, err, in)
	}
}

// TestStampIsWhatTheFilterReads pins the one field the control plane adds.
func TestStampIsWhatTheFilterReads(t *testing.T) {
	n, err := newNonces()
	require.NoError(t, err)
	tag := n.tag(math.MaxUint64, math.MaxUint64)
	revision := "18446744073709551615-" + tag
	require.LessOrEqual(t, len(revision), policy.MaxRevisionBytes)
	doc, err := policy.ParseJSON(stamped(t, math.MaxUint64, `{"version":1,"rules":[]}`, tag))
	require.NoError(t, err)
	p, problems := policy.ReadPushed(doc)
	require.Empty(t, problems)
	require.Equal(t, revision, p.Revision)
}

func TestVersion(t *testing.T) {
	p := envoy.Plugin{Wasm: "/a.wasm"}
	r := revisionOf(t, 12, `{"version":1}`)
	v := version(r, "abc", p)
	require.True(t, strings.HasPrefix(v, "12-abc-"))
	require.Equal(t, uint64(12), heldRevision(v))
	require.True(t, sameContent(v, version(r, "", p)))
	require.False(t, sameContent(v, version(revisionOf(t, 13, `{"version":1}`), "abc", p)))
	require.False(t, sameContent(v, version(r, "abc", envoy.Plugin{Wasm: "/b.wasm"})), "another binary")
	require.False(t, sameContent(v, version(revisionOf(t, 12, `{"version":1,"domain":"x"}`), "abc", p)),
		"another policy under the same number")
	for _, foreign := range []string{"", "v1", "-", "12", "12-abc", "99999999999999999999-a-b"} {
		r := revisionOf(t, heldRevision(foreign), `{"version":1}`)
		require.False(t, sameContent(foreign, version(r, "abc", p)), foreign)
	}
}

func TestBinaryPrecedence(t *testing.T) {
	s := &Server{wasm: "/server"}
	require.Equal(t, "/revision", s.plugin(revision{wasm: "/revision"}, node{wasm: "/node"}).Wasm)
	require.Equal(t, "/node", s.plugin(revision{}, node{wasm: "/node"}).Wasm)
	require.Equal(t, "/server", s.plugin(revision{}, node{}).Wasm)
}

// Proxies get the secret of their reports with the policy, the same after a restart.
// One that holds another secret is pushed to again.
func TestReportSecret(t *testing.T) {
	ctx := t.Context()
	f := newFixture(t)
	f.apply("one")
	r, err := f.server.revision(ctx, 1)
	require.NoError(t, err)
	require.Empty(t, r.secret, "a filter that does not know the field takes the policy")
	_, err = add(ctx, f.store, store.Draft{File: "p", YAML: []byte("y"), JSON: []byte(`{"version":1,"report_keys":"hash"}`)})
	require.NoError(t, err)
	r, err = f.server.revision(ctx, 2)
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{64}$`, r.secret)
	require.Len(t, r.secret, policy.ReportSecretBytes)
	pushed, problems := policy.ReadPushed(parsed(t, append(r.head("a"), r.policy...)))
	require.Empty(t, problems)
	require.Equal(t, r.secret, pushed.ReportSecret)
	f.restart()
	again, err := f.server.revision(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, r.secret, again.secret)

	other := r
	other.secret = strings.Repeat("0", policy.ReportSecretBytes)
	require.False(t, sameContent(version(r, "a", envoy.Plugin{}), version(other, "a", envoy.Plugin{})))
}

func parsed(t *testing.T, text []byte) *policy.Node {
	t.Helper()
	doc, err := policy.ParseJSON(text)
	require.NoError(t, err)
	return doc
}
