package request

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// Pattern says which values of a part of a request fit.
type Pattern struct {
	kind PatternKind
	text string
}

// PatternKind is how a pattern is written.
type PatternKind uint8

// The kinds of patterns, each with what makes one.
const (
	AnyValue      PatternKind = iota // every value, and none: no condition on the part (Pattern{})
	Exactly                          // the text (Exact)
	WithWildcards                    // the text, in which each * stands for any text (Wildcard, Prefix, Suffix)
	PathOrBelow                      // of a path: the text, and what follows a / behind it (OrBelow)
	ByExpression                     // what RE2 matches as a whole (Expression)
	Missing                          // none: the part is missing (Absent)
)

// Exact fits the text alone.
func Exact(text string) Pattern { return Pattern{Exactly, text} }

// Wildcard fits what the text is with anything in place of each *. The text must have a *.
func Wildcard(text string) Pattern { return Pattern{WithWildcards, text} }

// Expression fits what RE2 matches as a whole.
func Expression(text string) Pattern { return Pattern{ByExpression, text} }

// ParseExpression is the expression that a file has, or why it is none.
func ParseExpression(text string) (Pattern, error) {
	if _, err := regexp.Compile(text); err != nil || text == "" {
		return Pattern{}, errors.New(strconv.Quote(text) + " is not a regular expression of RE2")
	}
	return Expression(text), nil
}

// The patterns that need no text.
var (
	Present = Wildcard("*")          // whatever value is there
	Absent  = Pattern{kind: Missing} // none
	AnyPath = Wildcard("/*")
)

// ExactAll has a pattern for each text.
func ExactAll(texts []string) (list []Pattern) {
	for _, text := range texts {
		list = append(list, Exact(text))
	}
	return list
}

// Text fits the text alone, and with ignoreCase in upper or lower case.
func Text(text string, ignoreCase bool) Pattern { return surrounded("", text, "", ignoreCase) }

// Prefix fits what begins with the text.
func Prefix(text string, ignoreCase bool) Pattern { return surrounded("", text, "*", ignoreCase) }

// Suffix fits what ends with the text.
func Suffix(text string, ignoreCase bool) Pattern { return surrounded("*", text, "", ignoreCase) }

// Containing fits what has the text in it.
func Containing(text string, ignoreCase bool) Pattern { return surrounded("*", text, "*", ignoreCase) }

// OrBelow fits a path and what is below it: /a and /a/b, but not /ab. The path must not end in a /.
func OrBelow(path string, ignoreCase bool) Pattern {
	p := Pattern{PathOrBelow, path}
	if ignoreCase && hasCase(path) {
		return Expression("(?i)" + p.Regexp())
	}
	return p
}

// surrounded fits the text with anything where there is a * before or behind it. A text that has a * itself
// needs an expression, and so has one of which the case is ignored.
func surrounded(before, text, behind string, ignoreCase bool) Pattern {
	ignoreCase = ignoreCase && hasCase(text)
	switch {
	case before+behind == "" && !ignoreCase:
		return Exact(text)
	case !ignoreCase && !strings.Contains(text, "*"):
		return Wildcard(before + text + behind)
	}
	re := strings.Replace(before, "*", ".*", 1) + regexp.QuoteMeta(text) + strings.Replace(behind, "*", ".*", 1)
	if ignoreCase {
		re = "(?i)" + re
	}
	return Expression(re)
}

// hasCase reports whether a text has letters that are different in upper and lower case.
func hasCase(text string) bool { return strings.ToLower(text) != strings.ToUpper(text) }

// Searched is the pattern for the texts in which an expression has a match, as nginx searches them. It is not ok if RE2
// has no such expression.
func Searched(text string, ignoreCase bool) (p Pattern, ok bool) {
	if _, err := regexp.Compile(text); err != nil {
		return Pattern{}, false
	}
	if re, err := syntax.Parse(text, syntax.Perl); err == nil && strings.Contains(text, `\Q`) {
		text = re.String() // without \Q, which may quote all of the rest
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

// Kind is how the pattern is written.
func (p Pattern) Kind() PatternKind { return p.kind }

// Text is the text of the pattern, as the configuration has it: of an expression the expression.
func (p Pattern) Text() string { return p.text }

// Regexp is the pattern as an expression of RE2 for the whole text. It is not for Missing, which no text fits.
func (p Pattern) Regexp() string {
	switch p.kind {
	case WithWildcards:
		parts := strings.Split(p.text, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return strings.Join(parts, ".*")
	case PathOrBelow:
		return regexp.QuoteMeta(p.text) + "(/.*)?"
	case ByExpression:
		return p.text
	case Exactly, AnyValue, Missing:
	}
	return regexp.QuoteMeta(p.text)
}

// Matches reports whether a text fits.
func (p Pattern) Matches(text string) bool {
	switch p.kind {
	case AnyValue:
		return true
	case Exactly:
		return p.text == text
	case WithWildcards:
		return fitsWildcards(strings.Split(p.text, "*"), text)
	case PathOrBelow:
		return text == p.text || strings.HasPrefix(text, p.text+"/")
	case ByExpression:
		re, err := regexp.Compile("^(?s:" + p.text + ")$")
		return err == nil && re.MatchString(text)
	case Missing:
	}
	return false
}

// fitsWildcards reports whether a text is the parts in their order, with
// anything between them.
func fitsWildcards(parts []string, text string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, between := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, between)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// LiteralPrefix is the text that all values begin with: /a of /a* and of /a*.js. If it is all that the pattern says, as
// in /a*, two such patterns have no value in common, or one has all of the other's.
func (p Pattern) LiteralPrefix() (text string, isAll bool) {
	switch p.kind {
	case Exactly, PathOrBelow:
		return p.text, true
	case WithWildcards:
		before, after, _ := strings.Cut(p.text, "*")
		return before, after == ""
	case AnyValue, ByExpression, Missing:
	}
	return "", false
}

// WithinAsText reports whether every value that fits p fits q, as /a/b* is within /a*. A true answer is sure. A false
// one may be wrong, and costs a rule of its own where an override would do, or a rule that is off: never a wrong limit.
func (p Pattern) WithinAsText(q Pattern) bool {
	switch {
	case q.kind == AnyValue, p == q:
		return true
	case p.kind == Exactly:
		return q.Matches(p.text)
	}
	begin, _ := p.LiteralPrefix()
	wider, isAll := q.LiteralPrefix()
	switch {
	case begin == "" || !isAll:
		return false
	case q.kind == PathOrBelow:
		return p.kind == PathOrBelow && begin == wider || strings.HasPrefix(begin, wider+"/")
	}
	return q.kind == WithWildcards && strings.HasPrefix(begin, wider)
}

// ApartAsText reports whether no value fits both, as /a* is apart from /b. A true answer is sure. A false one may be
// wrong, and costs an exempt or an override for requests that the rule does not have, or a rule that is off: never a
// wrong limit.
func (p Pattern) ApartAsText(q Pattern) bool {
	begin, isAll := p.LiteralPrefix()
	other, isAllOther := q.LiteralPrefix()
	switch {
	case p.kind == Exactly:
		return !q.Matches(p.text)
	case q.kind == Exactly:
		return !p.Matches(q.text)
	case isAll && isAllOther:
		return !p.WithinAsText(q) && !q.WithinAsText(p)
	}
	return !strings.HasPrefix(begin, other) && !strings.HasPrefix(other, begin)
}

// notation writes the pattern as a policy writes patterns over the part: those of
// paths have no *suffix.
//
//	Prefix("/a", false)   /a*      Exact("/a")           /a
//	Suffix(".js", false)  *.js     Exact("a*")           =a*, as it would be taken for a prefix
//	Present               *        OrBelow("/a", false)  ~/a(/.*)?
//	Absent                !        Suffix of a path      ~.*\.js
func (p Pattern) notation(of Part) string {
	plain := strings.Trim(p.text, "*")
	isPlain := !strings.Contains(plain, "*") && (plain == "" || !strings.ContainsRune("!=~", rune(plain[0])))
	switch {
	case p.kind == Missing:
		return "!"
	case p.kind == AnyValue, p == Present:
		return "*"
	case p.kind == Exactly && isPlain && plain == p.text && plain != "":
		return plain
	case p.kind == Exactly:
		return "=" + p.text
	case p.kind == WithWildcards && isPlain && (p.text == plain+"*" || p.text == "*"+plain && of.Kind != KindPath):
		return p.text
	}
	return "~" + p.Regexp()
}

// beginsPath reports whether a path may begin as a text does.
func (p Pattern) beginsPath() bool {
	return strings.HasPrefix(p.text, "/") || p.kind == WithWildcards && strings.HasPrefix(p.text, "*")
}

// ofPath is the pattern of the path for one of :path, which has the query too. It is not ok if the pattern is about the
// query, or may be.
func (p Pattern) ofPath() (path Pattern, sameWithAnyQuery, ok bool) {
	switch p.kind {
	case Exactly:
		return p, false, !strings.ContainsAny(p.text, "?#")
	case WithWildcards:
		begin, isAll := p.LiteralPrefix()
		return p, true, isAll && !strings.ContainsAny(begin, "?#")
	case ByExpression:
		return ofPathExpression(p.text)
	case AnyValue, PathOrBelow, Missing:
	}
	return p, true, true
}

// ofPathExpression is ofPath of an expression. What takes any rest of the text at its end takes
// any query; elsewhere it may take a part of one.
//
//	:path                       path              sameWithAnyQuery   ok
//	/a.*                        /a.*              true               true
//	/a(\?.*)?                   /a                true               true
//	/a(/.*|\?.*|#.*|;.*|$)      OrBelow of /a     true               true
//	/a                          /a                false              true: of /a?b the path fits, and :path does not
//	/a|/b.*                     /a|/b.*           false              true: the .* is behind /b alone, not behind /a
//	/a|/b(\?.*)?                /a|/b             false              true: as above
//	/a\?b=.*                    /a\?b=.*          true               false: it is about the query
func ofPathExpression(text string) (path Pattern, sameWithAnyQuery, ok bool) {
	text = strings.TrimPrefix(text, "^")
	isSame := !hasBranches(text) // else the end is that of the last branch alone

	// Envoy Gateway writes a prefix like this.
	if begin, isBelow := strings.CutSuffix(text, `(/.*|\?.*|#.*|;.*|$)`); isBelow {
		path = Expression(begin + "(/.*)?")
		if re, err := syntax.Parse(begin, syntax.Perl); err == nil && isPlainText(re) {
			path = OrBelow(string(re.Rune), false)
		}
		return path, isSame, !seesQuery(begin)
	}
	text, _ = cutEnd(text)
	for _, query := range []string{`(\?.*)?`, `(?:\?.*)?`} {
		if begin, cut := strings.CutSuffix(text, query); cut && begin != "" {
			return Expression(begin), isSame, !seesQuery(begin)
		}
	}
	_, takesRest := cutOperator(text, ".*")
	return Expression(text), takesRest && isSame, !seesQuery(strings.TrimSuffix(text, ".*"))
}

// isPlainText reports whether an expression matches one text alone, in one case.
func isPlainText(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0
}

// seesQuery reports whether an expression may be about what follows a path.
func seesQuery(text string) bool {
	isThere := func(part string) bool { return strings.Contains(text, part) }
	return slices.ContainsFunc([]string{`\?`, "[?", "#", ".*", ".+"}, isThere)
}
