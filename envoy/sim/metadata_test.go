package sim

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// A value in metadata is bytes without its type, as Envoy's serializeValue has
// it; all of it is the message.
func TestMetadataProperty(t *testing.T) {
	fields, err := structpb.NewStruct(map[string]any{
		"text": "a", "n": 1.5, "yes": true, "no": false, "none": nil, "list": []any{"x", 2.0}, "map": map[string]any{"a.b": "deep", "c": "d"}, "bad": []any{nil},
	})
	require.NoError(t, err)
	all := map[string]*structpb.Struct{"ns": fields}
	for path, want := range map[string]string{
		"text": "a", "n": "\x00\x00\x00\x00\x00\x00\xf8\x3f", "yes": "\x01", "no": "\x00", "list/0": "x", "map/a.b": "deep",
		"list": string(headers{{"x", ""}, {"\x00\x00\x00\x00\x00\x00\x00\x40", ""}}.marshal(nil)),
		"map":  string(headers{{"a.b", "deep"}, {"c", "d"}}.marshal(nil)),
	} {
		got, st := metadataProperty(all, []byte("filter_metadata\x00ns\x00"+strings.ReplaceAll(path, "/", "\x00")), true)
		require.Equal(t, statusOK, st, path)
		require.Equal(t, want, got, path)
	}
	for path, want := range map[string]status{
		"filter_metadata/ns/none": serializationFailed, "filter_metadata/ns/bad": serializationFailed,
		"filter_metadata/ns/x": notFound, "filter_metadata/ns/text/x": notFound, "filter_metadata/ns/list/2": notFound, "filter_metadata/ns/list/x": notFound,
		"filter_metadata/other": notFound, "typed_filter_metadata/ns": notFound,
	} {
		_, st := metadataProperty(all, []byte(strings.ReplaceAll(path, "/", "\x00")), true)
		require.Equal(t, want, st, path)
	}
	whole, st := metadataProperty(all, nil, false)
	require.Equal(t, statusOK, st)
	var m corev3.Metadata
	require.NoError(t, proto.Unmarshal([]byte(whole), &m))
	require.True(t, proto.Equal(&corev3.Metadata{FilterMetadata: all}, &m))
}
