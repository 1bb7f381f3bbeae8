// Package envoy reads the limits of Envoy: those of envoyproxy/ratelimit, which Envoy's filter asks, and those of its
// local rate limit filter, also where an EnvoyFilter of Istio has them.
//
// Envoy says "descriptor" of two things. Here a configuration has levels, and a request has descriptors: see
// package descriptor, which makes the rules of both. What Envoy calls rate_limits limits nothing: they say which
// descriptors a filter sends. This package reads levels and descriptors in this order:
//
//	ReadService: readConfigs, readDomain, levelsOf    the levels of the files (service.go)
//	  whatEnvoySends                                  its descriptors, and how its filter enforces (domain.go):
//	    guess                                         without --routes (guess.go)
//	    siteOfRoutes                                  else the listener, of package envoyfile
//	    filtersOf, filterOfDomain                     its filter (filter.go)
//	    readDomainFilter: readEnforcement             how that enforces the answers (enforcement.go)
//	    virtualHosts                                  its routes (routes.go), and whose requests they take (matcher.go)
//	    sendings: sendingsOf, routeSends              by which rate_limits it sends, for which requests (ratelimits.go)
//	      settingsFor: configFor                      what the configuration for a route says of that
//	    descriptorsOf: readRateLimit, readWays        what it sends by them (descriptors.go)
//	  descriptor.Levels.Rules                         a rule of each limit that requests come to
//
//	ReadLocal: chooseSite                             the listener, or a filter that stands alone (local.go)
//	  filtersOf, virtualHosts                         its filters and routes, as above
//	  configsOf: ownExtents, configFor                where the filter's configuration holds, and a route's (extent.go)
//	  addConfig                                       the rules of each of these:
//	    readLimits: readLevels, readBucket            its limits, and how the filter enforces them
//	    descriptorsIn                                 what it sends: guess, or sendingsOf and descriptorsOf, as above
//	    descriptor.Levels.Rules, bucketRule
//
// The reader has what is the same for both. Messages are decoded strictly: a field that Envoy's types lack is an error.
//
// A problem goes one of two ways. Findings.Fail takes what a file says wrong: the import goes on, so that the user
// reads all of these at once. A function returns an error if the import cannot go on. See read, where both meet.
//
// golden_test.go in the folder above imports testdata/imports/*.txtar: those of ReadLocal are local-*, and most others
// are of ReadService. decides_test.go compares decisions with those of a model of Envoy's limiters.
package envoy

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what the files of an import do not.
type Options struct {
	Routes   *source.File      // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // a descriptor's key to header:NAME, query:NAME, client_ip, path, method or host
}

// RefuseKeys is an error if there are keys, for an import that has no descriptors.
func (o Options) RefuseKeys() error {
	if keys := slices.Sorted(maps.Keys(o.Keys)); len(keys) > 0 {
		return errUnusedKey(keys[0])
	}
	return nil
}

// reader is what the imports have in common.
type reader struct {
	*draft.Findings // of the draft
	draft           *draft.Draft
	options         Options
	guesser         *guesser

	decoded     map[*policy.Node]proto.Message // by decode. A note about an object names the first place that has it
	descriptors int                            // how many descriptorsOf has made: see maxDescriptors
}

// read runs an import. The draft has the problems of what a file says. Run returns an error if the import cannot go on,
// as for a file that is no YAML, and for an option. If there are both, the error may follow from the problems, so read
// returns these.
func read(d *draft.Draft, o Options, run func(r *reader) error) error {
	g, err := newGuesser(d.Findings, o.Keys)
	if err != nil {
		return err
	}
	err = run(&reader{
		Findings: d.Findings, draft: d, options: o, guesser: g, decoded: map[*policy.Node]proto.Message{},
	})
	g.noteParts()
	err = cmp.Or(d.Err(), err)
	if err != nil || d.IsEmpty() { // Draft.Finish says that it is
		return err
	}
	return g.unused()
}

// decode reads an object as a message of Envoy. It keeps the message, as many routes may have one object from the
// virtual host around them. What the message says that no policy does is noted.
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
