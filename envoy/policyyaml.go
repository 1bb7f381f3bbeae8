package envoy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// policyYAML writes the text of a policy file, valid YAML or JSON, as a block of
// YAML that goes under a field of a custom resource: the same fields in the
// same order, comments kept.
//
// Kubernetes reads YAML 1.1, where off, y and 1_0 are no text as they are in a
// policy file: such words are put in quotes.
func policyYAML(text []byte, quota Quota) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return "", errors.New("read policy: not an object")
	}
	policy := document.Content[0]
	if policy.Style&yaml.FlowStyle != 0 { // JSON
		restyle(policy)
	}
	quota.put(policy)
	quoteWords(policy)
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(policy); err != nil {
		return "", fmt.Errorf("write policy: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return "", fmt.Errorf("write policy: %w", err)
	}
	return out.String(), nil
}

var (
	// number is what policy files know as one: JSON's.
	number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)
	// word11 is text that YAML 1.1 may take for something else: a truth, a null,
	// a merge, a number in any notation, a date.
	word11 = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|~|=|<<|[-+]?\.(inf|nan)|[-+.]?[0-9][-+.,:_0-9a-fotxz \t]*)$`)
)

// quoteWords puts text into quotes that would not be text in YAML 1.1.
func quoteWords(node *yaml.Node) {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if node.Kind == yaml.ScalarNode && node.Style&quoted == 0 {
		switch {
		case node.Tag != "!!str" && number.MatchString(node.Value):
		case node.Tag == "!!bool":
			node.Value = strings.ToLower(node.Value)
		case node.Tag == "!!null":
		case word11.MatchString(node.Value):
			node.Tag, node.Style = "!!str", yaml.DoubleQuotedStyle
		}
	}
	for _, child := range node.Content {
		quoteWords(child)
	}
}
