package importer

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// pattern says which values fit: exactly a text, a text with wildcards, an
// expression, or any.
type pattern struct {
	kind patternKind
	text string // as the configuration has it; of a regexp the expression
}

type patternKind uint8

const (
	anyValue patternKind = iota
	exactly
	wildcard // each * stands for any text, as in envoyproxy/ratelimit
	expression
)

// regexp is the pattern as an expression of RE2 for the whole text.
func (p pattern) regexp() string {
	switch p.kind {
	case anyValue:
		return ".*"
	case wildcard:
		parts := strings.Split(p.text, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return strings.Join(parts, ".*")
	case expression:
		return p.text
	case exactly:
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
	case expression:
	}
	re, err := regexp.Compile("^(?s:" + p.regexp() + ")$")
	return err == nil && re.MatchString(text)
}

// fitsWildcards reports whether a text is the parts in their order, with
// anything between them.
func fitsWildcards(parts []string, text string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// within reports whether every text that fits p fits q. It may miss some.
func (p pattern) within(q pattern) bool {
	return q.kind == anyValue || p == q || p.kind == exactly && q.matches(p.text)
}

// apart reports whether no text fits both. It may miss some.
func (p pattern) apart(q pattern) bool {
	switch {
	case p.kind == exactly:
		return !q.matches(p.text)
	case q.kind == exactly:
		return !p.matches(q.text)
	case p.kind == wildcard && q.kind == wildcard:
		a, _, _ := strings.Cut(p.text, "*")
		b, _, _ := strings.Cut(q.text, "*")
		return !strings.HasPrefix(a, b) && !strings.HasPrefix(b, a)
	}
	return false
}

// in writes the pattern in the notation that a policy has for the part: that of
// paths has no *suffix.
func (p pattern) in(of part) string {
	plain := strings.Trim(p.text, "*")
	isPlain := !strings.Contains(plain, "*") && (plain == "" || !strings.ContainsRune("!=~", rune(plain[0])))
	switch {
	case p.kind == anyValue, p.kind == wildcard && p.text == "*":
		return "*"
	case p.kind == exactly && isPlain && plain == p.text && plain != "":
		return plain
	case p.kind == exactly:
		return "=" + p.text
	case p.kind == wildcard && isPlain && (p.text == plain+"*" || p.text == "*"+plain && of.kind != "path"):
		return p.text
	}
	return "~" + p.regexp()
}

// beginsPath reports whether a path may begin as a text does.
func (p pattern) beginsPath() bool {
	return strings.HasPrefix(p.text, "/") || p.kind == wildcard && strings.HasPrefix(p.text, "*")
}

// ofPath is the pattern of the path for one of :path, which has the query too.
// Same says that the query makes no difference. It is not ok if the pattern is
// about the query, or may be.
func (p pattern) ofPath() (path pattern, same, ok bool) {
	switch p.kind {
	case anyValue:
		return p, true, true
	case exactly:
		return p, false, !strings.ContainsAny(p.text, "?#")
	case wildcard, expression:
	}
	if text, ok := strings.CutSuffix(strings.TrimPrefix(p.text, "^"), `(/.*|\?.*|#.*|;.*|$)`); ok { // as Envoy Gateway writes a prefix
		return pattern{expression, text + below}, true, true
	}
	for _, query := range []string{`(\?.*)?`, `(?:\?.*)?`} {
		text, cut := strings.CutSuffix(strings.TrimSuffix(p.text, "$"), query)
		if cut && p.kind == expression && text != "" {
			p.text, same = text, true
		}
	}
	re, err := syntax.Parse(p.regexp(), syntax.Perl)
	if err != nil {
		return p, false, false
	}
	last := re
	if re.Op == syntax.OpConcat {
		last = re.Sub[lastOf(re)]
	}
	return p, same || isAny(last), !seesQuery(re, true)
}

// seesQuery reports whether an expression may be about what follows a path. What
// takes any rest of the text is not, at its end.
func seesQuery(re *syntax.Regexp, atEnd bool) bool {
	switch {
	case re.Op == syntax.OpLiteral:
		return strings.ContainsAny(string(re.Rune), "?#")
	case re.Op == syntax.OpCharClass: // one such as [^/] is not meant for the query
		return inClass(re, '?') && !inClass(re, 1)
	case isAny(re):
		return !atEnd
	}
	for i, sub := range re.Sub {
		if seesQuery(sub, atEnd && (re.Op != syntax.OpConcat || i >= lastOf(re))) {
			return true
		}
	}
	return false
}

// lastOf is the last part of a sequence, apart from the end of the text.
func lastOf(re *syntax.Regexp) int {
	at := len(re.Sub) - 1
	if at > 0 && re.Sub[at].Op == syntax.OpEndText {
		at--
	}
	return at
}

// isAny reports whether an expression takes any text.
func isAny(re *syntax.Regexp) bool {
	return (re.Op == syntax.OpStar || re.Op == syntax.OpPlus) &&
		(re.Sub[0].Op == syntax.OpAnyChar || re.Sub[0].Op == syntax.OpAnyCharNotNL)
}

func inClass(re *syntax.Regexp, r rune) bool {
	for i := 0; i < len(re.Rune); i += 2 {
		if re.Rune[i] <= r && r <= re.Rune[i+1] {
			return true
		}
	}
	return false
}
