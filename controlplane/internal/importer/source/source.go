// Package source opens the files that are imported, finds fields in them, and says where they are. A reader that needs
// another tree, such as the file of an Envoy for a part of one, builds it with NewObject and the others behind it.
//
// A field has one name here, that of protocol buffers: FieldOf(n, "rate_limits") also finds rateLimits, as
// the JSON of protocol buffers and Kubernetes write it. A field that is null is absent.
package source

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// File is a configuration to import; the name is for messages.
type File struct {
	Name string
	Text []byte
}

// Document is one file. Its root is its only document. A file of several is read as one whose only document is a list
// of them.
type Document struct {
	File string
	Root *policy.Node
}

// Resource is an object of a file, and where it stands.
type Resource struct {
	*policy.Node
	At Place
}

// Top is the place of what the file begins with.
func (in *Document) Top() Place { return Place{File: in.File} }

// Open parses a file.
func Open(f File) (*Document, error) {
	root, err := parse(f)
	if err != nil {
		return nil, err
	}
	in := &Document{File: f.Name, Root: root}
	if root.Kind != policy.Object && root.Kind != policy.List {
		return nil, policyfile.Errors{in.Top().Problem("must be an object, not " + message.Describe(root))}
	}
	return in, nil
}

// border separates the documents of a file, and blank is a document without anything.
var (
	border = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)
	blank  = regexp.MustCompile(`^(\s*(#.*)?(\n|$))*$`)
)

// maxDocuments bounds the work on a file, as each document is parsed with its lines in it. Blank ones are not.
const maxDocuments = 100

// parse parses a file: its document, or a list of them.
func parse(f File) (*policy.Node, error) {
	root := &policy.Node{Kind: policy.List}
	borders := append(border.FindAllIndex(f.Text, -1), []int{len(f.Text), len(f.Text)})
	begin, lines := 0, 0 // of the document, and before it
	for _, line := range borders {
		text := f.Text[begin:line[0]]
		if !blank.Match(text) {
			if len(root.Items) == maxDocuments {
				return nil, policyfile.Errors{{File: f.Name, Message: "there are more than " + strconv.Itoa(maxDocuments) +
					" documents in it: give those with limits"}}
			}
			// Behind as many blank lines, so that its lines have the numbers of the file.
			n, err := policyfile.Parse(f.Name, append(bytes.Repeat([]byte("\n"), lines), text...))
			if err != nil {
				return nil, err
			}
			root.Items = append(root.Items, n)
		}
		begin, lines = line[1], lines+bytes.Count(text, []byte("\n"))
	}
	switch len(root.Items) {
	case 0:
		return nil, policyfile.Errors{{File: f.Name, Message: "the file is empty"}}
	case 1:
		return root.Items[0], nil
	}
	return root, nil
}

// All are the items of a root that is a list, or the root alone.
func (in *Document) All() []*policy.Node {
	if in.Root.Kind == policy.List {
		return in.Root.Items
	}
	return []*policy.Node{in.Root}
}

// Resources are the documents of a file. A List of Kubernetes has those in it instead. Their places, for each file:
//
//	the file has                 Root           places of the resources
//	one document                 it             the file itself
//	two documents, or a list     list of both   [0], [1]
//	a List of two                the List       items[0], items[1]
//	a document, and such a List  list of both   [0], [1].items[0], [1].items[1]
func (in *Document) Resources() (list []Resource) {
	documents := []Resource{{in.Root, in.Top()}}
	if in.Root.Kind == policy.List {
		documents = itemsAt(in.Root, in.Top())
	}
	for _, d := range documents {
		items := FieldOf(d.Node, "items")
		if TextOf(d.Node, "kind") == "List" && items != nil {
			list = append(list, itemsAt(items, d.At.In("items"))...)
		} else {
			list = append(list, d)
		}
	}
	return list
}

// itemsAt are the items of a list at a place.
func itemsAt(n *policy.Node, at Place) (list []Resource) {
	for i, item := range n.Items {
		list = append(list, Resource{item, at.ItemAt(i)})
	}
	return list
}

// TrafficPolicy is the kind of the resources by which Envoy Gateway limits. Package gateway reads them, and
// package envoyfile leaves them to it.
const TrafficPolicy = "BackendTrafficPolicy"

// OfKind are the resources of a kind.
func (in *Document) OfKind(kind string) (list []Resource) {
	for _, r := range in.Resources() {
		if TextOf(r.Node, "kind") == kind {
			list = append(list, r)
		}
	}
	return list
}

// FieldOf is the value of an object's field by its name in protocol buffers, also where it is written as in their JSON;
// nil if it is absent or null. A path of names leads to a field of the field, and so on.
func FieldOf(n *policy.Node, path ...string) *policy.Node {
	for _, name := range path {
		if n == nil {
			break
		}
		isIt := func(f policy.Field) bool { return IsField(f.Name, name) && f.Value.Kind != policy.Null }
		i := slices.IndexFunc(n.Fields, isIt)
		if i < 0 {
			return nil
		}
		n = n.Fields[i].Value
	}
	return n
}

// TextOf is the text of such a field.
func TextOf(n *policy.Node, path ...string) string {
	if v := FieldOf(n, path...); v != nil {
		return v.Text
	}
	return ""
}

// ItemsOf are the items of such a field.
func ItemsOf(n *policy.Node, path ...string) []*policy.Node {
	if v := FieldOf(n, path...); v != nil {
		return v.Items
	}
	return nil
}

// IsField reports whether a field is written by its name in protocol buffers, rate_limits, or as in their JSON, where
// any case will do: rateLimits or RateLimits.
func IsField(written, name string) bool {
	return written == name || strings.EqualFold(written, strings.ReplaceAll(name, "_", ""))
}

// Walk visits a node and all nodes below it.
func Walk(n *policy.Node, visit func(n *policy.Node)) {
	visit(n)
	for _, item := range n.Items {
		Walk(item, visit)
	}
	for _, f := range n.Fields {
		Walk(f.Value, visit)
	}
}

// Contains reports whether an object in the tree is wanted.
func Contains(n *policy.Node, wants func(n *policy.Node) bool) bool {
	return n != nil && (wants(n) ||
		slices.ContainsFunc(n.Items, func(item *policy.Node) bool { return Contains(item, wants) }) ||
		slices.ContainsFunc(n.Fields, func(f policy.Field) bool { return Contains(f.Value, wants) }))
}

// Place is where something stands: a file, and a path or a line in it. In a file of Envoy paths start at the listener
// or at the routes: see readListener in package envoyfile.
type Place struct {
	File, Path string
	Line       int // 0 = unknown
}

// PlaceOf is the place of a directive of nginx.
func PlaceOf(d *nginxconf.Directive) Place { return Place{File: d.File, Path: d.Name, Line: d.Line} }

// In is the place of a field of the object at this place. It has no line, nor has an item: that was the object's.
func (p Place) In(name string) Place {
	return Place{File: p.File, Path: strings.Trim(p.Path+"."+name, ".")}
}

// Item is the place of an item of a field that is a list, in the object at this place.
func (p Place) Item(name string, i int) Place { return p.In(name).ItemAt(i) }

// ItemAt is the place of an item of the list at this place.
func (p Place) ItemAt(i int) Place {
	return Place{File: p.File, Path: p.Path + "[" + strconv.Itoa(i) + "]"}
}

// Problem is what is wrong at the place.
func (p Place) Problem(text string) policyfile.Problem {
	return policyfile.Problem{File: p.File, Line: p.Line, Path: p.Path, Message: text}
}

// NewObject has these fields.
func NewObject(with ...policy.Field) *policy.Node {
	return &policy.Node{Kind: policy.Object, Fields: with}
}

// Wrap makes an object with one field.
func Wrap(name string, value *policy.Node) *policy.Node { return NewObject(NewField(name, value)) }

// NewField is a field for NewObject.
func NewField(name string, value *policy.Node) policy.Field {
	return policy.Field{Name: name, Value: value}
}

// NewText is a text.
func NewText(s string) *policy.Node { return &policy.Node{Kind: policy.String, Text: s} }

// NewList has these items.
func NewList(items ...*policy.Node) *policy.Node {
	return &policy.Node{Kind: policy.List, Items: items}
}

// UsageError is about an option, with a hint that says what would be right. What is wrong in a file is a problem at a
// Place instead.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }
