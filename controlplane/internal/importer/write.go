package importer

import (
	"strings"

	"go.yaml.in/yaml/v3"
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

// comment writes text as lines of a comment, without characters that end a line.
func comment(text string) string {
	var lines []string
	line := "#"
	for word := range strings.FieldsSeq(printable(text)) {
		if len(line)+1+len(word) > commentWidth {
			lines = append(lines, line)
			line = "#  "
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff {
			return ' '
		}
		return r
	}, text)
}
