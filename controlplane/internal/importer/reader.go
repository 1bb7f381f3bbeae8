package importer

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// reader decodes the files of an import. It knows where each message stands,
// and collects what the user should know, each note once, and the problems,
// which make the import fail.
type reader struct {
	cluster  bool // the rules count over all Envoys
	notes    []policyfile.Problem
	noted    map[place]bool
	problems policyfile.Errors
	failed   map[*policy.Node]bool
	origins  map[any]origin // of each decoded message, by its pointer
	decoded  map[*policy.Node]proto.Message
	made     int // descriptors of routes; below 0: too many
}

func newReader(cluster bool) *reader {
	return &reader{cluster: cluster, noted: map[place]bool{}, failed: map[*policy.Node]bool{}, origins: map[any]origin{},
		decoded: map[*policy.Node]proto.Message{}}
}

// source is one file.
type source struct {
	*reader
	file string
	root *policy.Node
}

// place is a problem's place, without a problem.
type place = policyfile.Problem

// origin is the object that a message was decoded from.
type origin struct {
	in   *source
	node *policy.Node
	path string // "descriptors[0]", or empty
}

// err returns the problems.
func (r *reader) err() error {
	if len(r.problems) > 0 {
		return r.problems
	}
	return nil
}

// add adds a note about a place, or about the whole file.
func (r *reader) add(at place, message string) {
	if at.Message = message; !r.noted[at] {
		r.noted[at] = true
		r.notes = append(r.notes, at)
	}
}

// addUnlessCluster adds a note that holds of rules which each Envoy counts for itself.
func (r *reader) addUnlessCluster(at place, message string) {
	if !r.cluster {
		r.add(at, message)
	}
}

// of is the object that a message was decoded from, or the value of its field if it has it.
func (r *reader) of(m any, field string) origin {
	o := r.origins[m]
	o.path = join(o.path, field)
	if n := fieldOf(o.node, field); n != nil {
		o.node = n
	}
	return o
}

// at is the place of a message's field, or of the message that lacks it.
func (r *reader) at(m any, field string) place {
	o := r.of(m, field)
	return o.in.placeOf(o.node)
}

// note adds a note about a field of a decoded message.
func (r *reader) note(m any, field, text string) { r.add(r.at(m, field), text) }

// failField makes a field of a decoded message a problem.
func (r *reader) failField(m any, field, message string) {
	o := r.of(m, field)
	o.in.fail(o.node, o.path, message)
}

func (in *source) placeOf(n *policy.Node) place {
	return place{File: in.file, Line: n.Line, Column: n.Column}
}

// fail adds a problem, one for each node: the first is the cause of the others.
func (in *source) fail(n *policy.Node, path, message string) {
	if !in.failed[n] {
		in.failed[n] = true
		at := in.placeOf(n)
		at.Path, at.Message = path, message
		in.problems = append(in.problems, at)
	}
}

// field is one that a message of Envoy, or a struct, has.
type field struct {
	skipped bool
	note    string // why the import makes nothing of it
	isList  bool
	clash   func() string // the field that is given and does not go with it
	object  func() any    // makes the object, or the next one of a list; nil for fields of scalars
	isText  bool
	want    func() string
	set     func(json []byte) error // sets a scalar, or adds one to a list
}

// fieldsOf lists the fields of a message by the names that a file may have.
func fieldsOf(m any) map[string]*field {
	known := map[string]*field{}
	of, isMessage := m.(proto.Message)
	if !isMessage {
		addFields(known, reflect.ValueOf(m).Elem())
		return known
	}
	for i := range of.ProtoReflect().Descriptor().Fields().Len() {
		fd := of.ProtoReflect().Descriptor().Fields().Get(i)
		f := fieldOfMessage(of.ProtoReflect(), fd)
		known[fd.TextName()], known[fd.JSONName()] = f, f
	}
	return known
}

func fieldOfMessage(m protoreflect.Message, fd protoreflect.FieldDescriptor) *field {
	f := &field{isList: fd.IsList(), isText: fd.Kind() == protoreflect.StringKind, want: func() string { return wanted(fd) }}
	f.note, f.skipped = skipped(fd)
	f.clash = func() string {
		if one := fd.ContainingOneof(); one != nil && m.WhichOneof(one) != nil {
			return string(m.WhichOneof(one).Name())
		}
		return ""
	}
	if isMessage(fd) {
		f.object = func() any {
			if fd.IsList() {
				return m.Mutable(fd).List().AppendMutable().Message().Interface()
			}
			return m.Mutable(fd).Message().Interface()
		}
	}
	f.set = func(text []byte) error {
		if fd.IsList() {
			text = slices.Concat([]byte("["), text, []byte("]"))
		}
		one := m.New().Interface()
		err := protojson.Unmarshal(slices.Concat([]byte(`{"`+string(fd.Name())+`":`), text, []byte("}")), one)
		if err == nil {
			proto.Merge(m.Interface(), one)
		}
		return err
	}
	return f
}

// isMessage reports whether a field holds messages that are objects in JSON.
func isMessage(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().ParentFile().Package() != "google.protobuf"
}

// addFields adds the fields of a struct, by their tags: "yaml" is the name,
// "note" says why the import makes nothing of the field.
func addFields(known map[string]*field, v reflect.Value) {
	for i := range v.NumField() {
		tag, as := v.Type().Field(i).Tag, v.Field(i)
		f := &field{isText: as.Kind() == reflect.String, want: func() string { return wantedKinds[as.Kind().String()] }}
		f.note, f.skipped = tag.Lookup("note")
		switch as.Kind() {
		case reflect.Pointer:
			f.object = func() any {
				as.Set(reflect.New(as.Type().Elem()))
				return as.Interface()
			}
		case reflect.Slice:
			f.isList = true
			f.object = func() any {
				one := reflect.New(as.Type().Elem().Elem())
				as.Set(reflect.Append(as, one))
				return one.Interface()
			}
		default:
			f.set = func(text []byte) error { return json.Unmarshal(text, as.Addr().Interface()) }
		}
		known[tag.Get("yaml")] = f
	}
}

// decode decodes an object, scalar by scalar, so that every problem has its
// place. Of fields that are not known those that resemble one are typos, and
// the rest is noted.
func (in *source) decode(n *policy.Node, path string, m any) {
	in.origins[m] = origin{in, n, path}
	if n.Kind != policy.Object {
		in.fail(n, path, "must be an object, not "+kindNames[n.Kind])
		return
	}
	fields := fieldsOf(m)
	seen, unknown := map[*field]bool{}, map[string]bool{}
	for _, given := range n.Fields {
		path, at := join(path, given.Name), &policy.Node{Line: given.Line, Column: given.Column}
		f := fields[given.Name]
		near := ""
		if f == nil && !unknown[given.Name] {
			near = message.Nearest(given.Name, slices.Sorted(maps.Keys(fields)))
		}
		switch {
		case given.Name == "@type":
		case near != "":
			in.fail(at, path, `unknown field: did you mean "`+near+`"?`)
		case f != nil && seen[f] || unknown[given.Name]:
			in.fail(at, path, "is given twice: keep one")
		case f == nil:
			unknown[given.Name] = true
			in.add(in.placeOf(at), path+": the import does not know this field and made nothing of it")
		case given.Value.Kind != policy.Null:
			in.field(given, path, f)
		}
		seen[f] = f != nil
	}
}

// field decodes the value of a field.
func (in *source) field(given policy.Field, path string, f *field) {
	n := given.Value
	item := func(n *policy.Node, path string) {
		if f.object != nil {
			in.decode(n, path, f.object())
		} else {
			in.scalar(n, path, f)
		}
	}
	switch {
	case f.skipped && f.note != "" && (n.Kind != policy.Bool || n.Text == "true"):
		in.add(in.placeOf(n), given.Name+": "+f.note)
	case f.skipped:
	case f.clash != nil && f.clash() != "":
		in.fail(n, path, "does not go with "+f.clash()+": keep one of the two")
	case f.isList && n.Kind != policy.List:
		in.fail(n, path, "must be a list, not "+kindNames[n.Kind])
	case f.isList:
		for i := range n.Items {
			item(n.Items[i], path+"["+strconv.Itoa(i)+"]")
		}
	default:
		item(n, path)
	}
}

// scalar decodes one scalar. Numbers, true and false are text where text is wanted.
func (in *source) scalar(n *policy.Node, path string, f *field) {
	switch {
	case strings.ContainsFunc(n.Text, unicode.IsControl):
		in.fail(n, path, "holds a control character, and a policy may hold none")
		return
	case f.isText && (n.Kind == policy.Number || n.Kind == policy.Bool):
		n = &policy.Node{Kind: policy.String, Text: n.Text, Line: n.Line, Column: n.Column}
	}
	if err := f.set(policy.AppendJSON(nil, n)); err != nil {
		shown := kindNames[n.Kind]
		if n.Text != "" || n.Kind == policy.String {
			shown = strconv.Quote(clip(n.Text, 100))
		}
		in.fail(n, path, "must be "+f.want()+", not "+shown)
	}
}

// wanted says which values a field of Envoy takes.
func wanted(fd protoreflect.FieldDescriptor) string {
	if m := fd.Message(); m != nil {
		if m.Name() == "Duration" {
			return "a duration in seconds, such as 60s"
		}
		fd = m.Fields().ByName("value") // of a wrapper
	}
	if e := fd.Enum(); e != nil {
		var names []string
		for i := range e.Values().Len() {
			names = append(names, string(e.Values().Get(i).Name()))
		}
		if len(names) > 5 {
			return "one of Envoy's " + string(e.Name())
		}
		return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
	}
	if want := wantedKinds[fd.Kind().String()]; want != "" {
		return want
	}
	return "a number"
}

// wantedKinds are the kinds of values by their names in protocol buffers and Go.
var wantedKinds = map[string]string{
	"string": "text", "bool": "true or false",
	"uint32": "a whole number from 0 to 4294967295", "uint64": "a whole number from 0",
}

var kindNames = map[policy.Kind]string{
	policy.Null: "nothing", policy.Bool: "true or false", policy.Number: "a number",
	policy.String: "text", policy.List: "a list", policy.Object: "an object",
}

func join(path, field string) string { return strings.Trim(path+"."+field, ".") }
