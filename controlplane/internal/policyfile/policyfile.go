// Package policyfile reads the policy file that a person writes, in YAML or
// JSON, and answers in sentences. A policy.Problem has a code, a Problem of this
// package a sentence; a warnings.Warning becomes a Problem too.
//
//	Read → parse      bounds and encoding of the text
//	       parseText  a tree with lines and columns: parseYAML (yaml.go), whose errors syntax.go explains
//	     → judge      shared/policy reads the tree; package message puts its problems in words, and package
//	                  warnings warns of what is valid and limits less than it seems to
//	     → merge      the problems of both, by line
//
// Most JSON is YAML, so that one parser would do. But YAML knows no \/ and no \u escapes in pairs,
// and folds U+2028 in a string. A text that is JSON is therefore read as both, and where the trees
// differ the one from JSON counts.
//
// Its invariant: what it accepts and writes as JSON, without name and proxies, is the
// tree that the filter will read from that JSON, node for node. It rejects what YAML
// has and JSON does not have, except aliases, and what surprises people. It decides nothing
// about the meaning of a policy, except that it rejects tokens that anyone would guess.
package policyfile

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/warnings"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/weaktoken"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Problem is one thing wrong with a policy, or a warning about it.
type Problem struct {
	File    string `json:"file,omitempty"` // empty if the policy is not from a file
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

// inWords makes a Problem of each policy.Problem, which has a code and its arguments and no sentence.
func inWords(found []policy.Problem) (problems Errors) {
	for i := range found {
		p := &found[i]
		problems = append(problems, Problem{Line: p.Line, Column: p.Column, Path: p.Path, Message: message.Of(p)})
	}
	return problems
}

// pushedBytes is what the control plane adds to a pushed policy:
// ,"revision":"…","report_secret":"…" with the longest revision.
const pushedBytes = len(`,"revision":"","report_secret":""`) + policy.MaxRevisionBytes + policy.ReportSecretBytes

var byteOrderMark = []byte("\uFEFF")

// Parse reads the text of a policy file, or of another file of this kind. The name is for messages. An
// error is an Errors.
func Parse(name string, data []byte) (*policy.Node, error) {
	n, errs := parse(data)
	if len(errs) > 0 {
		return nil, inFile(name, errs)
	}
	return n, nil
}

// Read reads and judges a policy file: the policy, the tree it came from and
// the warnings about it. An error is an Errors with every problem, and no warnings.
func Read(name string, data []byte) (*policy.Policy, *policy.Node, []Problem, error) {
	n, errs := parse(data)
	if n == nil {
		return nil, nil, nil, inFile(name, errs)
	}
	p, more, warned := judge(n)
	errs = merge(errs, more)
	if len(errs) > 0 {
		return nil, nil, nil, inFile(name, errs)
	}
	return p, n, inFile(name, warned), nil
}

// judge reads the policy of a tree and puts what is found in words. An invalid policy has
// problems and no warnings.
func judge(doc *policy.Node) (p *policy.Policy, problems, warned Errors) {
	head, pushed := policy.SplitPlacement(doc)
	placement, found := policy.ReadPlacement(head)
	p, more := policy.Read(pushed)
	found = append(found, more...)
	if len(found) > 0 {
		return nil, merge(nil, inWords(found)), nil
	}
	if weak := weakToken(pushed.Member("manage")); weak != nil {
		return nil, Errors{*weak}, nil
	}
	for _, w := range warnings.Of(doc, p, &placement) {
		warned = append(warned, Problem{Line: w.Line, Column: w.Column, Path: w.Path, Message: w.Message})
	}
	return p, nil, warned
}

func inFile(name string, problems Errors) Errors {
	for i := range problems {
		problems[i].File = name
	}
	return problems
}

// merge adds the problems of the policy to the problems of the text. At a place where the text has a
// problem, it adds none.
func merge(text, meaning Errors) Errors {
	type place struct{ line, column int }
	seen := map[place]bool{}
	for _, p := range text {
		seen[place{p.Line, p.Column}] = true
	}
	for _, p := range meaning {
		if !seen[place{p.Line, p.Column}] {
			text = append(text, p)
		}
	}
	slices.SortStableFunc(text, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return text
}

// parse returns the problems of the text, and a tree if there is one. The caller reports the
// problems of the tree, too.
func parse(data []byte) (*policy.Node, Errors) {
	if len(data) > policy.MaxBytes {
		return nil, inWords([]policy.Problem{{Code: policy.TooLarge, Args: []string{strconv.Itoa(len(data))}}})
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	if at := invalidUTF8(data); at >= 0 {
		first := "0x" + strconv.FormatUint(uint64(data[at]), 16)
		return nil, problemAt(data, at, "text that is not UTF-8: byte "+first+": save the file as UTF-8")
	}
	n, errs := parseText(data)
	if len(errs) > 0 {
		return n, errs
	}
	if size := pushedSize(n); size > policy.MaxBytes {
		return nil, Errors{{Message: "the text is " + strconv.Itoa(size) + " bytes as JSON, the most is " +
			strconv.Itoa(policy.MaxBytes)}}
	}
	return n, nil
}

// Size is how many bytes proxies get of a policy's text, 0 if the text is not a policy.
func Size(data []byte) int {
	n, errs := parseText(data)
	if len(errs) > 0 {
		return 0
	}
	return pushedSize(n)
}

// pushedSize is how many bytes proxies get of a policy.
func pushedSize(n *policy.Node) int { return len(policy.AppendJSON(nil, n)) + pushedBytes }

// parseText reads the text as YAML, because that gives each value its line and column. If the text
// is JSON too, and YAML reads it differently, the tree is that of JSON, without positions.
func parseText(data []byte) (*policy.Node, Errors) {
	text, err := compactJSON(data)
	n, errs := parseYAML(data)
	if err != nil || len(errs) == 0 && bytes.Equal(policy.AppendJSON(nil, n), text) {
		return n, errs
	}
	asJSON, _ := policy.ParseJSON(data)
	return asJSON, nil
}

// compactJSON is the text of the tree that a JSON policy makes. It drops the tree itself, which
// would double the memory that a large policy takes.
func compactJSON(data []byte) ([]byte, error) {
	n, err := policy.ParseJSON(data)
	if err != nil {
		return nil, err
	}
	return policy.AppendJSON(nil, n), nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func problemAt(data []byte, at int, message string) Errors {
	start := bytes.LastIndexByte(data[:at], '\n') + 1
	return Errors{{
		Line:    1 + bytes.Count(data[:at], []byte("\n")),
		Column:  1 + utf8.RuneCount(data[start:at]),
		Message: message,
	}}
}

// weakToken finds in the manage section of a valid policy a token that anyone would
// guess.
func weakToken(manage *policy.Node) *Problem {
	if manage == nil {
		return nil
	}
	token := manage.Member("token_sha256")
	why, weak := weaktoken.Weak(token.Text)
	if !weak {
		return nil
	}
	return &Problem{
		Line: token.Line, Column: token.Column, Path: "manage.token_sha256",
		Message: why + ": make a token with openssl rand -hex 32",
	}
}
