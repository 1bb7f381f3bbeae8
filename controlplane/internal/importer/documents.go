package importer

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// source is one file: its document, or a list of its documents.
type source struct {
	file string
	root *policy.Node
}

// top is the place of what the file begins with.
func (in *source) top() place { return place{file: in.file} }

// open parses a file.
func (r *reader) open(f File) (*source, error) {
	root, err := parse(f)
	if err != nil {
		return nil, err
	}
	in := &source{file: f.Name, root: root}
	if root.Kind != policy.Object && root.Kind != policy.List {
		r.fail(in.top(), "must be an object, not "+message.Describe(root))
	}
	return in, r.err()
}

// border separates the documents of a file, and blank is a document without anything.
var (
	border = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)
	blank  = regexp.MustCompile(`^(\s*(#.*)?(\n|$))*$`)
)

// maxDocuments bounds the work on a file, as each document is parsed with its lines in it.
const maxDocuments = 100

// parse parses a file: its document, or a list of its documents.
func parse(f File) (*policy.Node, error) {
	root := &policy.Node{Kind: policy.List}
	borders := append(border.FindAllIndex(f.Text, -1), []int{len(f.Text), len(f.Text)})
	if len(borders) > maxDocuments {
		return nil, policyfile.Errors{{File: f.Name, Message: "there are more than " + strconv.Itoa(maxDocuments) +
			" documents in it: give those with limits"}}
	}
	begin := 0
	for _, line := range borders {
		text := f.Text[begin:line[0]]
		lines := strings.Count(string(f.Text[:begin]), "\n")
		begin = line[1]
		if blank.Match(text) {
			continue
		}
		n, err := policyfile.Parse(f.Name, append([]byte(strings.Repeat("\n", lines)), text...)) // the file's line numbers
		if err != nil {
			return nil, err
		}
		root.Items = append(root.Items, n)
	}
	switch len(root.Items) {
	case 0:
		return nil, policyfile.Errors{{File: f.Name, Message: "the file is empty"}}
	case 1:
		return root.Items[0], nil
	}
	return root, nil
}

// resources are the documents of a file, also those in a List of Kubernetes.
func resources(root *policy.Node) []*policy.Node {
	items := fieldOf(root, "items")
	switch {
	case root.Kind == policy.List:
		return root.Items
	case textOf(root, "kind") == "List" && items != nil:
		return items.Items
	}
	return []*policy.Node{root}
}

// ofKind are the resources of a kind.
func ofKind(root *policy.Node, kind string) (list []*policy.Node) {
	for _, n := range resources(root) {
		if textOf(n, "kind") == kind {
			list = append(list, n)
		}
	}
	return list
}

// fieldOf is the value of an object's field by its name in protocol buffers, also where it is
// written as in their JSON, or of a field in it, and so on; nil if it is absent or null.
func fieldOf(n *policy.Node, names ...string) *policy.Node {
	for _, name := range names {
		if n == nil {
			break
		}
		isIt := func(f policy.Field) bool { return isField(f.Name, name) && f.Value.Kind != policy.Null }
		i := slices.IndexFunc(n.Fields, isIt)
		if i < 0 {
			return nil
		}
		n = n.Fields[i].Value
	}
	return n
}

// textOf is the text of such a field.
func textOf(n *policy.Node, names ...string) string {
	if v := fieldOf(n, names...); v != nil {
		return v.Text
	}
	return ""
}

// itemsOf are the items of such a field.
func itemsOf(n *policy.Node, names ...string) []*policy.Node {
	if v := fieldOf(n, names...); v != nil {
		return v.Items
	}
	return nil
}

// isField reports whether a field is written in one of the two ways.
func isField(written, name string) bool {
	return written == name || strings.EqualFold(written, strings.ReplaceAll(name, "_", ""))
}

// contains reports whether an object in the tree is wanted.
func contains(n *policy.Node, wants func(n *policy.Node) bool) bool {
	return n != nil && (wants(n) ||
		slices.ContainsFunc(n.Items, func(item *policy.Node) bool { return contains(item, wants) }) ||
		slices.ContainsFunc(n.Fields, func(f policy.Field) bool { return contains(f.Value, wants) }))
}

func object(with ...policy.Field) *policy.Node {
	return &policy.Node{Kind: policy.Object, Fields: with}
}

func field(name string, value *policy.Node) policy.Field {
	return policy.Field{Name: name, Value: value}
}

func textNode(s string) *policy.Node { return &policy.Node{Kind: policy.String, Text: s} }

func listOf(items ...*policy.Node) *policy.Node { return &policy.Node{Kind: policy.List, Items: items} }
