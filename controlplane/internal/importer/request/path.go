package request

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// This file has what a policy, which compares a path without its query, makes of a pattern of a path or of :path.

// translatePath is translate for a path.
func (v Value) translatePath(p Pattern) (inPolicy Pattern, said Remarks) {
	path, use := p, ignoresQuery
	if v.as == withQuery {
		path, use = p.ofPath()
	}
	switch use {
	case asksForQuery:
		said.TurnOff(NoMatch("Envoy compares :path and its query with " + p.text))
		return p, said
	case meetsQuery:
		said.Comment("The path " + p.text + " is compared without its query here.")
	case ignoresQuery:
	}
	if path.isNoPath() || path.kind != ByExpression && strings.Contains(path.text, "?") {
		said.TurnOff(v.Part.noCondition())
	}
	return path, said
}

// isNoPath reports whether no path fits: each begins with a /, or is the * of OPTIONS. Of an expression it is unknown.
func (p Pattern) isNoPath() bool {
	begins := strings.HasPrefix(p.text, "/") || p.kind == WithWildcards && strings.HasPrefix(p.text, "*")
	return !begins && p != Exact("*") && p.kind != AnyValue && p.kind != ByExpression
}

// queryUse is what a query has to do with a pattern of :path.
type queryUse uint8

const (
	ignoresQuery queryUse = iota // nothing: what fits without one fits with any, and the other way round
	meetsQuery                   // it makes a difference, though the pattern is for a path: /a does not fit /a?b
	asksForQuery                 // the pattern asks for one, or for a part of one, or may do so
)

// ofPath is the pattern of the path for one of :path, which has the query too. There is none if it asksForQuery.
func (p Pattern) ofPath() (path Pattern, use queryUse) {
	switch p.kind {
	case Exactly:
		if strings.ContainsAny(p.text, "?#") {
			return p, asksForQuery
		}
		return p, meetsQuery
	case WithWildcards:
		begin, isAll := p.literalPrefix()
		if !isAll || strings.ContainsAny(begin, "?#") {
			return p, asksForQuery
		}
	case ByExpression:
		return ofPathExpression(p.text)
	case AnyValue, PathOrBelow, Missing:
	}
	return p, ignoresQuery
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
	path, begin, takesAny := cutQuery(text)
	use = queryIn(begin)
	if !takesAny || hasBranches(text) { // with branches the end is that of the last one alone
		use = max(use, meetsQuery)
	}
	return path, use
}

// cutQuery is the path that an expression of :path has before any query, and the expression's begin. It takesAny if its
// end takes any query.
func cutQuery(text string) (path Pattern, begin string, takesAny bool) {
	// Envoy Gateway writes a prefix like this.
	if begin, isBelow := strings.CutSuffix(text, `(/.*|\?.*|#.*|;.*|$)`); isBelow {
		path = Expression(begin + "(/.*)?")
		if re, err := syntax.Parse(begin, syntax.Perl); err == nil && isPlainText(re) {
			path = OrBelow(string(re.Rune), false)
		}
		return path, begin, true
	}
	text, _ = cutEnd(text)
	for _, query := range []string{`(\?.*)?`, `(?:\?.*)?`} {
		if begin, cut := strings.CutSuffix(text, query); cut && begin != "" {
			return Expression(begin), begin, true
		}
	}
	begin, takesAny = cutOperator(text, ".*")
	return Expression(text), begin, takesAny
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
//	\? [/?] # .* .{2,} asksForQuery
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
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		hasEnd := re.Op == syntax.OpRepeat && re.Max >= 0
		if !hasEnd && isAny(withoutCapture(re.Sub[0])) {
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

// withoutCapture is . of the expression (.).
func withoutCapture(re *syntax.Regexp) *syntax.Regexp {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	return re
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
