package envoy

import (
	"regexp"
	"strconv"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// decode reads an object as a message of Envoy. It keeps the message, as many routes may have one object from the
// virtual host around them. What the message says that no policy does is noted. After a problem the message has what
// was read before it: the import goes on to find other problems, and fails at its end.
func decode[M proto.Message](r *reader, n *policy.Node, at source.Place) (m M) {
	if known, ok := r.decoded[n].(M); ok {
		return known
	}
	m, _ = m.ProtoReflect().New().Interface().(M)
	r.decoded[n] = m
	plain := withoutType(n)
	options := protojson.UnmarshalOptions{Resolver: envoyTypes{protoregistry.GlobalTypes}}
	if err := options.Unmarshal(policy.AppendJSON(nil, plain), m); err != nil {
		r.failToDecode(plain, at, err)
	}
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if ignored[fd.FullName()] {
			r.Note(at.In(string(fd.Name())), "ignored: a policy has nothing like it")
		}
		return true
	})
	return m
}

// withoutType is an object without its own @type. Objects in it that have an @type are extensions of Envoy: of
// them only that is left.
func withoutType(n *policy.Node) *policy.Node {
	plain := &policy.Node{Kind: n.Kind, Text: n.Text}
	for _, f := range n.Fields {
		if f.Name != "@type" {
			plain.Fields = append(plain.Fields, source.NewField(f.Name, withoutExtensions(f.Value)))
		}
	}
	return plain
}

// withoutExtensions is a value in which only the @type is left of extensions.
func withoutExtensions(n *policy.Node) *policy.Node {
	if name := source.FieldOf(n, "@type"); name != nil {
		return source.NewObject(source.NewField("@type", name))
	}
	plain := &policy.Node{Kind: n.Kind, Text: n.Text}
	for _, item := range n.Items {
		plain.Items = append(plain.Items, withoutExtensions(item))
	}
	for _, f := range n.Fields {
		plain.Fields = append(plain.Fields, source.NewField(f.Name, withoutExtensions(f.Value)))
	}
	return plain
}

// envoyTypes finds the types of messages of any type. One that this program lacks is kept as a
// message without fields.
type envoyTypes struct{ *protoregistry.Types }

func (t envoyTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if known, err := t.Types.FindMessageByURL(url); err == nil {
		return known, nil
	}
	return (&routev3.RateLimit_Action_SourceCluster{}).ProtoReflect().Type(), nil
}

var decodeError = regexp.MustCompile(`^proto:.(?:syntax error )?\(line 1:(\d+)\): (.*)`)

// failToDecode makes a problem of an error of protojson, at the path of the column that it names.
func (r *reader) failToDecode(n *policy.Node, at source.Place, err error) {
	parts := decodeError.FindStringSubmatch(err.Error())
	if parts == nil {
		r.Fail(at, err.Error())
		return
	}
	column, _ := strconv.Atoi(parts[1])
	r.Fail(pathAt(n, at, column-1), parts[2])
}

// pathAt is the place of what stands at an offset in the JSON of a node: in {"a":[10,20]} it is a[1] at 9. The offset
// is in characters, as protojson counts columns.
func pathAt(n *policy.Node, at source.Place, offset int) source.Place {
	size := func(n *policy.Node) int { return utf8.RuneCount(policy.AppendJSON(nil, n)) }
	begin := len("{")
	for i, item := range n.Items {
		if offset < begin+size(item) {
			return pathAt(item, at.ItemAt(i), offset-begin)
		}
		begin += size(item) + len(",")
	}
	for _, f := range n.Fields {
		begin += size(source.NewText(f.Name)) + len(":")
		switch {
		case offset < begin:
			return at.In(f.Name)
		case offset < begin+size(f.Value):
			return pathAt(f.Value, at.In(f.Name), offset-begin)
		}
		begin += size(f.Value) + len(",")
	}
	return at
}

// ignored are the fields about limits that a policy cannot express. All other fields are
// translated, or say nothing about limits.
var ignored = map[protoreflect.FullName]bool{
	localFields + "request_headers_to_add_when_not_enforced": true,

	serviceFields + "failure_mode_deny":                  true,
	serviceFields + "failure_mode_deny_percent":          true,
	serviceFields + "status_on_error":                    true,
	serviceFields + "metadata_namespace":                 true,
	serviceFields + "disable_x_envoy_ratelimited_header": true,

	"envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute.override_option": true,

	"envoy.config.route.v3.RateLimit.disable_key":        true,
	"envoy.config.route.v3.RateLimit.x_ratelimit_option": true,
}

// What the names of the fields of Envoy's filters begin with.
const (
	localFields   = envoyfile.LocalType + "."
	serviceFields = envoyfile.ServiceType + "."
)
