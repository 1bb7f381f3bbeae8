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

func TestStamp(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{"version":1}`, `{"revision":"7-a","version":1}`},
		{"{}", `{"revision":"7-a"}`},
		{" { } ", `{"revision":"7-a" }`},
	} {
		got, err := stamp([]byte(tc.in), "7-a")
		require.NoError(t, err)
		require.Equal(t, tc.want, string(got))
		require.JSONEq(t, tc.want, string(got))
	}
	for _, in := range []string{"", "[]", "1"} {
		_, err := stamp([]byte(in), "7-a")
		require.Error(t, err, in)
	}
}

// TestStampIsWhatTheFilterReads pins the one field the control plane adds.
func TestStampIsWhatTheFilterReads(t *testing.T) {
	n, err := newNonces()
	require.NoError(t, err)
	revision := "18446744073709551615-" + n.stamp(math.MaxUint64, math.MaxUint64)
	require.LessOrEqual(t, len(revision), policy.MaxRevisionBytes)
	stamped, err := stamp([]byte(`{"version":1,"rules":[]}`), revision)
	require.NoError(t, err)
	doc, err := policy.ParseJSON(stamped)
	require.NoError(t, err)
	p, problems, _ := policy.ReadPushed(doc)
	require.Empty(t, problems)
	require.Equal(t, revision, p.Revision)
}

func TestNoncesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 3 { // processes
		n, err := newNonces()
		require.NoError(t, err)
		for range 100 {
			nonce := n.next()
			require.False(t, seen[nonce])
			seen[nonce] = true
		}
	}
}

func TestVersion(t *testing.T) {
	p := envoy.Plugin{Wasm: "/a.wasm", Policy: []byte(`{"version":1}`)}
	v := version(12, "abc", p)
	require.True(t, strings.HasPrefix(v, "12-abc-"))
	require.Equal(t, uint64(12), heldRevision(v))
	require.True(t, sameContent(v, version(12, "", p)))
	require.False(t, sameContent(v, version(13, "abc", p)))
	other := p
	other.Wasm = "/b.wasm"
	require.False(t, sameContent(v, version(12, "abc", other)), "another binary")
	other = p
	other.Policy = []byte(`{"version":1,"domain":"x"}`)
	require.False(t, sameContent(v, version(12, "abc", other)), "another policy under the same number")
	for _, foreign := range []string{"", "v1", "-", "12", "12-abc", "99999999999999999999-a-b"} {
		require.False(t, sameContent(foreign, version(heldRevision(foreign), "abc", p)), foreign)
	}
}

func TestBinaryPrecedence(t *testing.T) {
	revision := func(wasm string) store.Revision { return store.Revision{Summary: store.Summary{Wasm: wasm}} }
	s := &Server{wasm: "/server"}
	require.Equal(t, "/revision", s.plugin(revision("/revision"), node{wasm: "/node"}).Wasm)
	require.Equal(t, "/node", s.plugin(revision(""), node{wasm: "/node"}).Wasm)
	require.Equal(t, "/server", s.plugin(revision(""), node{}).Wasm)
}
