package access

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// capture matches like *, and match returns the text that it stands for.
const capture = "{id}"

// pattern is a text in which * and {id} stand for one or more characters of a
// segment. A segment of a DNS name ends at ".", one of a URI at "/", one of a
// node id at both.
type pattern struct {
	text       string
	captures   bool   // {id} is in it
	separators string // empty: any text may match, else names of one kind
	regexp     *regexp.Regexp
}

// namePattern makes a pattern of names in certificates: of DNS names, or of
// URIs if there is a ":" in it.
func namePattern(text string) (pattern, error) {
	_, rest, _ := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	for _, wild := range []string{"*", capture} {
		if strings.Contains(host, wild) {
			return pattern{}, errors.New(wild + " in the host of a URI: it may stand within a segment of the path only")
		}
	}
	p, err := compile(text, separators(text))
	p.separators = separators(text)
	return p, err
}

// idPattern makes a pattern of node ids.
func idPattern(text string) (pattern, error) { return compile(text, "./") }

func separators(name string) string {
	if strings.Contains(name, ":") { // which no DNS name has
		return "/"
	}
	return "."
}

func compile(text, separators string) (pattern, error) {
	p := pattern{text: text, captures: strings.Contains(text, capture)}
	if strings.Count(text, capture) > 1 {
		return p, errors.New("{id} is there twice: write * where the text may differ")
	}
	for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		switch stars := strings.Count(segment, "*"); {
		case stars > 0 && strings.Contains(segment, capture):
			return p, fmt.Errorf("{id} and * are in one segment, so what {id} stands for is not clear: separate them by %q",
				separators[:1])
		case stars > 1:
			return p, errors.New("two * in one segment: one is enough")
		}
	}
	inSegment := "[^" + separators + "]+"
	wild := strings.NewReplacer(`\*`, inSegment, regexp.QuoteMeta(capture), "("+inSegment+")")
	var err error
	p.regexp, err = regexp.Compile("^" + wild.Replace(regexp.QuoteMeta(text)) + "$")
	return p, err
}

// match says whether the text fits, and what {id} stands for in it.
func (p pattern) match(text string) (captured string, ok bool) {
	if p.separators != "" && p.separators != separators(text) {
		return "", false
	}
	found := p.regexp.FindStringSubmatch(text)
	switch {
	case found == nil:
		return "", false
	case p.captures:
		return found[1], true
	}
	return "", true
}
