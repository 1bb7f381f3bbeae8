package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// policyYAML writes a policy file, valid YAML or JSON, as a block of YAML that goes under a
// field of a custom resource. Fields keep their order, and comments stay.
//
// Kubernetes reads YAML 1.1, where off, y and 1_0 are not text as they are in a policy file:
// such words get quotes.
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
	// number is a number of a policy file, as in JSON.
	number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)
	// word11 is text that YAML 1.1 may read as something else: a boolean, null, a merge,
	// a number in any notation, a date.
	word11 = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|~|=|<<|` +
		`[-+]?\.(inf|nan)|[-+.]?[0-9][-+.,:_0-9a-fotxz \t]*)$`)
)

// quoteWords puts quotes around text that would not be text in YAML 1.1.
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

// longestReadable is the length above which a policy stays on one line: nobody reads it then,
// and indented it might outgrow policy.MaxBytes.
const longestReadable = 64 << 10

// filterYAML writes the plugin's configuration as YAML, with the policy as a block of indented
// JSON.
func filterYAML(p Plugin) (string, error) {
	if len(p.Policy) == 0 {
		p.Policy = []byte(EmptyPolicy)
	}
	var policy bytes.Buffer
	if err := json.Indent(&policy, p.Policy, "", "  "); err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	if len(p.Policy) <= longestReadable {
		p.Policy = policy.Bytes()
	}
	config, err := p.Any()
	if err != nil {
		return "", err
	}
	// protojson knows Envoy's spelling; its output, being JSON, is YAML.
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	restyle(&node)
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	return out.String(), encoder.Close()
}

// restyle turns JSON's braces and quotes into YAML's blocks. Empty collections
// keep their braces, an object of nothing else stays on one line, and texts of
// many lines become literal blocks.
func restyle(node *yaml.Node) {
	switch {
	case node.Kind == yaml.MappingNode && isSet(node):
		node.Style = yaml.FlowStyle
	case node.Kind == yaml.ScalarNode && strings.Contains(node.Value, "\n"):
		node.Style = yaml.LiteralStyle
	case len(node.Content) > 0 || node.Kind == yaml.ScalarNode:
		node.Style = 0
	}
	for _, child := range node.Content {
		restyle(child)
	}
}

// isSet reports whether the values of an object are all empty objects.
func isSet(node *yaml.Node) bool {
	for i := 1; i < len(node.Content); i += 2 {
		if value := node.Content[i]; value.Kind != yaml.MappingNode || len(value.Content) > 0 {
			return false
		}
	}
	return true
}

// plain is text that needs no quotes in any place, unless it is a word that YAML reads as
// something else.
var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./-]*$`)

// scalar writes a text as YAML, quoted where YAML would read something else.
func scalar(text string) (string, error) {
	if plain.MatchString(text) {
		out, err := yaml.Marshal(text)
		return strings.TrimSuffix(string(out), "\n"), err
	}
	// A JSON string is a YAML string, on one line and in any context.
	out, err := json.Marshal(text)
	return string(out), err
}

// indent moves every line but the first, which the template has placed, and drops the end of
// the last line.
func indent(spaces int, text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines {
		if i > 0 && lines[i] != "" {
			lines[i] = strings.Repeat(" ", spaces) + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}
