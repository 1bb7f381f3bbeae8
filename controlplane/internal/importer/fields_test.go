package importer

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A field that a newer Envoy adds to its types fails this test until someone
// decides what the import makes of it.
func TestEveryFieldIsDecidedOn(t *testing.T) {
	var lines []string
	seen := map[protoreflect.FullName]bool{}
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			fd := m.Fields().Get(i)
			switch note, skip := skipped(fd); {
			case skip && note != "":
				lines = append(lines, string(fd.FullName())+": noted")
			case skip:
				lines = append(lines, string(fd.FullName())+": skipped")
			default:
				lines = append(lines, string(fd.FullName())+": decoded")
				if isMessage(fd) {
					walk(fd.Message())
				}
			}
		}
	}
	for _, m := range []proto.Message{&routev3.RouteConfiguration{}, &localv3.LocalRateLimit{}, &ratelimitv3.RateLimit{}, &ratelimitv3.RateLimitPerRoute{}} {
		walk(m.ProtoReflect().Descriptor())
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile("testdata/fields.txt", []byte(got), 0o600))
	}
	want, err := os.ReadFile("testdata/fields.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got)
	for name := range notTranslated {
		require.Contains(t, got, string(name)+": ", "no such field")
	}
}
