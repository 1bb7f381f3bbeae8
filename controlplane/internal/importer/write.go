package importer

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// encoded is a value as YAML.
func encoded(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return n
}

// flow is a value as YAML on one line.
func flow(v any) *yaml.Node {
	n := encoded(v)
	n.Style |= yaml.FlowStyle
	return n
}

const commentWidth = 94

// comment writes text as lines of a comment.
func comment(text string) string {
	var lines []string
	line := "#"
	for word := range strings.FieldsSeq(printable.Text(text)) {
		if len(line)+1+len(word) > commentWidth {
			lines = append(lines, line)
			line = "#  "
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}
