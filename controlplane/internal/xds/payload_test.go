package xds

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// A fleet gets the same bytes in its first push of a revision, whoever refuses
// it gets other bytes in each further push.
func TestFleetSharesPayloads(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	a, b := f.proxy("a"), f.proxy("b")
	same := func(x, y *discoveryv3.DeltaDiscoveryResponse) bool {
		return proto.Equal(x.GetResources()[0], y.GetResources()[0])
	}
	ones := []*discoveryv3.DeltaDiscoveryResponse{a.expect("one"), b.expect("one")}
	require.True(t, same(ones[0], ones[1]))
	require.NotEqual(t, ones[0].GetNonce(), ones[1].GetNonce(), "answers are told apart")
	a.ack(ones[0])
	b.ack(ones[1])

	f.apply("two")
	a.refuse("two")
	b.refuse("two")
	again := []*discoveryv3.DeltaDiscoveryResponse{a.expect("one"), b.expect("one")}
	require.True(t, same(again[0], again[1]))
	require.False(t, same(again[0], ones[0]))
	a.ack(again[0])
	b.ack(again[1])
}

// What a proxy was pushed before it was forgotten is not pushed to it again.
func TestForgettingBeginsAnEra(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	e := f.proxy("e1")
	before := e.expect("one") // refused, and never said so
	e.hangUpAndWait()
	require.NoError(t, f.server.Ledger().forget(t.Context(), time.Now().Add(2*forgetAfter)))
	e.connect()
	after := e.expect("one")
	require.NotEqual(t, revisionStamp(t, before), revisionStamp(t, after))
	e.ack(after)
}

// However many revisions a proxy is pushed, no push is of a payload that it had:
// neither of a new revision nor of the old one that it falls back on each time.
func TestNoProxyGetsAnPayloadTwice(t *testing.T) {
	p := newProxy(store.Proxy{Node: "a"})
	const good = 1
	had := map[uint64]bool{p.countPush(good): true}
	for number := uint64(good + 1); number < 5*maxReplies; number++ {
		require.Equal(t, uint64(1), p.countPush(number), "of a new revision all proxies get the same")
		again := p.countPush(good)
		require.False(t, had[again], "pushed again after revision %d", number)
		had[again] = true
		require.LessOrEqual(t, len(p.pushes), maxReplies)
	}
}

func TestResponseIsAResponse(t *testing.T) {
	resource := &discoveryv3.Resource{Name: "sluice", Version: "1-a-b"}
	text, err := proto.Marshal(resource)
	require.NoError(t, err)
	r, err := newResponse(payload{resource.GetVersion(), [3][]byte{text}}, "n")
	require.NoError(t, err)
	parts, err := newCodec().Marshal(r)
	require.NoError(t, err)
	var got discoveryv3.DeltaDiscoveryResponse
	require.NoError(t, proto.Unmarshal(parts.Materialize(), &got))
	require.True(t, proto.Equal(&discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "1-a-b", TypeUrl: TypeURL, Nonce: "n", Resources: []*discoveryv3.Resource{resource},
	}, &got))
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache[uint64, int](16)
	made := 0
	get := func(number uint64, err error) error {
		_, got := c.get(number, func() (int, error) {
			made++
			return 0, err
		})
		return got
	}
	refused := errors.New("no")
	require.ErrorIs(t, get(1, refused), refused)
	require.NoError(t, get(1, nil), "a failure is not kept")
	require.NoError(t, get(1, nil))
	require.Equal(t, 2, made)
	for number := range uint64(1000) {
		require.NoError(t, get(number, nil))
		require.LessOrEqual(t, len(c.kept), 16)
	}
}

// Nodes before and since Envoy 1.40 read the capabilities in different places.
func TestPayloadPerVersion(t *testing.T) {
	before, since := node{version: "1.36.4"}, node{version: "1.40.0"}
	require.NotEqual(t, before.payload(1, "a"), since.payload(1, "a"))
	require.Equal(t, before.payload(1, "a"), node{}.payload(1, "a"))
	for _, n := range []node{before, since} {
		filter, err := (&Server{wasm: "/w"}).plugin(revision{}, n).Filter()
		require.NoError(t, err)
		inVM := filter.GetConfig().GetVmConfig().GetCapabilityRestrictionConfig() != nil
		config := filter.GetConfig().ProtoReflect()
		inPlugin := config.Has(config.Descriptor().Fields().ByName("capability_restriction_config")) // deprecated since 1.40
		require.Equal(t, n.version == since.version, inVM)
		require.Equal(t, n.version == before.version, inPlugin)
	}
}

// The policy is put into a resource that was marshaled without it.
func TestPayloadIsAResource(t *testing.T) {
	for _, policy := range []string{"{}", `{"version":1}`, `{"a":"` + strings.Repeat("x", 1<<20) + `"}`} {
		r, err := newRevision(store.Revision{Summary: store.Summary{Number: 7}, JSON: []byte(policy)})
		require.NoError(t, err)
		plugin := envoy.Plugin{Name: envoy.ResourceName, Wasm: "/w", VMID: "{", Runtime: "r"}
		e, err := newPayload(plugin, r, "a")
		require.NoError(t, err)
		got := new(discoveryv3.Resource)
		require.NoError(t, proto.Unmarshal(bytes.Join(e.resource[:], nil), got))

		plugin.Policy = append(r.head("a"), r.policy...)
		want, err := plugin.ExtensionConfig()
		require.NoError(t, err)
		config := new(corev3.TypedExtensionConfig)
		require.NoError(t, got.GetResource().UnmarshalTo(config))
		require.True(t, proto.Equal(want, config))
		require.Equal(t, e.version, got.GetVersion())
	}
	_, _, err := insert([]byte{10, 1, 'a'}, []byte("b"), 1)
	require.Error(t, err)
}
