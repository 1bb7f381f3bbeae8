package policyfile

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Problem is one thing wrong with a policy, or a warning about it.
type Problem struct {
	File    string `json:"file,omitempty"` // empty where the policy is no file
	Line    int    `json:"line,omitempty"` // 0 = unknown
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // "rules[2].limits[0].per"; empty for the document
	Message string `json:"message"`        // what is wrong and what would be right
}

// String is "FILE:LINE:COL: path: message" without the parts that are unknown.
func (p *Problem) String() string {
	place := p.File
	for _, n := range []int{p.Line, p.Column} {
		if n == 0 {
			break
		}
		if place != "" {
			place += ":"
		}
		place += strconv.Itoa(n)
	}
	s := p.Message
	for _, before := range []string{p.Path, place} {
		if before != "" {
			s = before + ": " + s
		}
	}
	return s
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

// inWords makes sentences of what the reader found.
func inWords(found []policy.Problem) (problems Errors) {
	for i := range found {
		p := &found[i]
		problems = append(problems, Problem{Line: p.Line, Column: p.Column, Path: p.Path, Message: message.Of(p)})
	}
	return problems
}
