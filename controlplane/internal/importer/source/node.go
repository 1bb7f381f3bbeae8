package source

import "github.com/sluice-ratelimit/sluice/shared/policy"

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
