package importer

import (
	"regexp"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// writer writes YAML as a person would.
type writer struct{ b *strings.Builder }

func (w *writer) line(text string) { w.b.WriteString(text + "\n") }

// field writes a field whose value is YAML already; nothing for an empty one.
func (w *writer) field(indent, name, value string) {
	if value != "" {
		w.line(indent + name + ": " + value)
	}
}

// list writes a list with an item a line.
func (w *writer) list(indent, name string, count int, item func(i int) string) {
	if count == 0 {
		return
	}
	w.line(indent + name + ":")
	for i := range count {
		w.line(indent + "  - " + item(i))
	}
}

const commentWidth = 96

// comment writes text as lines of comment, without characters that end a line.
func (w *writer) comment(indent, text string) {
	start := indent + "# "
	line := start
	for word := range strings.FieldsSeq(printable(text)) {
		if len(line) > len(start) && len(line)+len(word) >= commentWidth {
			w.line(strings.TrimRight(line, " "))
			line = indent + "#   "
		}
		line += word + " "
	}
	w.line(strings.TrimRight(line, " "))
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff {
			return ' '
		}
		return r
	}, text)
}

func flowList(texts []string) string {
	quoted := make([]string, len(texts))
	for i := range texts {
		quoted[i] = scalar(texts[i])
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// plainScalar is text that YAML takes for text without quotes, also in flow
// style.
var plainScalar = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*\*?$`)

// scalar writes text, with quotes where YAML could take it for something else.
func scalar(text string) string {
	switch strings.ToLower(text) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
	default:
		if plainScalar.MatchString(text) {
			return text
		}
	}
	return quoted(text)
}

func scalarOrNone(text string) string {
	if text == "" {
		return ""
	}
	return scalar(text)
}

// quoted writes text in quotes.
func quoted(text string) string {
	return string(policy.AppendJSON(nil, &policy.Node{Kind: policy.String, Text: text}))
}
