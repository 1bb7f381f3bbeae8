package importer

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// place is where something stands: a file, and a path in it.
type place struct{ file, path string }

// in is the place of a field of the object at this place.
func (p place) in(field string) place {
	return place{p.file, strings.Trim(p.path+"."+field, ".")}
}

// item is the place of an item of a list that is a field of the object at this place.
func (p place) item(field string, i int) place {
	p.path = strings.Trim(p.path+"."+field, ".") + "[" + strconv.Itoa(i) + "]"
	return p
}

func (p place) problem(message string) policyfile.Problem {
	return policyfile.Problem{File: p.file, Path: p.path, Message: message}
}

// note is something that the user should know. The policy has it beside a rule, or at its head.
type note struct {
	policyfile.Problem
	ofRule bool
}

// reader collects notes, each once, and problems, which make the import fail.
type reader struct {
	cluster     bool // the rules count over all Envoys
	notes       []note
	noted       map[policyfile.Problem]bool
	problems    policyfile.Errors
	decoded     map[*policy.Node]proto.Message
	descriptors int // made of the rate_limits of routes so far; -1: too many
}

func newReader(cluster bool) *reader {
	return &reader{cluster: cluster, noted: map[policyfile.Problem]bool{}, decoded: map[*policy.Node]proto.Message{}}
}

// err returns the problems.
func (r *reader) err() error {
	if len(r.problems) > 0 {
		return r.problems
	}
	return nil
}

func (r *reader) fail(at place, message string) { r.problems = append(r.problems, at.problem(message)) }

// note adds a note about a place, or about the whole import.
func (r *reader) note(at place, text string) { r.add(note{Problem: at.problem(text)}) }

func (r *reader) add(n note) {
	if !r.noted[n.Problem] {
		r.noted[n.Problem] = true
		r.notes = append(r.notes, n)
	}
}

// decode reads an object as a message of Envoy, each object once.
func decode[M proto.Message](r *reader, n *policy.Node, at place) (m M) {
	if known, ok := r.decoded[n].(M); ok {
		return known
	}
	m, _ = m.ProtoReflect().New().Interface().(M)
	r.decoded[n] = m
	md := m.ProtoReflect().Descriptor()
	known := r.knownFields(n, at, md)
	if err := protojson.Unmarshal(policy.AppendJSON(nil, known), m); err != nil {
		r.failAtCause(known, at, md, err)
	}
	return m
}

// knownFields is an object with the fields of which the import makes something. It notes the
// others, apart from messages of any type: extensions of Envoy.
func (r *reader) knownFields(n *policy.Node, at place, md protoreflect.MessageDescriptor) *policy.Node {
	if n.Kind != policy.Object {
		return n
	}
	known := object()
	for _, f := range n.Fields {
		fd := fieldNamed(md, f.Name)
		switch {
		case f.Name == "@type" || f.Value.Kind == policy.Null:
		case fd == nil:
			r.unknownField(at.in(f.Name), f.Name, namesOf(md))
		case ignored[fd.FullName()]:
			if f.Value.Text != "false" {
				r.note(at.in(f.Name), "ignored: a policy has nothing like it")
			}
		case !isAnyMessage(fd):
			known.Fields = append(known.Fields, field(f.Name, r.knownValue(f.Value, at.in(f.Name), fd)))
		}
	}
	return known
}

func (r *reader) knownValue(n *policy.Node, at place, fd protoreflect.FieldDescriptor) *policy.Node {
	switch {
	case n.Kind == policy.List:
		list := listOf()
		for i, item := range n.Items {
			list.Items = append(list.Items, r.knownValue(item, at.item("", i), fd))
		}
		return list
	case n.Kind == policy.Object && isMessage(fd):
		return r.knownFields(n, at, fd.Message())
	case fd.Kind() == protoreflect.StringKind && (n.Kind == policy.Number || n.Kind == policy.Bool):
		return text(n.Text)
	case n.Kind == policy.String && strings.ContainsFunc(n.Text, unicode.IsControl):
		r.fail(at, "must not hold control characters")
	}
	return n
}

// failAtCause makes a problem of the innermost field that cannot be decoded.
func (r *reader) failAtCause(n *policy.Node, at place, md protoreflect.MessageDescriptor, err error) {
	for _, f := range n.Fields {
		alone := policy.AppendJSON(nil, object(f))
		err := protojson.Unmarshal(alone, dynamicpb.NewMessage(md))
		fd := fieldNamed(md, f.Name)
		switch {
		case err == nil:
			continue
		case f.Value.Kind == policy.Object && isMessage(fd):
			r.failAtCause(f.Value, at.in(f.Name), fd.Message(), err)
		case f.Value.Kind == policy.List && isMessage(fd):
			r.failAtItem(f.Value, at.in(f.Name), fd.Message())
		default:
			r.fail(at.in(f.Name), "must be of the type "+typeOfField(fd)+", not "+message.Describe(f.Value))
		}
		return
	}
	r.fail(at, position.ReplaceAllString(err.Error(), ""))
}

// failAtItem makes a problem of the first item that cannot be decoded.
func (r *reader) failAtItem(n *policy.Node, at place, md protoreflect.MessageDescriptor) {
	for i, item := range n.Items {
		if err := protojson.Unmarshal(policy.AppendJSON(nil, item), dynamicpb.NewMessage(md)); err != nil {
			r.failAtCause(item, at.item("", i), md, err)
			return
		}
	}
}

// position is where protojson found a problem, in JSON that the user has not seen.
var position = regexp.MustCompile(`^proto:.(syntax error )?\(line \d+:\d+\): `)

func typeOfField(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.Message() != nil:
		return string(fd.Message().FullName())
	case fd.Enum() != nil:
		return string(fd.Enum().FullName())
	}
	return fd.Kind().String()
}

// unknownField notes a field, or refuses it if it looks like a typo of a known one.
func (r *reader) unknownField(at place, name string, known []string) {
	if near := message.Nearest(name, known); near != "" {
		r.fail(at, `unknown field: did you mean "`+near+`"?`)
		return
	}
	r.note(at, "unknown field, ignored")
}

// fieldNamed is a field by either of the names that JSON may have for it; nil if there is none.
func fieldNamed(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(name)
}

func namesOf(md protoreflect.MessageDescriptor) []string {
	names := map[string]bool{}
	for i := range md.Fields().Len() {
		names[md.Fields().Get(i).TextName()] = true
		names[md.Fields().Get(i).JSONName()] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func isAnyMessage(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Any"
}

// isMessage reports whether a field holds messages that are objects in JSON, of types that Envoy
// defines.
func isMessage(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && !fd.IsMap() && fd.Message().ParentFile().Package() != "google.protobuf"
}

// ignored are the fields about limits of which no policy says the same. The others are
// translated, or say nothing about limits.
var ignored = map[protoreflect.FullName]bool{
	localFilter + "request_headers_to_add_when_not_enforced": true,

	serviceFilter + "failure_mode_deny":                  true,
	serviceFilter + "failure_mode_deny_percent":          true,
	serviceFilter + "status_on_error":                    true,
	serviceFilter + "metadata_namespace":                 true,
	serviceFilter + "disable_x_envoy_ratelimited_header": true,

	"envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute.override_option": true,

	"envoy.config.route.v3.RateLimit.disable_key":        true,
	"envoy.config.route.v3.RateLimit.x_ratelimit_option": true,
	"envoy.config.core.v3.HeaderValue.raw_value":         true,
}

// The prefixes of the fields of Envoy's filters.
const (
	localFilter   = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit."
	serviceFilter = "envoy.extensions.filters.http.ratelimit.v3.RateLimit."
)

// refuseTypos refuses fields of an object that resemble a known one, and are none.
func (r *reader) refuseTypos(n *policy.Node, at place, known []string) {
	if n == nil {
		return
	}
	for _, f := range n.Fields {
		near := message.Nearest(f.Name, known)
		isOfEnvoy := slices.ContainsFunc(known, func(name string) bool { return isField(f.Name, name) })
		difference := len(near) - len(f.Name)
		if near != "" && !isOfEnvoy && -1 <= difference && difference <= 1 {
			r.fail(at.in(f.Name), `unknown field: did you mean "`+near+`"?`)
		}
	}
}
