package policyfile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var yamlMessage = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

// hints say in a writer's words what the YAML reader says in its own.
var hints = []struct{ message, hint string }{
	{"mapping values are not allowed", `a ":" where none is allowed: check the indentation, put a space after the ":" ` +
		`of the lines above, and quote text with ": "`},
	{"did not find expected key", `the indentation does not fit the lines above, or a quote or ":" is missing`},
	{"could not find expected ':'", `a field without its ":"`},
	{"did not find expected '-' indicator", `the indentation does not fit the list above`},
	{"did not find expected ',' or ']'", `a list that began with "[" lacks a "," or its "]"`},
	{"did not find expected ',' or '}'", `an object that began with "{" lacks a "," or its "}"`},
	{"did not find expected node content", `a value is missing, a bracket is not closed, or text must be in quotes`},
	{"did not find expected <document start>", `something follows "...", which ends the policy`},
	{"unknown anchor", `an alias needs an anchor of its name (&) before it; text that starts with * must be in quotes`},
	{"did not find expected alphabetic or numeric character", `text that starts with * or & must be in quotes`},
	{"found unexpected end of stream", `a quote that is opened and not closed`},
	{"found invalid Unicode character escape code", `write the character itself instead of half of its \u escape`},
	{"control characters are not allowed", `a control character: write it as an escape in double quotes`},
	{"cannot start any token", `text that starts with a special character of YAML (such as @, %, a backtick or a tab) ` +
		`must be in quotes`},
}

// syntaxError makes the YAML reader's error a problem with its line.
func syntaxError(data []byte, err error) Errors {
	m := yamlMessage.FindStringSubmatch(err.Error())
	if m == nil {
		return Errors{{Message: "invalid YAML: " + err.Error()}}
	}
	p := Problem{Message: "invalid YAML: " + m[2]}
	if len(data) <= searchBytes {
		p.Line = brokenLine(data, m[2])
	} else {
		p.Line, _ = strconv.Atoi(m[1])
	}
	if line, column := tabIndent(data, p.Line); line > 0 {
		return Errors{{Line: line, Column: column, Message: "invalid YAML: a tab in the indentation: use spaces"}}
	}
	for _, h := range hints {
		if strings.Contains(m[2], h.message) {
			p.Message += ": " + h.hint
			break
		}
	}
	return Errors{p}
}

// searchBytes is the largest text that brokenLine is tried on: it reads the text
// a dozen times, and a megabyte of YAML takes a tenth of a second each time.
const searchBytes = 64 << 10

// brokenLine is the first line with which the text gives this error. The
// reader's own line is often that of an enclosing list, or one too few. All
// text after the fault is unread, so the lines can be searched by halves.
func brokenLine(data []byte, message string) int {
	var ends []int
	for i, c := range data {
		if c == '\n' || i == len(data)-1 {
			ends = append(ends, i+1)
		}
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(data[:ends[i]]))
		for {
			err := decoder.Decode(&yaml.Node{})
			if errors.Is(err, io.EOF) {
				return false
			}
			if err != nil {
				m := yamlMessage.FindStringSubmatch(err.Error())
				return m != nil && m[2] == message
			}
		}
	})
}

// tabIndent finds a line indented by a tab at the line of an error, or next to
// it. Between brackets, as in JSON, tabs may indent.
func tabIndent(data []byte, near int) (line, column int) {
	if start := bytes.TrimLeft(data, " \t\r\n"); bytes.IndexAny(start[:min(1, len(start))], "{[") == 0 {
		return 0, 0
	}
	for i, text := range bytes.Split(data, []byte("\n")) {
		n := i + 1
		if n < near-1 || n > near+1 {
			continue
		}
		indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
		if at := bytes.IndexByte(indent, '\t'); at >= 0 {
			return n, at + 1
		}
	}
	return 0, 0
}
