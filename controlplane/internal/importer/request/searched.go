package request

import (
	"regexp"
	"strings"
)

// Searched is the pattern for the texts in which an expression has a match, as nginx searches them. It is not ok if RE2
// has no such expression.
func Searched(text string, ignoreCase bool) (p Pattern, ok bool) {
	if _, err := regexp.Compile(text); err != nil {
		return Pattern{}, false
	}
	behind, isBegun := strings.CutPrefix(text, "^")
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
		if text == "" { // of ^$: a policy has no empty expression
			text = "(?:)"
		}
	}
	if ignoreCase {
		text = "(?i)" + text
	}
	return Expression(text), true
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
	depth, inClass := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case inClass:
			inClass = c != ']'
		case c == '[':
			inClass = true
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
