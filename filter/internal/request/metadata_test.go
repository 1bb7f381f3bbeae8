package request

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

func TestMetadataValue(t *testing.T) {
	m := hosttest.Metadata(t,
		`{"other":{"k":"no"},"ns":{"k":"text","":"empty name","n":42,"x":-0.5,"big":1e21,"small":1e-7,"zero":0,
			"id":123456789012,
		"yes":true,"no":false,"none":null,"blank":"","s":{"a.b":{"c":"deep"}},"l":["a",["b",7],{"k":"v"}],"el":[]},
			"empty":{}}`)
	for path, want := range map[string]string{
		"ns/k":          "text",
		"ns/":           "empty name",
		"ns/n":          "42",
		"ns/x":          "-0.5",
		"ns/big":        "1e+21",
		"ns/small":      "1e-07",
		"ns/zero":       "0",
		"ns/id":         "123456789012",
		"ns/yes":        "true",
		"ns/no":         "false",
		"ns/blank":      "",
		"ns/s/a.b/c":    "deep",
		"ns/l/0":        "a",
		"ns/l/1/1":      "7",
		"ns/l/2/k":      "v",
		"other/k":       "no",
		"ns/none":       "-",
		"ns/s":          "-",
		"ns/s/a.b":      "-",
		"ns/l":          "-",
		"ns/l/3":        "-",
		"ns/l/x":        "-",
		"ns/l/-1":       "-",
		"ns/l/99999999": "-",
		"ns/el/0":       "-",
		"ns/k/x":        "-", "ns/missing": "-", "missing/k": "-", "empty/k": "-", "ns": "-",
	} {
		value, present := metadataValue(m, strings.Split(path, "/"))
		if want == "-" {
			require.False(t, present, path)
			continue
		}
		require.True(t, present, path)
		require.Equal(t, want, value, path)
	}
	require.Equal(t, "0", numberText(math.Copysign(0, -1)))
}

// Whatever the bytes, reading ends; of a sound message it says what the
// library does.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(hosttest.Metadata(f, `{"ns":{"k":"text","n":4,"l":["a",["b"]],"s":{"k":{"k":true}}}}`)))
	f.Add([]byte(hosttest.Metadata(f, `{"ns":{"k":7,"s":{"k":{"k":null}}},"":{"k":false}}`)))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		metadataValue(string(b), []string{"ns", "l", "1", "0"})
		metadataValue(string(b), []string{"ns", "s", "k", "k"})
		var m corev3.Metadata
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		sound, err := proto.Marshal(&m)
		require.NoError(t, err)
		for namespace, fields := range m.GetFilterMetadata() {
			for name, value := range fields.GetFields() {
				got, present := metadataValue(string(sound), []string{namespace, name})
				switch kind := value.GetKind().(type) {
				case *structpb.Value_StringValue:
					require.Equal(t, kind.StringValue, got)
				case *structpb.Value_BoolValue:
					require.Equal(t, strconv.FormatBool(kind.BoolValue), got)
				case *structpb.Value_NumberValue:
					require.Equal(t, numberText(kind.NumberValue), got)
				default:
					require.False(t, present)
					continue
				}
				require.True(t, present)
			}
		}
	})
}
