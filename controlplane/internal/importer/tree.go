package importer

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

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
		at := slices.IndexFunc(n.Fields, isIt)
		if at < 0 {
			return nil
		}
		n = n.Fields[at].Value
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

func object(fields ...policy.Field) *policy.Node {
	return &policy.Node{Kind: policy.Object, Fields: fields}
}

func field(name string, value *policy.Node) policy.Field {
	return policy.Field{Name: name, Value: value}
}

func text(s string) *policy.Node { return &policy.Node{Kind: policy.String, Text: s} }

func listOf(items ...*policy.Node) *policy.Node { return &policy.Node{Kind: policy.List, Items: items} }
