// Package policyfile reads the policy file a person writes, in YAML or JSON,
// into the tree that shared/policy judges, keeping lines and columns.
//
// Its invariant: what it accepts and writes as JSON is the tree that the
// filter will read from that JSON, node for node. YAML's own cleverness
// (aliases apart) is refused where JSON has no equal or people are surprised by
// it. It decides nothing about the meaning of a policy, and must never be
// imported by the filter, which has no YAML.
package policyfile

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// revisionBytes is what the control plane adds to a pushed policy:
// ,"revision":"…" with the longest revision.
const revisionBytes = len(`,"revision":""`) + policy.MaxRevisionBytes

var byteOrderMark = []byte("\uFEFF")

// Parse reads the text of a policy file. The name is for messages. An error is
// a policy.Errors.
func Parse(name string, data []byte) (*policy.Node, error) {
	n, errs := parse(data)
	if len(errs) > 0 {
		return nil, inFile(name, errs)
	}
	return n, nil
}

// Read reads and judges a policy file: the policy, the tree it came from and
// the warnings about it. An error is a policy.Errors with every problem.
func Read(name string, data []byte) (*policy.Policy, *policy.Node, []policy.Problem, error) {
	n, errs := parse(data)
	if n == nil {
		return nil, nil, nil, inFile(name, errs)
	}
	p, more, warnings := policy.Read(n)
	if len(more) == 0 {
		weak, open := judgeManage(n)
		more, warnings = append(more, weak...), merge(warnings, open)
	}
	errs = merge(errs, more)
	warnings = inFile(name, warnings)
	if len(errs) > 0 {
		return nil, nil, warnings, inFile(name, errs)
	}
	return p, n, warnings, nil
}

func inFile(name string, problems policy.Errors) policy.Errors {
	for i := range problems {
		problems[i].File = name
	}
	return problems
}

// merge adds to the problems of the text those of the policy that are not
// about the same place.
func merge(text, meaning policy.Errors) policy.Errors {
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
	slices.SortStableFunc(text, func(a, b policy.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return text
}

// parse gives the problems of the text, and a tree wherever there is one whose
// other problems are worth telling too.
func parse(data []byte) (*policy.Node, policy.Errors) {
	if len(data) > policy.MaxBytes {
		return nil, policy.Errors{policy.TooLarge(len(data))}
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	if at := invalidUTF8(data); at >= 0 {
		return nil, problemAt(data, at, "text that is not UTF-8: byte 0x"+strconv.FormatUint(uint64(data[at]), 16)+": save the file as UTF-8")
	}
	n, errs := parseText(data)
	if len(errs) > 0 {
		return n, errs
	}
	if size := len(policy.AppendJSON(nil, n)) + revisionBytes; size > policy.MaxBytes {
		return nil, policy.Errors{{Message: "the policy is " + strconv.Itoa(size) + " bytes as the JSON that proxies get, the most is " + strconv.Itoa(policy.MaxBytes)}}
	}
	return n, nil
}

// parseText reads YAML, and JSON as JSON where the two disagree: YAML knows no
// \/, no \u escapes in pairs, and folds U+2028 in a string. Only then are there
// no positions.
func parseText(data []byte) (*policy.Node, policy.Errors) {
	n, errs := parseYAML(data)
	asJSON, err := policy.ParseJSON(data)
	if err != nil || len(errs) == 0 && bytes.Equal(policy.AppendJSON(nil, n), policy.AppendJSON(nil, asJSON)) {
		return n, errs
	}
	return asJSON, nil
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

func problemAt(data []byte, at int, message string) policy.Errors {
	start := bytes.LastIndexByte(data[:at], '\n') + 1
	return policy.Errors{{
		Line:    1 + bytes.Count(data[:at], []byte("\n")),
		Column:  1 + utf8.RuneCount(data[start:at]),
		Message: message,
	}}
}
