package xds

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// read is what the server reads of a request.
func read(t *testing.T, r *discoveryv3.DeltaDiscoveryRequest) (got request) {
	t.Helper()
	message, err := proto.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, got.unmarshal(message))
	return got
}

// The first request of real Envoys, as they were started with a rendered
// bootstrap.
func TestFirstRequestOfEnvoy(t *testing.T) {
	for _, version := range []string{"1.36.4", "1.40.0"} {
		f, err := os.Open(filepath.Join("testdata", "envoy-"+version+".request.gz"))
		require.NoError(t, err)
		defer f.Close()
		text, err := gzip.NewReader(f)
		require.NoError(t, err)
		message, err := io.ReadAll(text)
		require.NoError(t, err)
		require.Less(t, 4*len(message), listener.MaxRequest, "room for the labels and annotations that Istio adds")
		var r request
		require.NoError(t, r.unmarshal(message))
		require.NoError(t, r.node.check())
		require.Equal(t, request{
			hasNode: true, node: node{
				Place: selector.Proxy{Node: "edge-1", Cluster: "sluice"}, Version: version, wasm: "/opt/sluice/sluice.wasm",
			},
			typeURL: TypeURL, subscribes: true,
		}, r)
	}
}

func TestRequestHasTheFieldsThatAreNeeded(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	r := read(t, &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{
			Id: "e1", Cluster: "c", ClientFeatures: []string{"f"},
			Metadata: metadata(t, map[string]any{"wasm": "/n.wasm", "vm_id": "v", "runtime": "r", "manage": "m", "other": 1}),
			UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
				Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40, Patch: 2},
			}},
		},
		TypeUrl: TypeURL, ResourceNamesSubscribe: []string{long, "b", "*"},
		ResourceNamesUnsubscribe: []string{envoy.ResourceName},
		InitialResourceVersions:  map[string]string{envoy.ResourceName: "7-a-b", "z": "1"},
		ResponseNonce:            "n", ErrorDetail: &rpcstatus.Status{Code: 13, Message: "why"},
	})
	require.Equal(t, request{
		hasNode: true, node: node{
			Place: selector.Proxy{Node: "e1", Cluster: "c"}, Version: "1.40.2",
			wasm: "/n.wasm", vmID: "v", runtime: "r", Manage: "m",
		},
		typeURL: TypeURL, subscribes: true, unsubscribes: true,
		others: 2, unserved: []string{long[:maxShown-3] + "…", "b"},
		held: "7-a-b", nonce: "n", refused: true, text: "why",
	}, r)

	r = read(t, &discoveryv3.DeltaDiscoveryRequest{
		Node:          &corev3.Node{Id: "e1", Metadata: metadata(t, map[string]any{"wasm": 7})},
		ErrorDetail:   &rpcstatus.Status{Message: long},
		ResponseNonce: long, InitialResourceVersions: map[string]string{envoy.ResourceName: long}, TypeUrl: long,
	})
	require.Equal(t, node{Place: selector.Proxy{Node: "e1"}}, r.node)
	require.Equal(t, long[:maxNackText-3]+"…", r.text)
	for _, kept := range []string{r.nonce, r.held, r.typeURL} {
		require.Len(t, kept, maxName+1)
	}
}

// Of the metadata selectors see texts, also in structs, as far as there is room.
func TestTextsOfTheMetadata(t *testing.T) {
	of := func(fields map[string]any) map[string]string {
		whole, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		return read(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "e1", Metadata: whole}}).node.Place.Metadata
	}
	require.Equal(t, map[string]string{"env": "prod", "LABELS.app": "front"}, of(map[string]any{
		"env": "prod", "LABELS": map[string]any{"app": "front", "n": 7, "deep": map[string]any{"er": "x"}}, "flag": true,
		"long": strings.Repeat("x", maxName+1), "sluice": map[string]any{"wasm": "/w"},
	}))
	many := map[string]any{}
	for i := range 10_000 {
		many[fmt.Sprint(i)] = ""
	}
	require.Less(t, len(of(many)), maxTextBytes/perText)
}

func TestNodesThatAreNotServed(t *testing.T) {
	e1 := selector.Proxy{Node: "e1"}
	require.NoError(t, (&node{Place: e1, wasm: strings.Repeat("x", maxMetadata)}).check())
	for want, n := range map[string]node{
		"metadata sluice.wasm has more than 4096 bytes":           {Place: e1, wasm: strings.Repeat("x", maxMetadata+1)},
		"metadata sluice.manage is not plain text in UTF-8":       {Place: e1, Manage: "a\x1b[2J"},
		"metadata sluice.vm_id is not plain text in UTF-8":        {Place: e1, vmID: "\xff"},
		"node id is empty: set node.id in the bootstrap or start": {},
	} {
		require.ErrorContains(t, n.check(), want)
	}
}

// Deep nesting costs nothing: only what is needed is looked into.
func TestDeepNestingCostsNothing(t *testing.T) {
	value := structpb.NewStringValue("x")
	for range 5000 {
		value = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{value}})
	}
	r := read(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{
		Id: "e1", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"sluice": value, "other": value}},
	}})
	require.Equal(t, node{Place: selector.Proxy{Node: "e1"}}, r.node)

	groups := []byte{}
	for range 50_000 {
		groups = protowire.AppendTag(groups, 100, protowire.StartGroupType)
	}
	require.ErrorIs(t, new(request).unmarshal(groups), wire.ErrTag)
}

// Whatever the request, reading it takes little memory.
func TestReadingTakesLittle(t *testing.T) {
	var names, empty []byte
	for len(names) < listener.MaxRequest-8 {
		names = protowire.AppendString(protowire.AppendTag(names, 3, protowire.BytesType), "n")
	}
	for len(empty) < listener.MaxRequest-8 {
		empty = protowire.AppendBytes(protowire.AppendTag(empty, 5, protowire.BytesType), nil)
	}
	for _, message := range [][]byte{names, empty} {
		require.LessOrEqual(t, testing.AllocsPerRun(1, func() { require.NoError(t, new(request).unmarshal(message)) }), 20.0)
	}
}

// What the server reads is what the generated message would have had.
func FuzzRequest(f *testing.F) {
	f.Add([]byte{})
	for _, seed := range []*discoveryv3.DeltaDiscoveryRequest{
		{Node: &corev3.Node{Id: "e1"}, TypeUrl: TypeURL, ResourceNamesSubscribe: []string{envoy.ResourceName}},
		{
			ResponseNonce: "n", ErrorDetail: &rpcstatus.Status{Message: "no"},
			InitialResourceVersions: map[string]string{envoy.ResourceName: "1-a-b"},
		},
	} {
		message, err := proto.Marshal(seed)
		require.NoError(f, err)
		f.Add(message)
	}
	f.Add([]byte("100000000%0000")) // a nonce of a fixed length, which is no text
	f.Fuzz(func(t *testing.T, message []byte) {
		var got request
		var want discoveryv3.DeltaDiscoveryRequest
		if got.unmarshal(message) != nil || proto.Unmarshal(message, &want) != nil {
			return
		}
		require.Equal(t, want.GetNode() != nil, got.hasNode)
		require.Equal(t, want.GetErrorDetail() != nil, got.refused)
		if len(want.GetNode().GetId()) <= 1024 {
			require.Equal(t, want.GetNode().GetId(), got.node.Place.Node)
		}
		if len(want.GetResponseNonce()) <= maxName {
			require.Equal(t, want.GetResponseNonce(), got.nonce)
		}
		if held := want.GetInitialResourceVersions()[envoy.ResourceName]; len(held) <= maxName {
			require.Equal(t, held, got.held)
		}
	})
}
