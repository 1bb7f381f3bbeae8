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

// source is one file while it is decoded.
type source struct {
	file    string
	root    *policy.Node
	notes   *notes
	failed  map[*policy.Node]bool
	origins map[any]origin                 // of each decoded message, by its pointer
	decoded map[*policy.Node]proto.Message // what decodeOnce made
}

// origin is the object that a message was decoded from.
type origin struct {
	node *policy.Node
	path string // "descriptors[0]", or empty
}

// open parses a file; of a configuration of Envoy it takes parts for the whole.
func open(f File, n *notes) (*source, error) {
	root, err := parse(f)
	if err != nil {
		return nil, err
	}
	in := &source{file: f.Name, root: root, notes: n, failed: map[*policy.Node]bool{}, origins: map[any]origin{},
		decoded: map[*policy.Node]proto.Message{}}
	if root.Kind != policy.Object && root.Kind != policy.List {
		in.fail(root, "", "must be an object, not "+kindNames[root.Kind])
	}
	return in, n.err()
}

// fail adds a problem, one for each node: the first is the cause of the others.
func (in *source) fail(n *policy.Node, path, message string) {
	if !in.failed[n] {
		in.failed[n] = true
		in.notes.problems = append(in.notes.problems, policyfile.Problem{File: in.file, Line: n.Line, Column: n.Column, Path: path,
			Message: message})
	}
}

// of is the object that a message was decoded from, or the value of its field if it has it.
func (in *source) of(m any, field string) origin {
	o := in.origins[m]
	if n := fieldOf(o.node, field); n != nil {
		return origin{n, join(o.path, field)}
	}
	return origin{o.node, join(o.path, field)}
}

// failField makes a field of a decoded message a problem.
func (in *source) failField(m any, field, message string) {
	o := in.of(m, field)
	in.fail(o.node, o.path, message)
}

// note adds a note about a field of a decoded message.
func (in *source) note(m any, field, text string) { in.notes.add(in.at(m, field), text) }

// at is the place of a message's field, or of the message that lacks it.
func (in *source) at(m any, field string) place { return in.placeOf(in.of(m, field).node) }

func (in *source) placeOf(n *policy.Node) place {
	return place{File: in.file, Line: n.Line, Column: n.Column}
}

// message decodes an object by a type of Envoy, each scalar with protojson, so
// that every problem has its place.
func (in *source) message(n *policy.Node, path string, m protoreflect.Message) {
	in.origins[m.Interface()] = origin{n, path}
	known := map[string]protoreflect.FieldDescriptor{}
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		known[fd.TextName()], known[fd.JSONName()] = fd, fd
	}
	eachField(in, n, path, known, func(fd protoreflect.FieldDescriptor, v *policy.Node, path string) {
		one := fd.ContainingOneof()
		switch note, skip := skipped(fd); {
		case skip:
			in.noteSkipped(v, string(fd.Name()), note)
		case one != nil && m.WhichOneof(one) != nil:
			in.fail(v, path, "does not go with "+string(m.WhichOneof(one).Name())+": keep one of the two")
		case fd.IsList():
			in.items(v, path, func(item *policy.Node, path string) {
				if isMessage(fd) {
					in.message(item, path, m.Mutable(fd).List().AppendMutable().Message())
				} else {
					in.scalar(item, path, m, fd)
				}
			})
		case isMessage(fd):
			in.message(v, path, m.Mutable(fd).Message())
		default:
			in.scalar(v, path, m, fd)
		}
	})
}

// isMessage reports whether a field holds messages that are objects in JSON.
func isMessage(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().ParentFile().Package() != "google.protobuf"
}

// scalar decodes a value into a field, or adds it to a list.
func (in *source) scalar(n *policy.Node, path string, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	in.leaf(n, path, fd.Kind() == protoreflect.StringKind, wanted(fd), func(text []byte) error {
		if fd.IsList() {
			text = slices.Concat([]byte("["), text, []byte("]"))
		}
		one := m.New().Interface()
		err := protojson.Unmarshal(slices.Concat([]byte(`{"`+string(fd.Name())+`":`), text, []byte("}")), one)
		if err == nil {
			proto.Merge(m.Interface(), one)
		}
		return err
	})
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

// structure decodes an object into a struct, by the tags of its fields: "yaml"
// is the name, "note" says why the import makes nothing of the field.
func (in *source) structure(n *policy.Node, path string, v reflect.Value) {
	in.origins[v.Addr().Interface()] = origin{n, path}
	known := map[string]int{}
	for i := range v.NumField() {
		known[v.Type().Field(i).Tag.Get("yaml")] = i
	}
	eachField(in, n, path, known, func(i int, value *policy.Node, path string) {
		tag, f := v.Type().Field(i).Tag, v.Field(i)
		switch note, skip := tag.Lookup("note"); {
		case skip:
			in.noteSkipped(value, tag.Get("yaml"), note)
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
			in.structure(value, path, f.Elem())
		case f.Kind() == reflect.Slice:
			in.items(value, path, func(item *policy.Node, path string) {
				one := reflect.New(f.Type().Elem().Elem())
				f.Set(reflect.Append(f, one))
				in.structure(item, path, one.Elem())
			})
		default:
			in.leaf(value, path, f.Kind() == reflect.String, wantedKinds[f.Kind().String()], func(text []byte) error {
				return json.Unmarshal(text, f.Addr().Interface())
			})
		}
	})
}

// eachField calls set for the fields of an object that are known. Of the others
// those that resemble one are typos, and the rest is noted.
func eachField[F comparable](in *source, n *policy.Node, path string, fields map[string]F,
	set func(f F, v *policy.Node, path string)) {
	if n.Kind != policy.Object {
		in.fail(n, path, "must be an object, not "+kindNames[n.Kind])
		return
	}
	seen, unknown := map[F]bool{}, map[string]bool{}
	for _, field := range n.Fields {
		path := join(path, field.Name)
		f, known := fields[field.Name]
		near := ""
		if !known && !unknown[field.Name] {
			near = message.Nearest(field.Name, slices.Sorted(maps.Keys(fields)))
		}
		switch {
		case field.Name == "@type":
		case near != "":
			in.fail(&policy.Node{Line: field.Line, Column: field.Column}, path, `unknown field: did you mean "`+near+`"?`)
		case known && seen[f] || unknown[field.Name]:
			in.fail(&policy.Node{Line: field.Line, Column: field.Column}, path, "is given twice: keep one")
		case !known:
			unknown[field.Name] = true
			in.notes.add(place{File: in.file, Line: field.Line, Column: field.Column}, path+": the import does not know this field and made "+
				"nothing of it")
		case field.Value.Kind != policy.Null:
			set(f, field.Value, path)
		}
		if known {
			seen[f] = true
		}
	}
}

// items calls each for the items of a list.
func (in *source) items(n *policy.Node, path string, each func(item *policy.Node, path string)) {
	if n.Kind != policy.List {
		in.fail(n, path, "must be a list, not "+kindNames[n.Kind])
	}
	for i, item := range n.Items {
		each(item, path+"["+strconv.Itoa(i)+"]")
	}
}

// noteSkipped notes a field of which nothing is made, unless it is false.
func (in *source) noteSkipped(n *policy.Node, name, note string) {
	if note != "" && (n.Kind != policy.Bool || n.Text == "true") {
		in.notes.add(in.placeOf(n), name+": "+note)
	}
}

// leaf decodes one scalar. Numbers, true and false are text where text is wanted.
func (in *source) leaf(n *policy.Node, path string, text bool, want string, decode func(text []byte) error) {
	switch {
	case strings.ContainsFunc(n.Text, unicode.IsControl):
		in.fail(n, path, "holds a control character, and a policy may hold none")
		return
	case text && (n.Kind == policy.Number || n.Kind == policy.Bool):
		n = &policy.Node{Kind: policy.String, Text: n.Text, Line: n.Line, Column: n.Column}
	}
	if err := decode(policy.AppendJSON(nil, n)); err != nil {
		in.fail(n, path, "must be "+want+", not "+shown(n))
	}
}

var kindNames = map[policy.Kind]string{
	policy.Null: "nothing", policy.Bool: "true or false", policy.Number: "a number",
	policy.String: "text", policy.List: "a list", policy.Object: "an object",
}

// shown shows a value in a message.
func shown(n *policy.Node) string {
	if n.Kind == policy.List || n.Kind == policy.Object || n.Kind == policy.Null {
		return kindNames[n.Kind]
	}
	return strconv.Quote(clip(n.Text, 100))
}

func join(path, field string) string {
	return strings.Trim(path+"."+field, ".")
}
