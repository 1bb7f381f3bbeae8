package envoy

import (
	"flag"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	localv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var update = flag.Bool("update", false, "write the fields of Envoy's types into their file")

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
			as := map[bool]string{true: "ignored", false: "read"}[ignored[fd.FullName()]]
			lines = append(lines, string(fd.FullName())+": "+as)
			if !ignored[fd.FullName()] && fd.Message() != nil && fd.Message().ParentFile().Package() != "google.protobuf" {
				walk(fd.Message())
			}
		}
	}
	for _, m := range []proto.Message{
		&routev3.RateLimit{}, &routev3.RouteMatch{},
		&localv3.LocalRateLimit{}, &ratelimitv3.RateLimit{}, &ratelimitv3.RateLimitPerRoute{},
	} {
		walk(m.ProtoReflect().Descriptor())
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	buildtest.Archives(t, "testdata/fields.txtar", *update, func(files []txtar.File) { files[0].Data = []byte(got) })
	for name := range ignored {
		require.Contains(t, got, string(name)+": ignored", "no such field")
	}
}
