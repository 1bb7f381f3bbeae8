package request

import "go.yaml.in/yaml/v3"

// Encoded is a value as YAML. Package draft writes rules by it too.
func Encoded(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return n
}

// Flow is a value as YAML on one line.
func Flow(v any) *yaml.Node {
	n := Encoded(v)
	n.Style |= yaml.FlowStyle
	return n
}
