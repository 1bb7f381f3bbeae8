package importer

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// pattern says which values of a part of a request fit.
type pattern struct {
	kind patternKind
	text string // as the configuration has it; of an expression the expression
}

type patternKind uint8

const (
	anyValue   patternKind = iota // every value, and none: no condition on the part
	exactly                       // the text
	wildcard                      // the text, in which each * stands for any text, as in envoyproxy/ratelimit
	orBelow                       // of a path: the text, and what follows a / behind it
	expression                    // what RE2 matches as a whole
	absent                        // none: the part is missing
)

// exact are patterns of texts.
func exact(texts []string) (list []pattern) {
	for _, text := range texts {
		list = append(list, pattern{exactly, text})
	}
	return list
}

// present fits whatever value is there.
var present = pattern{wildcard, "*"}

// regexp is the pattern as an expression of RE2 for the whole text.
func (p pattern) regexp() string {
	switch p.kind {
	case wildcard:
		parts := strings.Split(p.text, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return strings.Join(parts, ".*")
	case orBelow:
		return regexp.QuoteMeta(p.text) + "(/.*)?"
	case expression:
		return p.text
	case exactly, anyValue, absent:
	}
	return regexp.QuoteMeta(p.text)
}

// matches reports whether a text fits.
func (p pattern) matches(text string) bool {
	switch p.kind {
	case anyValue:
		return true
	case exactly:
		return p.text == text
	case wildcard:
		return fitsWildcards(strings.Split(p.text, "*"), text)
	case orBelow:
		return text == p.text || strings.HasPrefix(text, p.text+"/")
	case expression, absent:
	}
	re, err := regexp.Compile("^(?s:" + p.regexp() + ")$")
	return err == nil && p.kind == expression && re.MatchString(text)
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

// begin is the text that all values begin with. If it is all that the pattern says, two such
// patterns have no value in common, or one has all of the other's.
func (p pattern) begin() (text string, isAll bool) {
	switch p.kind {
	case exactly, orBelow:
		return p.text, true
	case wildcard:
		before, after, _ := strings.Cut(p.text, "*")
		return before, after == ""
	case anyValue, expression, absent:
	}
	return "", false
}

// within reports whether every text that fits p fits q. A true answer is sure. A false one may be wrong,
// and costs a rule of its own where an override would do, or a rule that is off: never a wrong limit.
func (p pattern) within(q pattern) bool {
	if q.kind == anyValue || p == q {
		return true
	}
	if p.kind == exactly {
		return q.matches(p.text)
	}
	begin, _ := p.begin()
	wider, isAll := q.begin()
	switch {
	case begin == "" || !isAll:
		return false
	case q.kind == orBelow:
		return p.kind == orBelow && begin == wider || strings.HasPrefix(begin, wider+"/")
	}
	return q.kind == wildcard && strings.HasPrefix(begin, wider)
}

// apart reports whether no text fits both. A true answer is sure. A false one may be wrong, and costs an
// exempt or an override for requests that the rule does not have, or a rule that is off: never a wrong limit.
func (p pattern) apart(q pattern) bool {
	begin, isAll := p.begin()
	other, isAllOther := q.begin()
	switch {
	case p.kind == exactly:
		return !q.matches(p.text)
	case q.kind == exactly:
		return !p.matches(q.text)
	case isAll && isAllOther:
		return !p.within(q) && !q.within(p)
	}
	return !strings.HasPrefix(begin, other) && !strings.HasPrefix(other, begin)
}

// notation writes the pattern as a policy writes patterns over the part: those of
// paths have no *suffix.
func (p pattern) notation(of part) string {
	plain := strings.Trim(p.text, "*")
	isPlain := !strings.Contains(plain, "*") && (plain == "" || !strings.ContainsRune("!=~", rune(plain[0])))
	switch {
	case p.kind == absent:
		return "!"
	case p.kind == anyValue, p == present:
		return "*"
	case p.kind == exactly && isPlain && plain == p.text && plain != "":
		return plain
	case p.kind == exactly:
		return "=" + p.text
	case p.kind == wildcard && isPlain && (p.text == plain+"*" || p.text == "*"+plain && of.kind != kindPath):
		return p.text
	}
	return "~" + p.regexp()
}

// beginsPath reports whether a path may begin as a text does.
func (p pattern) beginsPath() bool {
	return strings.HasPrefix(p.text, "/") || p.kind == wildcard && strings.HasPrefix(p.text, "*")
}

// ofPath is the pattern of the path for one of :path, which has the query too. Same says that the
// query makes no difference. It is not ok if the pattern is about the query, or may be.
func (p pattern) ofPath() (path pattern, same, ok bool) {
	switch p.kind {
	case exactly:
		return p, false, !strings.ContainsAny(p.text, "?#")
	case wildcard:
		begin, isAll := p.begin()
		return p, true, isAll && !strings.ContainsAny(begin, "?#")
	case expression:
		return ofPathExpression(p.text)
	case anyValue, orBelow, absent:
	}
	return p, true, true
}

// ofPathExpression is ofPath of an expression. What takes any rest of the text at its end takes
// any query; elsewhere it may take a part of one.
func ofPathExpression(text string) (path pattern, same, ok bool) {
	text = strings.TrimPrefix(text, "^")
	if begin, isBelow := strings.CutSuffix(text, `(/.*|\?.*|#.*|;.*|$)`); isBelow { // as Envoy Gateway writes a prefix
		path = pattern{expression, begin + "(/.*)?"}
		if re, err := syntax.Parse(begin, syntax.Perl); err == nil && isPlainText(re) {
			path = pattern{orBelow, string(re.Rune)}
		}
		return path, !strings.Contains(begin, "|"), !seesQuery(begin)
	}
	text = strings.TrimSuffix(text, "$")
	for _, query := range []string{`(\?.*)?`, `(?:\?.*)?`} {
		if begin, cut := strings.CutSuffix(text, query); cut && begin != "" {
			return pattern{expression, begin}, true, !seesQuery(begin)
		}
	}
	begin, takesRest := strings.CutSuffix(text, ".*")
	return pattern{expression, text}, takesRest && !strings.Contains(text, "|"), !seesQuery(begin)
}

// isPlainText reports whether an expression matches one text alone, in one case.
func isPlainText(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0
}

// seesQuery reports whether an expression may be about what follows a path.
func seesQuery(text string) bool {
	plain := strings.TrimPrefix(text, "(?i)")
	return strings.Contains(plain, `\?`) || strings.Contains(plain, "[?") || strings.Contains(plain, "#") ||
		strings.Contains(plain, ".*") || strings.Contains(plain, ".+")
}
