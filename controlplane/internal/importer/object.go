package importer

import (
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// source is one file while it is read. Its problems make it unreadable; what
// it has and we have not goes to the notes.
type source struct {
	file     string
	problems policyfile.Errors
	failed   map[policyfile.Problem]bool
	notes    *notes
	objects  []*object
	byNode   map[*policy.Node]*object
}

// open parses a file.
func open(f File, n *notes) (*source, *policy.Node, error) {
	if isBlank(f.Text) {
		return nil, nil, policyfile.Errors{{File: f.Name, Message: "the file is empty"}}
	}
	root, err := policyfile.Parse(f.Name, f.Text)
	if err != nil {
		return nil, nil, err
	}
	if root.Kind != policy.Object {
		return nil, nil, policyfile.Errors{{File: f.Name, Line: root.Line, Column: root.Column, Message: "must be an object, not " + kindNames[root.Kind]}}
	}
	return &source{file: f.Name, notes: n, byNode: map[*policy.Node]*object{}, failed: map[policyfile.Problem]bool{}}, root, nil
}

// close notes all fields that nobody asked for and returns the problems.
func (s *source) close() error {
	for _, o := range s.objects {
		for _, f := range o.node.Fields {
			if !o.used[f.Name] {
				s.notes.add(place{s.file, f.Line, f.Column}, o.path+f.Name+": this import does not know the field: nothing was made of it")
			}
		}
	}
	if len(s.problems) > 0 {
		return s.problems
	}
	return nil
}

var kindNames = map[policy.Kind]string{
	policy.Null: "nothing", policy.Bool: "true or false", policy.Number: "a number",
	policy.String: "text", policy.List: "a list", policy.Object: "an object",
}

// object is an object of the source that remembers what was asked of it.
// A nil object is empty.
type object struct {
	node  *policy.Node
	in    *source
	path  string // "descriptors[0]." or empty
	used  map[string]bool
	index map[string]*policy.Field // by name as written, and in snake case
	place place

	heeded bool
}

// object opens a node that must be an object, once; nil stands for an absent
// one.
func (s *source) object(n *policy.Node, path string) *object {
	o := s.quiet(n, path)
	o.heed()
	return o
}

// heed makes fields of the object that nobody asks for be noted.
func (o *object) heed() {
	if o != nil && !o.heeded {
		o.heeded = true
		o.in.objects = append(o.in.objects, o)
	}
}

// quiet opens an object that may turn out to be none of our business.
func (s *source) quiet(n *policy.Node, path string) *object {
	if n == nil || n.Kind == policy.Null {
		return nil
	}
	if n.Kind != policy.Object {
		s.fail(n, path, "must be an object, not "+kindNames[n.Kind])
		return nil
	}
	if o := s.byNode[n]; o != nil {
		return o
	}
	if path != "" {
		path += "."
	}
	o := &object{node: n, in: s, path: path, used: map[string]bool{}, place: place{s.file, n.Line, n.Column}}
	seen := map[string]bool{}
	for _, f := range n.Fields {
		name := snake(f.Name)
		if seen[name] {
			s.fail(&policy.Node{Line: f.Line, Column: f.Column}, path+f.Name, "is given twice: keep one")
		}
		seen[name] = true
	}
	o.ignore("@type")
	s.byNode[n] = o
	return o
}

func (s *source) fail(n *policy.Node, path, message string) {
	p := policyfile.Problem{File: s.file, Line: n.Line, Column: n.Column, Path: path, Message: message}
	if !s.failed[p] {
		s.failed[p] = true
		s.problems = append(s.problems, p)
	}
}

// snake writes a name as protocol buffers' YAML does: their JSON says
// maxTokens for max_tokens.
func snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' && b.Len() > 0 {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

// get returns a field's value, nil if it is absent or null.
func (o *object) get(name string) *policy.Node {
	if o == nil {
		return nil
	}
	f := o.field(name)
	if f == nil {
		return nil
	}
	o.used[f.Name] = true
	if f.Value.Kind == policy.Null {
		return nil
	}
	return f.Value
}

// field finds the first field of a name. An object is asked for many.
func (o *object) field(name string) *policy.Field {
	if o.index == nil {
		o.index = make(map[string]*policy.Field, len(o.node.Fields))
		for i := range o.node.Fields {
			f := &o.node.Fields[i]
			for _, key := range []string{f.Name, snake(f.Name)} {
				if o.index[key] == nil {
					o.index[key] = f
				}
			}
		}
	}
	return o.index[name]
}

// at is the place of a field's value, or of the object.
func (o *object) at(name string) place {
	if n := o.get(name); n != nil {
		return place{o.in.file, n.Line, n.Column}
	}
	return o.place
}

func (o *object) has(name string) bool { return o.get(name) != nil }

// ignore marks fields that say nothing about limits.
func (o *object) ignore(names ...string) {
	for _, name := range names {
		o.get(name)
	}
}

// ignoreAll marks every field.
func (o *object) ignoreAll() {
	for _, f := range o.fields() {
		o.used[f.Name] = true
	}
}

// without notes fields, if they are there and not false, that have no equal
// here.
func (o *object) without(message string, names ...string) {
	for _, name := range names {
		if n := o.get(name); n != nil && (n.Kind != policy.Bool || n.Text == "true") {
			o.note(name, name+": "+message)
		}
	}
}

// note notes something about a field.
func (o *object) note(name, message string) {
	o.in.notes.add(o.at(name), message)
}

// fail makes a field a problem.
func (o *object) fail(name, message string) {
	n := o.get(name)
	if n == nil {
		n = o.node
	}
	o.in.fail(n, o.path+name, message)
}

// text returns a field's text; numbers are taken as they are written.
func (o *object) text(name string) string {
	n := o.get(name)
	switch {
	case n == nil:
		return ""
	case strings.ContainsFunc(n.Text, unicode.IsControl):
		o.fail(name, "holds a control character, which nothing in a policy may")
		return ""
	case n.Kind == policy.String, n.Kind == policy.Number, n.Kind == policy.Bool:
		return n.Text
	}
	o.fail(name, "must be text, not "+kindNames[n.Kind])
	return ""
}

func (o *object) boolean(name string, absent bool) bool {
	n := o.get(name)
	if n == nil {
		return absent
	}
	if n.Kind != policy.Bool {
		o.fail(name, "must be true or false, not "+kindNames[n.Kind])
		return absent
	}
	return n.Text == "true"
}

// integer returns a field's whole number, or absent.
func (o *object) integer(name string, absent uint64) uint64 {
	n := o.get(name)
	if n == nil {
		return absent
	}
	v, err := strconv.ParseUint(n.Text, 10, 64)
	if n.Kind != policy.Number && n.Kind != policy.String || err != nil || v > math.MaxUint32 {
		o.fail(name, "must be a whole number from 0 to 4294967295, not "+strconv.Quote(n.Text))
		return absent
	}
	return v
}

func (o *object) child(name string) *object {
	if o == nil {
		return nil
	}
	return o.in.object(o.get(name), o.path+name)
}

// items returns the nodes of a list.
func (o *object) items(name string) []*policy.Node {
	n := o.get(name)
	if n == nil {
		return nil
	}
	if n.Kind != policy.List {
		o.fail(name, "must be a list, not "+kindNames[n.Kind])
		return nil
	}
	return n.Items
}

// children returns the objects of a list.
func (o *object) children(name string) []*object {
	var list []*object
	for i, n := range o.items(name) {
		if c := o.in.object(n, o.path+name+"["+strconv.Itoa(i)+"]"); c != nil {
			list = append(list, c)
		} else if n.Kind == policy.Null {
			o.in.fail(n, o.path+name+"["+strconv.Itoa(i)+"]", "must be an object, not nothing")
		}
	}
	return list
}

func (o *object) texts(name string) []string {
	var list []string
	for _, n := range o.items(name) {
		if n.Kind == policy.String || n.Kind == policy.Number {
			list = append(list, n.Text)
		} else {
			o.in.fail(n, o.path+name, "must be a list of texts")
		}
	}
	return list
}
