package request

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
)

// This file changes expressions by their text, as a policy matches a whole text.

// ParseExpression is the expression that a file has, or why it is none.
func ParseExpression(text string) (Pattern, error) {
	if _, err := regexp.Compile(text); err != nil || text == "" {
		return Pattern{}, errors.New(strconv.Quote(text) + " is not a regular expression of RE2")
	}
	return Expression(unquoted(text)), nil
}

// Searched is the pattern for the texts in which an expression has a match, as nginx searches them. It is not ok if RE2
// has no such expression.
func Searched(text string, ignoreCase bool) (p Pattern, ok bool) {
	if _, err := regexp.Compile(text); err != nil {
		return Pattern{}, false
	}
	text = unquoted(text)
	behind, isBegun := cutBegin(text)
	before, isEnded := cutEnd(behind)
	switch {
	case hasBranches(text):
		text = ".*(?:" + text + ").*"
	default:
		text = before
		if !isBegun {
			text = ".*" + text
		}
		if !isEnded {
			text += ".*"
		}
	}
	if ignoreCase {
		text = "(?i)" + text
	}
	return Expression(text), true
}

// unquoted is an expression without \Q, which may quote all of the rest, also what an import puts behind it.
func unquoted(text string) string {
	if !strings.Contains(text, `\Q`) {
		return text
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return text
	}
	return re.String()
}

// cutBegin is an expression without the ^ at its begin, if there is one. In ^?/a it is the ^ of an operator.
func cutBegin(text string) (behind string, isBegun bool) {
	behind, isBegun = strings.CutPrefix(text, "^")
	if behind != "" && strings.ContainsAny(behind[:1], "?*+{") {
		return text, false
	}
	return behind, isBegun
}

// cutEnd is an expression without the $ at its end, if there is one. In /a\$ the $ is a text.
func cutEnd(text string) (before string, isEnded bool) { return cutOperator(text, "$") }

// cutOperator is an expression without an operator at its end. It is not ok, and the expression as it is, if there is
// none: behind an odd number of backslashes it is a text.
func cutOperator(text, operator string) (before string, ok bool) {
	before, ok = strings.CutSuffix(text, operator)
	if backslashes := len(before) - len(strings.TrimRight(before, `\`)); backslashes%2 == 1 {
		return text, false
	}
	return before, ok
}

// hasBranches reports whether an expression has a | outside of groups and classes.
func hasBranches(text string) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '[':
			i += max(len(leadingClass.FindString(text[i:])), len("[")) - 1
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			return true
		}
	}
	return false
}

// leadingClass finds the class that a text begins with. A ] in it may be a text, as the first of [](], or end a name,
// as in [[:alpha:](].
var leadingClass = regexp.MustCompile(`(?s)^\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]`)
