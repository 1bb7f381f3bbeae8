package request

import (
	"cmp"
	"regexp"
	"strings"
)

// Pattern says which texts fit, of the values of a part of a request. A limiter with descriptors compares hosts and
// addresses as texts, and so do patterns. A policy compares them by what they name: see partID.within in name.go.
type Pattern struct {
	kind PatternKind
	text string
}

// PatternKind is how a pattern is written.
type PatternKind uint8

// The kinds of patterns, each with what makes one. The zero Pattern has none of them: nothing fits it, and no match can
// ask for it.
const (
	AnyValue      PatternKind = iota + 1 // every value, and none: no condition on the part (Anything)
	Exactly                              // the text (Exact)
	WithWildcards                        // the text, in which each * stands for any text (Wildcard, Prefix, Suffix)
	PathOrBelow                          // of a path: the text, and what follows a / behind it (OrBelow)
	ByExpression                         // what RE2 matches as a whole (Expression)
	Missing                              // none: the part is missing (Absent)
)

// Exact fits the text alone.
func Exact(text string) Pattern { return Pattern{Exactly, text} }

// Wildcard fits what the text is with anything in place of each *. The text must have a *.
func Wildcard(text string) Pattern { return Pattern{WithWildcards, text} }

// Expression fits what RE2 matches as a whole. A policy has no empty expression: (?:) is one that says the same.
func Expression(text string) Pattern { return Pattern{ByExpression, cmp.Or(text, "(?:)")} }

// The patterns that need no text.
var (
	Anything = Pattern{kind: AnyValue} // whatever value is there, or none
	Present  = Wildcard("*")           // whatever value is there
	Absent   = Pattern{kind: Missing}  // none
	AnyPath  = Wildcard("/*")
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

// Within reports whether every text that fits p fits q, as those of /a/b* fit /a*. A true answer is sure. A false one
// may be wrong, and costs a rule of its own where an override would do, or a rule that is off: never a wrong limit.
func (p Pattern) Within(q Pattern) bool {
	switch {
	case q.kind == AnyValue, p == q:
		return true
	case p.kind == Exactly:
		return q.Matches(p.text)
	}
	begin, _ := p.literalPrefix()
	wider, isAll := q.literalPrefix()
	switch q.kind {
	case PathOrBelow:
		return strings.HasPrefix(begin, wider+"/")
	case WithWildcards:
		return isAll && begin != "" && strings.HasPrefix(begin, wider)
	default:
		return false
	}
}

// Apart reports whether no text fits both, as /a* is apart from /b. A true answer is sure. A false one may be wrong,
// and costs an exempt or an override for requests that the rule does not have, or a rule that is off: never a wrong
// limit.
func (p Pattern) Apart(q Pattern) bool {
	if text, other := p.textInAnyCase(), q.textInAnyCase(); text != "" && other != "" {
		return !strings.EqualFold(text, other)
	}
	begin, isAll := p.literalPrefix()
	other, isAllOther := q.literalPrefix()
	// Then one is within the other, or they are apart.
	if p.kind == Exactly || q.kind == Exactly || isAll && isAllOther {
		return !p.Within(q) && !q.Within(p)
	}
	return !strings.HasPrefix(begin, other) && !strings.HasPrefix(other, begin)
}

// textInAnyCase is the text of a pattern that Text makes with ignoreCase; empty if it is another pattern.
func (p Pattern) textInAnyCase() string {
	quoted, _ := strings.CutPrefix(p.text, "(?i)")
	text := strings.ReplaceAll(quoted, `\`, "")
	if p.kind != ByExpression || p != Text(text, true) {
		return ""
	}
	return text
}

// literalPrefix is the text that all texts begin with which fit: /a of /a* and of /a*.js. It isAll that the pattern
// says in /a*.
func (p Pattern) literalPrefix() (text string, isAll bool) {
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
