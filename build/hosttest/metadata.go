package hosttest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Metadata returns dynamic metadata as the proxy writes it.
func Metadata(t testing.TB, text string) string {
	t.Helper()
	var namespaces map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &namespaces))
	m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	for name, fields := range namespaces {
		s, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		m.FilterMetadata[name] = s
	}
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return string(b)
}
