package request

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// This file changes expressions by their text, as a policy matches a whole path, without its query.

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
		if text == "" { // of ^$: a policy has no empty expression
			text = "(?:)"
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

// ofPathExpression is ofPath of an expression. What takes any rest of the text at its end takes
// any query; elsewhere it may take a part of one.
//
//	:path                       path              use
//	/a.*                        /a.*              ignoresQuery
//	/a(\?.*)?                   /a                ignoresQuery
//	/a(/.*|\?.*|#.*|;.*|$)      OrBelow of /a     ignoresQuery
//	/a                          /a                meetsQuery: of /a?b the path fits, and :path does not
//	/a|/b.*                     /a|/b.*           meetsQuery: the .* is behind /b alone, not behind /a
//	/a|/b(\?.*)?                /a|/b             meetsQuery: as above
//	/a[^/].*                    /a[^/].*          meetsQuery: of /a?b :path fits, and the path does not
//	/a\?b=.*                    none              asksForQuery
//	/a[/?].*                    none              asksForQuery
func ofPathExpression(text string) (path Pattern, use queryUse) {
	text, _ = cutBegin(text)
	if hasBranches(text) { // so the end is that of the last branch alone
		use = meetsQuery
	}
	// Envoy Gateway writes a prefix like this.
	if begin, isBelow := strings.CutSuffix(text, `(/.*|\?.*|#.*|;.*|$)`); isBelow {
		path = Expression(begin + "(/.*)?")
		if re, err := syntax.Parse(begin, syntax.Perl); err == nil && isPlainText(re) {
			path = OrBelow(string(re.Rune), false)
		}
		return path, max(use, queryIn(begin))
	}
	text, _ = cutEnd(text)
	for _, query := range []string{`(\?.*)?`, `(?:\?.*)?`} {
		if begin, cut := strings.CutSuffix(text, query); cut && begin != "" {
			return Expression(begin), max(use, queryIn(begin))
		}
	}
	begin, takesRest := cutOperator(text, ".*")
	if !takesRest {
		use = meetsQuery
	}
	return Expression(text), max(use, queryIn(begin))
}

// isPlainText reports whether an expression matches one text alone, in one case.
func isPlainText(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0
}

// queryIn is the use of a query in an expression without its end.
func queryIn(text string) queryUse {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return asksForQuery
	}
	return queryInTree(re)
}

// queryInTree is queryIn of a parsed expression:
//
//	\? [/?] # .* .+    asksForQuery
//	. [^/] \W          meetsQuery: may take the ?, though it is for what is in a path
//	$                  meetsQuery: fails if there is one
func queryInTree(re *syntax.Regexp) (use queryUse) {
	isAny := func(re *syntax.Regexp) bool { return re.Op == syntax.OpAnyChar || re.Op == syntax.OpAnyCharNotNL }
	switch re.Op {
	case syntax.OpLiteral:
		if slices.Contains(re.Rune, '?') || slices.Contains(re.Rune, '#') {
			return asksForQuery
		}
	case syntax.OpCharClass:
		isNegated := hasRune(re, unicode.MaxRune) // as most classes with all the rest of Unicode are
		switch {
		case !isNegated && (hasRune(re, '?') || hasRune(re, '#')):
			return asksForQuery
		case hasRune(re, '?'):
			return meetsQuery
		}
	case syntax.OpStar, syntax.OpPlus:
		if isAny(re.Sub[0]) {
			return asksForQuery
		}
	default:
		if isAny(re) || re.Op == syntax.OpEndText || re.Op == syntax.OpEndLine {
			return meetsQuery
		}
	}
	for _, sub := range re.Sub {
		use = max(use, queryInTree(sub))
	}
	return use
}

// hasRune reports whether a class has a character. The class has ranges, each of a first and a last one.
func hasRune(class *syntax.Regexp, r rune) bool {
	for pair := range slices.Chunk(class.Rune, 2) {
		if pair[0] <= r && r <= pair[1] {
			return true
		}
	}
	return false
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
