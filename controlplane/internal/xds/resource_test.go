package xds

import (
	"math"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func (s *Server) revisionOf(t *testing.T, number uint64, policy string) pushable {
	t.Helper()
	r, err := s.newPushable(store.Revision{Summary: store.Summary{Number: number}, JSON: []byte(policy)})
	require.NoError(t, err)
	return r
}

// The control plane adds a revision to the policy, and the secret of reports where they have keys. The
// filter reads both.
func TestThePolicyGetsItsRevisionAndSecret(t *testing.T) {
	s := &Server{secret: strings.Repeat("5a", policy.ReportSecretBytes/2)}
	for in, want := range map[string]string{
		`{"version":1}`: `{"revision":"7-a","version":1}`,
		"{}":            `{"revision":"7-a"}`,
		"{ }":           `{"revision":"7-a" }`,
		`{"version":1,"report_keys":"hash"}`: `{"revision":"7-a","report_secret":"` + s.secret +
			`","version":1,"report_keys":"hash"}`,
	} {
		r := s.revisionOf(t, 7, in)
		require.Equal(t, want, string(append(r.head("a"), r.policy...)))
	}
	for _, in := range []string{"", "[]", "1"} {
		_, err := s.newPushable(store.Revision{JSON: []byte(in)})
		require.Error(t, err, in)
	}
	s.process = "ffffffff"
	s.nonces.Store(math.MaxUint64 - 1)
	r, tag := s.revisionOf(t, math.MaxUint64, `{"version":1,"rules":[],"report_keys":"hash"}`), s.newNonce()
	doc, err := policy.ParseJSON(append(r.head(tag), r.policy...))
	require.NoError(t, err)
	p, problems := policy.ReadPushed(doc)
	require.Empty(t, problems)
	require.Equal(t, []string{"18446744073709551615-" + tag, s.secret}, []string{p.Revision, p.ReportSecret})
}

// A version tells the number and whether the content is the same, but for the tag, and of this store.
func TestAVersionTellsNumberAndContent(t *testing.T) {
	s := &Server{seal: []byte("a")}
	p, r := envoy.Plugin{Wasm: "/a.wasm"}, s.revisionOf(t, 12, `{"version":1}`)
	v := versionOf(r, "abc", p)
	require.True(t, strings.HasPrefix(v, "12-abc-"))
	number, same, own := s.held(v)
	require.Equal(t, []any{uint64(12), digest(r, p), true}, []any{number, same, own})
	secret := r
	secret.secret = "x"
	for what, other := range map[string]string{
		"binary": digest(r, envoy.Plugin{Wasm: "/b.wasm"}), "secret": digest(secret, p),
		"policy": digest(s.revisionOf(t, 12, `{"version":1,"domain":"x"}`), p),
	} {
		require.NotEqual(t, same, other, "another %s", what)
	}
	_, _, own = (&Server{seal: []byte("b")}).held(v)
	require.False(t, own)
	for text, want := range map[string]uint64{
		"1" + v: 112, "": 0, "v1": 0, "-": 0, "12": 12, "12-abc": 12, "99999999999999999999-a-b": 0,
	} {
		number, has, own := s.held(text)
		require.Equal(t, want, number, text)
		require.False(t, own || text != "1"+v && has == same)
	}
}

func TestBinaryPrecedence(t *testing.T) {
	s := &Server{Options: Options{Wasm: "/server"}}
	require.Equal(t, "/revision", s.plugin(pushable{wasm: "/revision"}, &node{wasm: "/node"}).Wasm)
	require.Equal(t, "/node", s.plugin(pushable{}, &node{wasm: "/node"}).Wasm)
	require.Equal(t, "/server", s.plugin(pushable{}, &node{}).Wasm)
}

func TestOnlySomeRevisionsAreKept(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("a", "b", "c", "d", "e", "f", "g", "h")
		for number := range uint64(8) {
			_, err := f.readPushable(t.Context(), number+1)
			require.NoError(t, err)
			require.LessOrEqual(t, len(f.pushables.kept), maxRevisions)
			require.Contains(t, f.pushables.kept, number+1)
		}
	})
}

// The policy is put into messages that were marshaled without it. Nodes before and since Envoy 1.40 read
// the capabilities in different places.
func TestPayloadIsAResource(t *testing.T) {
	s := new(Server)
	for i, text := range []string{"{}", `{"version":1}`, `{"a":"` + strings.Repeat("x", 1<<20) + `"}`} {
		for _, version := range []string{"1.39.0", "1.40.0"} {
			r := s.revisionOf(t, uint64(i), text)
			plugin := envoy.Plugin{Name: envoy.ResourceName, Wasm: "/w", VMID: "{", Runtime: "r", Envoy: version}
			response, err := newResponse(plugin, r, "a")
			require.NoError(t, err)
			plugin.Policy, plugin.Capabilities = append(r.head("a"), r.policy...), r.capabilities
			want, err := plugin.Filter()
			require.NoError(t, err)
			got := unmarshal(t, response)
			config, filter := new(corev3.TypedExtensionConfig), new(wasmfilterv3.Wasm)
			require.Equal(t, []string{response.version, TypeURL, "a"},
				[]string{got.GetSystemVersionInfo(), got.GetTypeUrl(), got.GetNonce()})
			require.Equal(t, response.version, got.GetResources()[0].GetVersion())
			require.NoError(t, got.GetResources()[0].GetResource().UnmarshalTo(config))
			require.Equal(t, envoy.ResourceName, config.GetName())
			require.NoError(t, config.GetTypedConfig().UnmarshalTo(filter))
			require.True(t, proto.Equal(want, filter))
		}
	}
}
