package importer

import (
	"regexp"
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

// value writes the pattern in the notation of headers and overrides.
func (p pattern) value() string {
	switch p.kind {
	case anyValue:
		return "*"
	case exactly:
		if p.text == "" || strings.Contains(p.text, "*") || strings.ContainsRune("!=~", rune(p.text[0])) {
			return "=" + p.text
		}
		return p.text
	case wildcard:
		plain := strings.Trim(p.text, "*")
		switch {
		case p.text == "*":
			return "*"
		case strings.Contains(plain, "*"), plain != "" && strings.ContainsRune("!=~", rune(plain[0])):
		case p.text == plain+"*", p.text == "*"+plain:
			return p.text
		}
	case expression:
	}
	return "~" + p.regexp()
}

// path writes the pattern in the notation of paths. It is not ok if no path fits:
// paths begin with a / and come without the query.
func (p pattern) path() (text string, ok bool) {
	switch p.kind {
	case anyValue:
		return "*", true
	case exactly:
		if !strings.HasPrefix(p.text, "/") || strings.Contains(p.text, "?") {
			return "", false
		}
		if strings.Contains(p.text, "*") {
			return "=" + p.text, true
		}
		return p.text, true
	case wildcard:
		if before, _, _ := strings.Cut(p.text, "*"); before != "" && before[0] != '/' || strings.Contains(p.text, "?") {
			return "", false
		}
		plain, found := strings.CutSuffix(p.text, "*")
		if found && !strings.Contains(plain, "*") && strings.HasPrefix(plain, "/") {
			return p.text, true
		}
	case expression:
	}
	return "~" + p.regexp(), true
}
