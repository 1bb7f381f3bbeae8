package policy

import (
	"strconv"
	"strings"
)

// Problem is one thing wrong with a policy, or a warning about it.
type Problem struct {
	File         string // empty where the policy is no file
	Line, Column int    // 0 = unknown
	Path         string // "rules[2].limits[0].per"; empty for the document
	Message      string // what is wrong and what would be right
}

// String is "FILE:LINE:COL: path: message" without the parts that are unknown.
func (p *Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	for _, n := range []int{p.Line, p.Column} {
		if n == 0 {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(':')
		}
		b.WriteString(strconv.Itoa(n))
	}
	for _, s := range []string{p.Path, p.Message} {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	return b.String()
}

// Errors is every problem of one policy as an error, one a line.
type Errors []Problem

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].String()
	}
	return strings.Join(lines, "\n")
}
