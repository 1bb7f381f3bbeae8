package testfile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// field is one row of an object's table. Reading, the schema and the reference use the same row.
type field[T any] struct {
	name  string
	shape policy.Shape
	text  string                                                      // what the field means
	read  func(r *reader, n *policy.Node, shape policy.Shape, out *T) // shape is the row's
}

// object is the table of an object that is read into a T, in the table's order.
type object[T any] struct {
	name   string
	fields []field[T]
}

// has reports whether the object has a field of this name.
func (o *object[T]) has(name string) bool {
	return slices.ContainsFunc(o.fields, func(f field[T]) bool { return f.name == name })
}

// Schema lists every object of the format, the whole file first, and what each field means, by
// "OBJECT.FIELD".
func Schema() (objects []policy.ObjectSchema, texts map[string]string) {
	texts = map[string]string{}
	objects = []policy.ObjectSchema{
		schemaOf(fileObject, texts), schemaOf(testObject, texts), schemaOf(stepObject, texts),
		schemaOf(requestObject, texts), schemaOf(answerObject, texts), schemaOf(counterObject, texts),
		schemaOf(setObject, texts), schemaOf(expectObject, texts), schemaOf(ruleObject, texts),
		schemaOf(windowObject, texts),
	}
	return objects, texts
}

func schemaOf[T any](o *object[T], texts map[string]string) policy.ObjectSchema {
	schema := policy.ObjectSchema{Name: o.name}
	for _, f := range o.fields {
		schema.Fields = append(schema.Fields, policy.FieldSchema{Name: f.name, Shape: f.shape})
		texts[o.name+"."+f.name] = f.text
	}
	return schema
}

// maxProblems bounds what is said about a file that is wrong everywhere.
const maxProblems = 100

// reader collects problems while the tables are read.
type reader struct {
	doc    *policy.Node
	file   *File
	open   func(name string) ([]byte, error)
	format []policy.ObjectSchema // is Schema: Go allows no table that leads back to itself

	running map[string]bool // requests of the test that is read, which no step has answered yet

	problems []problem
	other    policyfile.Errors // of the policy
}

type problem struct {
	at           policy.Place
	line, column int
	name         string // of a field that is wrong itself, in the object at
	message      string
}

// found are the problems by their places.
func (r *reader) found() policyfile.Errors {
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	var places []policy.Place
	for i := range r.problems {
		places = append(places, r.problems[i].at)
	}
	paths := r.doc.Paths(places)
	var list policyfile.Errors
	for i, p := range r.problems {
		if i == maxProblems {
			break
		}
		path := strings.TrimPrefix(paths[i]+p.name, ".")
		list = append(list, policyfile.Problem{
			File: r.file.Name, Line: p.line, Column: p.column, Path: path, Message: p.message,
		})
	}
	return append(list, r.other...)
}

// fail reports a value.
func (r *reader) fail(n *policy.Node, message string) {
	r.problems = append(r.problems, problem{
		at: policy.Place{Node: n}, line: n.Line, column: n.Column, message: message,
	})
}

// failAs reports a value with a sentence that policies have too.
func (r *reader) failAs(n *policy.Node, code policy.Code, want policy.Shape, args ...string) {
	r.fail(n, message.Of(&policy.Problem{Code: code, Node: n, Want: want, Args: args}))
}

// failField reports the name of a field.
func (r *reader) failField(n *policy.Node, f *policy.Field, message string) {
	r.problems = append(r.problems, problem{
		at: policy.Place{Node: n}, line: f.Line, column: f.Column, name: "." + f.Name, message: message,
	})
}

// isKnownVersion holds back the other problems of a file in another version.
func (r *reader) isKnownVersion() bool {
	n := r.doc.Member("version")
	if n == nil {
		return true
	}
	version, isNumber := n.Integer()
	if isNumber && version != Version {
		r.fail(n, message.Describe(n)+" is not known to this build, which reads version "+strconv.Itoa(Version))
	}
	return !isNumber || version == Version
}

// readObject reads the fields of n by their table. It reports whether n is an object at all.
func readObject[T any](r *reader, n *policy.Node, o *object[T], out *T) bool {
	if n.Kind != policy.Object {
		r.failAs(n, policy.WrongValue, policy.Shape{Form: policy.FormObject, Of: o.name})
		return false
	}
	first := map[string]*policy.Field{}
	for i := range n.Fields {
		f := &n.Fields[i]
		switch {
		case first[f.Name] != nil:
			r.failField(n, f, "appears twice, first in line "+strconv.Itoa(first[f.Name].Line)+": keep one")
			continue
		case !o.has(f.Name):
			r.failField(n, f, message.UnknownField(f.Name, o.name, r.format, homes))
		}
		first[f.Name] = f
	}
	for _, known := range o.fields {
		f := first[known.name]
		switch {
		case f == nil && known.shape.Required:
			want := message.Shape(known.shape)
			r.problems = append(r.problems, problem{
				at: policy.Place{Node: n}, line: n.Line, column: n.Column, name: "." + known.name,
				message: "is missing: it must be " + want,
			})
		case f == nil:
		case f.Value.Kind == policy.Null:
			r.failAs(f.Value, policy.WrongValue, known.shape)
		default:
			known.read(r, f.Value, known.shape, out)
		}
	}
	return true
}

// readValid is readObject, and reports whether nothing in n is wrong: only then can its fields be checked
// together.
func readValid[T any](r *reader, n *policy.Node, o *object[T], out *T) bool {
	before := len(r.problems)
	return readObject(r, n, o, out) && len(r.problems) == before
}

// homes are the objects whose fields people put in the wrong place.
var homes = []message.Home{
	{Object: "tests", Place: "at the top of the file"},
	{Object: "step", Place: "in a step, an item of steps"},
	{Object: "test_request", Place: "in request"},
	{Object: "test_answer", Place: "in answer"},
	{Object: "expect", Place: "in expect, in a step"},
	{Object: "expected_rule", Place: "in a rule of rules, in expect"},
}

// text reads a text that is not empty.
func (r *reader) text(n *policy.Node) (string, bool) {
	switch {
	case n.Kind != policy.String:
		r.failAs(n, policy.WrongValue, policy.Shape{Form: policy.FormText})
		return "", false
	case n.Text == "":
		r.failAs(n, policy.EmptyValue, policy.Shape{})
		return "", false
	}
	return n.Text, true
}

// name reads a text that names something, as policies have names.
func (r *reader) name(n *policy.Node) string {
	s, _ := r.text(n)
	switch {
	case strings.ContainsFunc(s, unicode.IsControl):
		r.failAs(n, policy.ControlChar, nameShape)
	case len(s) > policy.MaxNameBytes:
		r.failAs(n, policy.TooLong, nameShape, strconv.Itoa(policy.MaxNameBytes))
	case strings.TrimSpace(s) != s:
		r.failAs(n, policy.OuterSpace, nameShape)
	}
	return s
}

// anyText reads a text that may be empty.
func (r *reader) anyText(n *policy.Node) string {
	if n.Kind != policy.String {
		r.failAs(n, policy.WrongValue, policy.Shape{Form: policy.FormText})
	}
	return n.Text
}

// word reads one of the shape's words.
func (r *reader) word(n *policy.Node, shape policy.Shape) string {
	if n.Kind != policy.String || !slices.Contains(shape.Words, n.Text) {
		r.failAs(n, policy.WrongValue, shape)
	}
	return n.Text
}

// integer reads a number within the shape's bounds. If it is not, the result is the lowest one.
func (r *reader) integer(n *policy.Node, shape policy.Shape) int64 {
	number, ok := n.Integer()
	if !ok || number < shape.Min || number > shape.Max {
		r.failAs(n, policy.WrongValue, shape)
		return shape.Min
	}
	return number
}

func (r *reader) boolean(n *policy.Node) bool {
	if n.Kind != policy.Bool {
		r.failAs(n, policy.WrongValue, policy.Shape{Form: policy.FormBool})
	}
	return n.Text == "true"
}

// duration reads nanoseconds.
func (r *reader) duration(n *policy.Node) int64 {
	want := policy.Shape{Form: policy.FormDuration}
	if n.Kind != policy.String {
		r.failAs(n, policy.WrongValue, want)
		return 0
	}
	ns, err := policy.ParseDuration(n.Text)
	if err != nil {
		r.failAs(n, policy.BadDuration, want)
	}
	return ns
}

// each calls read with every item of a list.
func (r *reader) each(n *policy.Node, shape policy.Shape, read func(item *policy.Node)) {
	count := int64(len(n.Items))
	switch {
	case n.Kind != policy.List:
		r.failAs(n, policy.WrongValue, shape)
	case count < shape.Min:
		r.failAs(n, policy.EmptyValue, shape)
	case shape.Max > 0 && count > shape.Max:
		r.failAs(n, policy.TooMany, shape, strconv.FormatInt(shape.Max, 10))
	default:
		for _, item := range n.Items {
			read(item)
		}
	}
}

// members calls read with every field of an object whose names are not ours.
func (r *reader) members(n *policy.Node, shape policy.Shape, read func(name string, f *policy.Field)) {
	if n.Kind != policy.Object {
		r.failAs(n, policy.WrongValue, shape)
		return
	}
	seen := map[string]int{}
	for i := range n.Fields {
		f := &n.Fields[i]
		if line, twice := seen[f.Name]; twice {
			r.failField(n, f, "appears twice, first in line "+strconv.Itoa(line)+": keep one")
			continue
		}
		seen[f.Name] = f.Line
		read(f.Name, f)
	}
}

// rejectEmpty rejects an object without fields, by which nothing could ever fail. It reports whether n is one.
func (r *reader) rejectEmpty(n *policy.Node) bool {
	isEmpty := n.Kind == policy.Object && len(n.Fields) == 0
	if isEmpty {
		r.failAs(n, policy.EmptyValue, policy.Shape{})
	}
	return isEmpty
}

// rule is a rule of the policy, or nil if the policy is not valid or has no such rule.
func (r *reader) rule(name string) *policy.Rule {
	if r.file.policy == nil {
		return nil
	}
	for i := range r.file.policy.Rules {
		if rule := &r.file.policy.Rules[i]; rule.Name == name {
			return rule
		}
	}
	return nil
}

// ruleNamed is rule, and reports a name that no rule of the policy has.
func (r *reader) ruleNamed(n *policy.Node, name string) *policy.Rule {
	rule := r.rule(name)
	if rule != nil || r.file.policy == nil { // without a policy, that is the problem
		return rule
	}
	var names []string
	for i := range r.file.policy.Rules {
		names = append(names, r.file.policy.Rules[i].Name)
	}
	advice := "the policy has no rules"
	near := message.Nearest(name, names)
	switch {
	case near != "":
		advice = "did you mean " + strconv.Quote(near) + "?"
	case len(names) > 0:
		const most = 10
		advice = "its rules are " + strings.Join(names[:min(most, len(names))], ", ")
		if len(names) > most {
			advice += " and " + strconv.Itoa(len(names)-most) + " more"
		}
	}
	r.fail(n, "the policy has no rule "+strconv.Quote(policy.Clip(name))+": "+advice)
	return nil
}
